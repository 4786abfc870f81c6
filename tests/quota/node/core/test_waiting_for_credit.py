"""Requests that wait for the leader's answer, in threads and in tasks."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluicegate import Node, Throttled
from sluicegate.quota.messages import Hint, Quota, ServiceQuota, Share
from sluicegate.quota.node.core.reporter import Reporter
from sluicegate.quota.node.core.waiting import plan_wait
from tests.harness.answering_leader import AnsweringLeader, ClockWithEvents
from tests.harness.threads import run_in_threads, start_thread
from tests.harness.waits import PATIENCE, wait_for

ONE = {"requests": 1.0}

Throttle = Callable[..., float]


@pytest.fixture
def clock() -> ClockWithEvents:
    return ClockWithEvents(1000.0)


@pytest.fixture
def node(clock: ClockWithEvents, tmp_path: Path) -> Iterator[Node]:
    made = make_node(tmp_path, clock=clock)
    yield made
    made.close()


def make_node(tmp_path: Path, **options: Any) -> Node:
    shared = str(tmp_path / "memory")
    return Node("ws://c", node_id="web", services=["front"], shared=shared, **options)


@pytest.fixture(params=["thread", "task"])
def throttle(request: pytest.FixtureRequest, node: Node, clock: ClockWithEvents) -> Throttle:
    """Throttle as a thread or as a task does; returns how long that took."""

    def throttle(user: str = "ann", **options: Any) -> float:
        began = clock.now()
        if request.param == "thread":
            node.throttle("front", user, ONE, **options)
        else:
            asyncio.run(node.throttle_async("front", user, ONE, **options))
        return clock.now() - began

    return throttle


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.04])
def test_a_request_waits_as_long_as_the_answer_takes(
    throttle: Throttle, node: Node, clock: ClockWithEvents, delay: float
) -> None:
    leader = AnsweringLeader(node, clock, delay=delay)
    leader.introduce("ann")
    waited = throttle(wait=None)
    assert delay <= waited <= delay + 0.01
    assert len(leader.asked) == 1
    waits, seconds = node._user_table.header.waits
    assert (waits, seconds) == (1, pytest.approx(waited, abs=1e-5))
    assert node.status().waits == 1
    node.consume("front", "ann", ONE)


def test_a_request_with_credit_does_not_wait(
    throttle: Throttle, node: Node, clock: ClockWithEvents
) -> None:
    leader = AnsweringLeader(node, clock, grants=2)
    leader.introduce("ann")
    assert throttle(wait=None) > 0.0
    node.consume("front", "ann", ONE)
    assert throttle(wait=None) == 0.0
    assert node._user_table.header.waits[0] == 1


def test_without_an_answer_a_request_is_refused_after_the_wait(
    throttle: Throttle, node: Node, clock: ClockWithEvents
) -> None:
    leader = AnsweringLeader(node, clock, delay=None)
    leader.introduce("ann")
    most = node._user_table.header.wait_seconds
    assert 0.05 <= most <= 0.3
    began = clock.now()
    with pytest.raises(Throttled) as refused:
        throttle(wait=None)
    assert clock.now() - began == pytest.approx(most)
    assert refused.value.resource == "requests"
    # Polls are a millisecond apart at first, and then fewer.
    assert 8 <= len(clock.naps) <= 15
    assert min(clock.naps[:-1]) == clock.naps[0] == 0.001


def test_wait_is_the_most_that_a_request_waits(
    throttle: Throttle, node: Node, clock: ClockWithEvents
) -> None:
    AnsweringLeader(node, clock, delay=0.04).introduce("ann")
    began = clock.now()
    with pytest.raises(Throttled):
        throttle(wait=0.02)
    assert clock.now() - began == pytest.approx(0.02)
    assert throttle(wait=0.1) <= 0.03  # the answer to the first one is on its way


@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
def test_a_request_that_must_not_wait_is_refused_at_once(
    throttle: Throttle, node: Node, clock: ClockWithEvents, zero: float
) -> None:
    AnsweringLeader(node, clock).introduce("ann")
    with pytest.raises(Throttled):
        throttle(wait=zero)
    assert clock.naps == []
    assert node._user_table.header.waits[0] == 0


def test_throttle_and_allows_do_not_wait_by_default_and_throttle_async_does(
    node: Node, clock: ClockWithEvents
) -> None:
    AnsweringLeader(node, clock).introduce("ann")
    with pytest.raises(Throttled):
        node.throttle("front", "ann", ONE)
    assert not node.allows("front", "ann", ONE)
    assert clock.naps == []
    asyncio.run(node.throttle_async("front", "ann", ONE))
    assert clock.naps


def test_allows_can_wait(node: Node, clock: ClockWithEvents) -> None:
    leader = AnsweringLeader(node, clock, delay=0.02)
    leader.introduce("ann")
    assert node.allows("front", "ann", ONE, wait=None)
    leader.delay = None
    assert not node.allows("front", "ann", ONE, wait=0.03)


def test_when_the_leader_says_that_there_is_nothing_the_wait_ends_and_the_next_is_refused_at_once(
    throttle: Throttle, node: Node, clock: ClockWithEvents
) -> None:
    AnsweringLeader(node, clock, delay=0.01, empty_seconds=0.5).introduce("ann")
    began = clock.now()
    with pytest.raises(Throttled) as refused:
        throttle(wait=None)
    assert 0.01 <= clock.now() - began <= 0.02
    assert refused.value.retry_after == pytest.approx(0.5, abs=0.02)
    began = clock.now()
    with pytest.raises(Throttled) as refused:
        throttle(wait=None)
    assert clock.now() == began
    assert refused.value.retry_after == pytest.approx(0.5, abs=0.03)


def test_while_no_leader_is_heard_nobody_waits(
    throttle: Throttle, node: Node, clock: ClockWithEvents
) -> None:
    assert node._user_table.header.wait_seconds == 0.0
    for _ in range(10):  # the fallback
        assert throttle(wait=None) == 0.0
    with pytest.raises(Throttled):
        throttle(wait=5.0)
    assert clock.naps == []


def test_a_leader_that_falls_silent_ends_the_wait(
    throttle: Throttle, node: Node, clock: ClockWithEvents
) -> None:
    AnsweringLeader(node, clock, delay=None).introduce("ann")
    began = clock.now()
    with pytest.raises(Throttled):
        throttle(wait=60.0)
    assert clock.now() - began < 1.0


def test_a_wait_that_is_cancelled_leaves_its_credit_to_others(
    node: Node, clock: ClockWithEvents
) -> None:
    AnsweringLeader(node, clock, delay=0.02).introduce("ann")

    async def story() -> None:
        waiting = asyncio.create_task(node.throttle_async("front", "ann", ONE))
        await asyncio.sleep(0)
        assert node._user_table.waiting == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert node._user_table.waiting == 0
        clock.sleep(0.1)  # the answer comes
        node.throttle("front", "ann", ONE)  # and is for whoever asks next
        with pytest.raises(Throttled):
            node.throttle("front", "ann", ONE)

    asyncio.run(story())


def test_a_refusal_after_a_wait_is_counted_once(node: Node, clock: ClockWithEvents) -> None:
    AnsweringLeader(node, clock, delay=None).introduce("ann")
    with pytest.raises(Throttled):
        node.throttle("front", "ann", ONE, wait=None)
    [(_, report)] = Reporter(node._user_table, node.centrals).leave(clock.now())
    assert report.lines["front"]["ann"]["requests"].rejected == 1


def test_of_many_tasks_that_wait_as_many_pass_as_were_granted(
    node: Node, clock: ClockWithEvents
) -> None:
    leader = AnsweringLeader(node, clock, delay=0.02, grants=30)
    leader.introduce("ann")

    async def passes() -> bool:
        try:
            await node.throttle_async("front", "ann", ONE, wait=0.045)
        except Throttled:
            return False
        node.consume("front", "ann", ONE)
        return True

    async def story() -> list[bool]:
        return await asyncio.gather(*(passes() for _ in range(50)))

    assert sum(asyncio.run(story())) == 30
    assert len(leader.asked) == 1  # for all of them
    assert node._user_table.waiting == 0


def test_of_many_that_wait_each_polls_less_often(node: Node, clock: ClockWithEvents) -> None:
    AnsweringLeader(node, clock, delay=None).introduce("ann")
    with pytest.raises(Throttled):
        node.throttle("front", "ann", ONE)
    plans = [plan_wait(node._user_table, "front", "ann", ONE, 0.2) for _ in range(400)]
    assert [round(next(plan), 6) for plan in plans][::100] == [0.001, 0.0101, 0.0201, 0.0301]
    for plan in plans:
        plan.close()
    assert node._user_table.waiting == 0


@pytest.mark.parametrize(
    ("wait", "error"),
    [
        (-0.1, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        (True, TypeError),
        (False, TypeError),
        ("0.1", TypeError),
        ([], TypeError),
    ],
)
def test_a_wait_that_is_no_number_of_seconds_is_refused_with_its_value(
    node: Node, wait: Any, error: type[Exception]
) -> None:
    calls: list[Callable[[], object]] = [
        lambda: node.throttle("front", "ann", wait=wait),
        lambda: node.allows("front", "ann", wait=wait),
        lambda: asyncio.run(node.throttle_async("front", "ann", wait=wait)),
    ]
    for call in calls:
        with pytest.raises(error, match="wait must be") as refused:
            call()
        assert repr(wait) in str(refused.value)
    assert sum(node.allows("front", "ann") for _ in range(20)) == 10  # nothing was charged


# In real time: threads that sleep, and another process that reports


def hear_leader(node: Node, granted: float) -> None:
    """As the reporter of the host would do it, from whichever process."""
    table = node._user_table
    now, wall = table.now(), time.time()
    share = {"requests": Share(granted, 0.0)}
    hints = {"ann": Hint(0.0, recall=False, may_float=False)}
    service = ServiceQuota({"ann": share}, {"requests": 0.0}, hints)
    quota = Quota("c", 1, 1, int(wall), wall, 1, False, 0.05, {"front": service})
    Reporter(table, node.centrals).receive(now, node.centrals[0], quota)


def test_threads_that_wait_share_what_comes_and_no_more_pass(tmp_path: Path) -> None:
    node = make_node(tmp_path)
    other = make_node(tmp_path)  # as another process has it
    hear_leader(other, 0.0)
    outcomes: list[bool] = []

    def wait() -> None:
        outcomes.append(node.allows("front", "ann", ONE, wait=PATIENCE / 2))

    def grant() -> None:
        wait_for(lambda: node._user_table.waiting == 12, seen=lambda: node._user_table.waiting)
        hear_leader(other, 7.0)
        wait_for(lambda: len(outcomes) == 7, seen=lambda: outcomes)
        hear_leader(other, 12.0)

    run_in_threads([*[wait] * 12, grant])
    assert outcomes == [True] * 12
    assert not node.allows("front", "ann", ONE)
    assert node._user_table.header.waits[0] == 12
    other.close()
    node.close()


def test_asks_wake_whoever_waits_for_them_in_another_mapping(tmp_path: Path) -> None:
    node, reporting = make_node(tmp_path), make_node(tmp_path)
    hear_leader(reporting, 0.0)
    header = reporting._user_table.header
    header.take_asks()
    assert not header.wait_for_asks(0.001)
    heard = threading.Event()

    def watch() -> None:
        while not header.wait_for_asks(PATIENCE):
            pass
        heard.set()

    start_thread(watch)
    assert not node.allows("front", "ann", ONE)
    assert heard.wait(PATIENCE)
    assert header.wait_for_asks(PATIENCE)  # at once, as long as they are not taken
    assert header.take_asks() == [("front", "ann")]
    assert not header.has_asks
    reporting.close()
    node.close()
