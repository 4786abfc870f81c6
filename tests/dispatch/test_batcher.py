"""Which tasks make up a batch, and how long it will take."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.dispatch.batcher import Batcher
from sluicegate.dispatch.estimate import BatchTime
from sluicegate.dispatch.task import Task
from sluicegate.dispatch.wire import decode_request, encode_request


def task(number: int, data: Any = None, *, timeout: float = 1.0, stream: int = 1) -> Task:
    """A task that was added at `number` milliseconds."""
    request = decode_request(encode_request("msgpack", "", str(number), timeout, data))
    made = Task((stream, b"%d-0" % number), 1, request)
    made.data = data
    return made


def measured(batcher: Batcher, items: Sequence[Any]) -> list[Task]:
    tasks = [task(number, item) for number, item in enumerate(items)]
    for one in tasks:
        batcher.measure(one)
    return tasks


def data_of(tasks: Sequence[Task]) -> list[Any]:
    return [one.data for one in tasks]


def test_a_greedy_batch_is_what_is_there_up_to_its_limit() -> None:
    batcher = Batcher(4)
    tasks = measured(batcher, "abcdef")
    assert data_of(batcher.pick(tasks[:2])) == ["a", "b"]
    assert data_of(batcher.pick(tasks)) == ["a", "b", "c", "d"]
    assert batcher.ready_at(tasks[:1]) == 0.0


def test_max_wait_holds_a_batch_back_until_it_is_full_or_old() -> None:
    batcher = Batcher(3, 0.5)
    tasks = measured(batcher, "abc")
    for number, one in enumerate(tasks):
        one.arrived_at = 10.0 + number
    assert batcher.ready_at(tasks[:2]) == 10.5
    assert batcher.ready_at(tasks) == 0.0


def test_a_batch_stays_within_its_cost() -> None:
    batcher = Batcher(16, cost=float, max_cost=10)
    assert data_of(batcher.pick(measured(batcher, [4, 4, 4, 1]))) == [4, 4]
    assert data_of(batcher.pick(measured(batcher, [25, 1]))) == [25]


def test_batches_of_like_size_contain_the_first_task() -> None:
    batcher = Batcher(3, size=float)
    tasks = measured(batcher, [50, 1, 2, 52, 90, 3, 51])
    assert sorted(data_of(batcher.pick(tasks))) == [50, 51, 52]


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=64),
    st.integers(1, 16),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 300)),
)
def test_every_batch_has_the_first_task_and_keeps_the_limits(
    sizes: list[int], max_batch: int, by_size: bool, max_cost: int | None
) -> None:
    batcher = Batcher(max_batch, size=float if by_size else None, cost=float, max_cost=max_cost)
    tasks = measured(batcher, sizes)
    batch = batcher.pick(tasks)
    assert tasks[0] in batch
    assert len(set(map(id, batch))) == len(batch) <= max_batch
    assert len(batch) == 1 or sum(one.cost for one in batch) <= batcher.max_cost


def test_batches_of_like_size_need_far_less_padding_than_first_come_batches() -> None:
    """Texts of mixed length, each batch padded to its longest: the goal is 1.7 times."""
    random.seed(1)
    sizes = [round(random.lognormvariate(3.0, 1.0)) + 1 for _ in range(16 * 400)]

    def cost(batcher: Batcher) -> float:
        waiting = measured(batcher, sizes)
        total = 0.0
        while waiting:
            batch = batcher.pick(waiting[: batcher.pool_size])
            total += len(batch) * max(one.data for one in batch)
            taken = {id(one) for one in batch}
            waiting = [one for one in waiting if id(one) not in taken]
        return total

    assert cost(Batcher(16)) / cost(Batcher(16, size=float)) > 1.7


def test_the_time_of_a_batch_is_learned() -> None:
    time = BatchTime()
    assert time.estimate(16) == 0.0
    assert time.rate(16) is None
    for count in (1, 16, 4, 9, 2, 12):
        time.observe(count, 0.010 + 0.002 * count)
    assert time.coefficients() == pytest.approx((0.002, 0.010))
    assert time.estimate(16) == pytest.approx(0.042)
    assert time.rate(16) == pytest.approx(16 / 0.042)


def test_a_handler_that_becomes_slower_is_followed() -> None:
    time = BatchTime()
    for _ in range(50):
        for count in (1, 16):
            time.observe(count, 0.01)
    for _ in range(25):
        for count in (1, 16):
            time.observe(count, 0.05)
    assert time.estimate(16) == pytest.approx(0.05, rel=0.02)


def test_sizes_that_never_ran_are_not_guessed_beyond_twice_the_largest() -> None:
    time = BatchTime()
    time.observe(1, 0.1)
    assert [time.estimate(count) for count in (1, 2, 16)] == pytest.approx([0.1, 0.2, 0.2])


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.0, 100.0)), max_size=40))
def test_estimates_are_never_negative_and_grow_with_the_batch(
    batches: list[tuple[int, float]],
) -> None:
    time = BatchTime()
    for count, seconds in batches:
        time.observe(count, seconds)
    estimates = [time.estimate(count) for count in range(1, 65)]
    assert all(one >= 0.0 for one in estimates)
    assert estimates == sorted(estimates)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batch": 0}, "max_batch must be from 1"),
        ({"max_wait": -1.0}, "max_wait must be seconds >= 0, got -1.0"),
        ({"max_cost": 5.0}, "max_cost needs a cost function"),
        ({"max_cost": 0.0, "cost": len}, "max_cost must be a finite number above 0"),
        ({"size": 3}, "size must be a function of an item, got 3"),
        ({"cost": "len"}, "cost must be a function of an item, got 'len'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Batcher(**options)
