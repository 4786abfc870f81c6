"""What a worker does next to get tasks, step by step and without Redis."""

import pytest

from sluicegate.dispatch.batcher import Batcher
from sluicegate.dispatch.fetcher import Begin, Fetcher, Look, Pause, Read, Recover, Step
from sluicegate.dispatch.task import Task
from sluicegate.dispatch.wire import decode_request, encode_request
from sluicegate.dispatch.worker_core import WorkerCore

NOW = 1000.0
LATER = 1.0  # seconds after which nobody knows whether a queue is still empty


def make_core(max_batch: int = 12) -> WorkerCore:
    return WorkerCore(Batcher(max_batch))


def pool(core: WorkerCore, count: int) -> None:
    """Put tasks into the pool."""
    payload = encode_request("msgpack", "replies", "1", 600.0, None)
    ids = [b"%d-%d" % (NOW * 1000, number) for number in range(count)]
    core.add(NOW, [Task((1, id), 1, decode_request(payload)) for id in ids], NOW)


def idle_step(fetcher: Fetcher, now: float = NOW) -> Step:
    return fetcher.step(now, 1, None)


def test_an_idle_worker_looks_and_then_waits_in_a_read() -> None:
    fetcher = Fetcher(make_core())
    look = idle_step(fetcher)
    assert look == Look((12, 12, 12))
    assert not fetcher.fetched(NOW, look, 0, False)
    assert idle_step(fetcher) == Read(4)


@pytest.mark.parametrize(("after", "expected"), [(0.001, Read), (LATER, Look)])
def test_a_queue_that_was_just_seen_empty_is_not_looked_at_again(
    after: float, expected: type[Step]
) -> None:
    fetcher = Fetcher(make_core())
    fetcher.fetched(NOW, Look((12, 12, 12)), 0, False)
    read = idle_step(fetcher)
    assert isinstance(read, Read)
    assert fetcher.fetched(NOW, read, 1, False)  # the only one that was there
    assert isinstance(idle_step(fetcher, NOW + after), expected)


def test_a_read_that_took_as_many_as_it_may_is_followed_by_a_look_before_the_batch() -> None:
    core = make_core()
    fetcher = Fetcher(core)
    assert not fetcher.fetched(NOW, Read(4), 4, False)
    assert idle_step(fetcher) == Look((12, 12, 12))
    assert fetcher.fetched(NOW, Look((12, 12, 12)), 0, False)  # they begin, though none came now


def test_a_full_look_of_which_tasks_were_dropped_is_filled_up() -> None:
    core = make_core()
    fetcher = Fetcher(core)
    assert not fetcher.fetched(NOW, Look((12, 12, 12)), 12, True)
    assert isinstance(idle_step(fetcher), Look)
    pool(core, 12)
    assert fetcher.step(NOW, 0, None) == Begin()


def test_a_full_pool_pauses_until_a_batch_has_begun_and_then_looks_for_more_urgent_tasks() -> None:
    core = make_core(4)
    fetcher = Fetcher(core)
    pool(core, 4)
    assert fetcher.fetched(NOW, Look((4, 4, 4)), 4, False)
    assert idle_step(fetcher) == Pause(None)
    assert idle_step(fetcher) == Look((4, 0, 0))


def test_a_worker_with_another_free_slot_goes_on_when_a_batch_has_begun() -> None:
    core = make_core(4)
    fetcher = Fetcher(core)
    pool(core, 4)
    assert fetcher.fetched(NOW, Look((4, 4, 4)), 4, False)
    core.take(NOW)  # what the shell does before the next step
    assert idle_step(fetcher) == Look((4, 4, 4))


@pytest.mark.parametrize(
    ("next_free_at", "expected"),
    [
        (None, Pause(None)),
        (NOW + 0.3, Pause(NOW + 0.25)),
        (NOW + 0.04, Look((12, 12, 12))),
    ],
)
def test_a_busy_worker_pauses_until_its_batch_is_about_to_end(
    next_free_at: float | None, expected: Step
) -> None:
    assert Fetcher(make_core()).step(NOW, 0, next_free_at) == expected


def test_after_a_failure_lost_tasks_are_recovered_first_until_there_are_none() -> None:
    fetcher = Fetcher(make_core())
    fetcher.failed()
    for count in (3, 0):
        assert idle_step(fetcher) == Recover()
        assert fetcher.fetched(NOW, Recover(), count, False) == (count > 0)
    assert isinstance(idle_step(fetcher), Look)


def test_a_queue_is_fetched_from_while_those_before_it_are_dry() -> None:
    first = Fetcher(make_core())
    second = Fetcher(make_core(), first)
    third = Fetcher(make_core(), second)
    assert idle_step(second) == idle_step(third) == Pause(None)
    first.fetched(NOW, Look((12, 12, 12)), 0, False)
    assert isinstance(idle_step(first), Read)
    assert (second.is_turn, third.is_turn) == (True, False)
    second.fetched(NOW, Look((12, 12, 12)), 0, False)
    assert isinstance(idle_step(second), Read)
    assert third.is_turn
    first.fetched(NOW, Read(4), 1, False)
    assert (second.is_turn, third.is_turn) == (False, False)
    # A look, not a read, tells whether it is the turn of the others again.
    assert isinstance(idle_step(first), Look)


def test_a_queue_that_cannot_be_reached_does_not_stop_those_behind_it() -> None:
    first = Fetcher(make_core())
    second = Fetcher(make_core(), first)
    first.failed()
    assert second.is_turn
