import time
from functools import partial

import pytest

from sluicegate import (
    ClockMovedBackwards,
    ConfigError,
    ManualClock,
    Snowflake,
    SnowflakeParts,
    SystemClock,
)
from sluicegate.ids import EPOCH
from tests.harness.threads import run_in_threads

START = 1_700_000_000.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


def test_an_id_says_when_and_where_it_was_made(clock: ManualClock) -> None:
    snowflake = Snowflake(3, 17, clock=clock)
    assert Snowflake.parse(snowflake.next()) == SnowflakeParts(1_700_000_000_000, 3, 17, 0)
    clock.advance(0.0375)
    assert Snowflake.parse(snowflake.next()) == SnowflakeParts(1_700_000_000_037, 3, 17, 0)
    assert (snowflake.datacenter, snowflake.worker, snowflake.epoch) == (3, 17, EPOCH)
    assert repr(snowflake) == "Snowflake(datacenter=3, worker=17)"


def test_the_bits_are_41_5_5_12(clock: ManualClock) -> None:
    snowflake = Snowflake(31, 31, clock=clock)
    snowflake.next()
    milliseconds = round((START - EPOCH) * 1000)
    assert snowflake.next() == milliseconds << 22 | 31 << 17 | 31 << 12 | 1


def test_the_epoch_is_2020_unless_another_is_given(clock: ManualClock) -> None:
    assert time.gmtime(EPOCH)[:6] == (2020, 1, 1, 0, 0, 0)
    made = Snowflake(epoch=START - 1, clock=clock).next()
    assert made >> 22 == 1000
    assert Snowflake.parse(made, epoch=START - 1).timestamp_ms == START * 1000


def test_the_4097th_id_of_a_millisecond_waits_for_the_next(clock: ManualClock) -> None:
    snowflake = Snowflake(clock=clock)
    ids = [snowflake.next() for _ in range(4096)]
    assert clock.now() == START
    ids.append(snowflake.next())
    assert clock.now() == pytest.approx(START + 0.001, abs=1e-6)
    parts = Snowflake.parse(ids[-1])
    assert (parts.timestamp_ms, parts.sequence) == (START * 1000 + 1, 0)
    assert ids == sorted(set(ids))


def test_many_ids_are_the_same_as_one_after_the_other() -> None:
    one, many = (Snowflake(clock=ManualClock(START)) for _ in range(2))
    assert many.next_many(10_000) == [one.next() for _ in range(10_000)]


def test_a_step_back_of_a_second_is_waited_out(clock: ManualClock) -> None:
    snowflake = Snowflake(clock=clock)
    before = snowflake.next()
    clock.advance(-1.0)
    after = snowflake.next()
    assert clock.now() == START
    assert after == before + 1


def test_a_longer_step_back_is_an_error_with_both_times(clock: ManualClock) -> None:
    snowflake = Snowflake(clock=clock)
    snowflake.next()
    clock.advance(-1.5)
    with pytest.raises(ClockMovedBackwards, match="backwards by 1.500 s") as caught:
        snowflake.next()
    assert (caught.value.last, caught.value.now) == (START, START - 1.5)
    assert clock.now() == START - 1.5
    clock.advance(2)
    snowflake.next()


def test_no_id_is_ever_made_twice_whatever_the_clock_does(clock: ManualClock) -> None:
    snowflake = Snowflake(clock=clock)
    ids = []
    for step in [0.001, -0.5, 0.0, -1.0, 2.0, -0.001, -3.0, 0.2, 5.0, -0.999]:
        clock.advance(step)
        try:
            ids += snowflake.next_many(3000)
        except ClockMovedBackwards:
            continue
    assert len(ids) >= 24_000
    assert ids == sorted(set(ids))


def test_after_41_bits_there_is_a_clear_error(clock: ManualClock) -> None:
    snowflake = Snowflake(clock=clock, epoch=START)
    clock.advance(2**41 / 1000 - 0.001)
    assert snowflake.next() >> 22 == 2**41 - 1
    clock.advance(0.001)
    with pytest.raises(OverflowError, match="41 bits .* later epoch"):
        snowflake.next()


def test_a_clock_before_the_epoch_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="before the epoch"):
        Snowflake(clock=ManualClock(0)).next()


def test_eight_threads_never_get_the_same_id() -> None:
    snowflake = Snowflake()
    made: list[list[int]] = [[] for _ in range(8)]

    def work(ids: list[int]) -> None:
        for _ in range(500):
            ids.append(snowflake.next())
            ids.extend(snowflake.next_many(20))

    run_in_threads([partial(work, ids) for ids in made])
    together = [one for ids in made for one in ids]
    assert len(set(together)) == 8 * 500 * 21
    assert all(ids == sorted(ids) for ids in made)


def test_the_system_clock_is_the_default() -> None:
    for snowflake in (Snowflake(), Snowflake(clock=SystemClock())):
        before = time.time()
        made = Snowflake.parse(snowflake.next())
        assert int(before * 1000) <= made.timestamp_ms <= time.time() * 1000


def test_the_numbers_come_from_the_environment_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEGATE_WORKER", "7")
    assert repr(Snowflake.from_env()) == "Snowflake(datacenter=0, worker=7)"
    monkeypatch.setenv("SLUICEGATE_DATACENTER", "2")
    assert repr(Snowflake.from_env()) == "Snowflake(datacenter=2, worker=7)"


@pytest.mark.parametrize("worker", ["32", "-1", "one", "1.5", "²"])
def test_a_wrong_environment_is_named(worker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEGATE_WORKER", worker)
    with pytest.raises(ConfigError, match=f"SLUICEGATE_WORKER .* 0 to 31, got '{worker}'"):
        Snowflake.from_env()


def test_a_missing_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICEGATE_WORKER", raising=False)
    with pytest.raises(ConfigError, match="SLUICEGATE_WORKER is not set"):
        Snowflake.from_env()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"worker": 32}, ValueError),
        ({"datacenter": -1}, ValueError),
        ({"worker": "1"}, TypeError),
        ({"epoch": float("nan")}, ValueError),
    ],
)
def test_wrong_arguments_raise_at_once(arguments: dict[str, int], error: type[Exception]) -> None:
    with pytest.raises(error):
        Snowflake(**arguments)


@pytest.mark.parametrize("wrong", [-1, 1 << 63])
def test_only_63_bits_are_an_id(wrong: int) -> None:
    with pytest.raises(ValueError, match="63 bits"):
        Snowflake.parse(wrong)


def test_wrong_types_are_refused() -> None:
    with pytest.raises(TypeError, match="an id is an int"):
        Snowflake.parse("12")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="n must be an int"):
        Snowflake().next_many(1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        Snowflake().next_many(0)


def test_what_is_no_clock_and_no_epoch_is_refused() -> None:
    with pytest.raises(TypeError, match=r"method now\(\), got 5"):
        Snowflake(clock=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="below 1e12"):
        Snowflake(epoch=1e300)
    with pytest.raises(ValueError, match="at most 1000000000"):
        Snowflake().next_many(10**30)
