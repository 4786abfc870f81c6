"""`SharedTable`: counters that many add to and one collects."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import SharedTable, TableFull


def test_counters_are_added_to_and_read(name: str) -> None:
    table = SharedTable(name)
    assert table.incr("a") == 1.0
    assert table.incr("a", 2.5) == 3.5
    assert table.incr(b"a", -1) == -1.0
    assert (table.get("a"), table.get(b"a"), table.get("b"), table.get("b", 7)) == (3.5, -1, 0, 7)
    assert len(table) == 2
    assert sorted(table.items(), key=str) == [("a", 3.5), (b"a", -1.0)]


def test_those_under_a_prefix_are_taken_out(name: str) -> None:
    table = SharedTable(name)
    for slot in (7, 8):
        for user in ("ann", "bob", "ünal", "a" * 200):
            table.incr(f"{slot}/{user}", slot)
    table.incr(b"7/bytes")
    assert dict(table.take("7/")) == {f"7/{user}": 7 for user in ("ann", "bob", "ünal", "a" * 200)}
    assert dict(table.take("7/")) == {}
    assert dict(table.take(b"7")) == {b"7/bytes": 1}
    assert len(table) == 4
    assert {key for key, _ in table.items("8/a")} == {"8/ann", "8/" + "a" * 200}


def test_a_generation_is_taken_out(name: str) -> None:
    table = SharedTable(name)
    for slot in (1_800_000_000, 1_800_000_001):
        for user in range(100):
            table.incr(f"user:{user}", user, generation=slot)
    assert table.get("user:5") == 0
    assert table.get("user:5", generation=1_800_000_000) == 5
    assert table.generations() == [1_800_000_000, 1_800_000_001]
    taken = dict(table.take(generation=1_800_000_000))
    assert taken == {f"user:{user}": user for user in range(100)}
    assert table.generations() == [1_800_000_001]


def test_what_was_not_asked_for_yet_is_still_there(name: str) -> None:
    table = SharedTable(name)
    for user in range(10):
        table.incr(f"{user}")
    taking = table.take()
    first = next(taking)
    taking.close()  # type: ignore[attr-defined]
    assert len(table) == 9
    assert first[0] not in dict(table.items())


def test_collecting_while_processes_write_loses_nothing_and_counts_nothing_twice(
    name: str, children: Any
) -> None:
    table = SharedTable(name, max_keys=5_000)

    def write() -> None:
        for number in range(30_000):
            table.incr(f"user:{number % 900}")

    for _ in range(3):
        children.start(write)
    collected = 0.0
    rounds = 0
    while collected < 90_000 and rounds < 1_000_000:
        collected += sum(amount for _, amount in table.take("user:"))
        rounds += 1
    children.join()
    assert collected + sum(amount for _, amount in table.take()) == 90_000
    assert len(table) == 0


def test_a_full_table_refuses_new_counters_and_goes_on_with_the_old(name: str) -> None:
    table = SharedTable(name, max_keys=50)
    for number in range(50):
        table.incr(str(number))
    with pytest.raises(TableFull, match="keys=50, max_keys=50.* is full: no room for 'new'"):
        table.incr("new")
    assert table.incr("7") == 2
    dict(table.take("1"))
    assert table.incr("new") == 1


def test_long_and_short_keys_fill_the_same_table_again_and_again(name: str) -> None:
    table = SharedTable(name, max_keys=200)
    for turn in range(10):
        size = (250, 10, 120, 60)[turn % 4]
        for number in range(200):
            table.incr(f"{number:0{size}}")
        assert len(table) == 200
        assert len(list(table.take())) == 200


@given(
    st.lists(
        st.tuples(
            st.one_of(st.text(max_size=60), st.binary(max_size=255)),
            st.integers(-(10**9), 10**9),
            st.sampled_from([0, 1, 2**61 - 1]),
        ),
        max_size=100,
    )
)
def test_it_counts_as_a_dictionary_does(
    folder: Path, steps: list[tuple[str | bytes, int, int]]
) -> None:
    model: dict[tuple[str | bytes, int], float] = {}
    path = folder / "table"
    with SharedTable(path, max_keys=100) as table:
        SharedTable.unlink(path)  # so that the next example begins anew
        for key, amount, generation in steps:
            model[key, generation] = model.get((key, generation), 0) + amount
            assert table.incr(key, amount, generation=generation) == model[key, generation]
        for generation in (0, 1, 2**61 - 1):
            expected = {key: n for (key, g), n in model.items() if g == generation}
            assert dict(table.items(generation=generation)) == expected
            assert dict(table.take(generation=generation)) == expected
        assert len(table) == 0


def test_wrong_calls_are_told_at_once(name: str) -> None:
    table = SharedTable(name)
    for key in (1, ("a",), None):
        with pytest.raises(TypeError, match="key must be a str or bytes"):
            table.incr(key)  # type: ignore[arg-type]
    for amount in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="amount must be a finite number"):
            table.incr("a", amount)
    with pytest.raises(ValueError, match="at most 255 bytes"):
        table.incr("x" * 256)
    for generation in (-1, 2**61):
        with pytest.raises(ValueError, match="generation must be from 0"):
            table.get("a", generation=generation)
    with pytest.raises(TypeError, match="generation must be an int"):
        table.take(generation="now")  # type: ignore[arg-type]
    table.close()
    assert repr(table) == "SharedTable(closed)"
    with pytest.raises(ValueError, match="is closed"):
        table.incr("a")
    with pytest.raises(ValueError, match="is closed"):
        list(table.items())
