"""Tickets: a request that ends releases exactly what it has reserved itself."""

import asyncio
import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluicegate import ManualClock, Node, Throttled
from sluicegate.quota import Ticket
from sluicegate.quota.messages import Line, Quota, ServiceQuota, Share
from sluicegate.quota.node.core.reporter import Reporter
from tests.harness.answering_leader import AnsweringLeader, ClockWithEvents

START = 1020.0  # a multiple of 60: a period of reservations begins


@pytest.fixture
def clock() -> ClockWithEvents:
    return ClockWithEvents(START)


@pytest.fixture
def node(clock: ManualClock, tmp_path: Path) -> Iterator[Node]:
    shared = str(tmp_path / "memory")
    made = Node("ws://c", node_id="web", services=["front"], shared=shared, clock=clock)
    yield made
    made.close()


def tell(node: Node, shares: dict[str, Share]) -> None:
    """The leader tells of ann; without shares, that she has no limit."""
    now = node._user_table.now()
    services = {"front": ServiceQuota({"ann": shares}, {"reads": 1.0})}
    quota = Quota("c", 1, 1, int(now), now, 1, False, 0.05, services)
    Reporter(node._user_table, node.centrals).receive(now, node.centrals[0], quota)


def grant(node: Node, reads: float) -> None:
    tell(node, {"reads": Share(reads, 0.0)})


def line(node: Node) -> Line:
    [(_, report)] = Reporter(node._user_table, node.centrals).leave(node._user_table.now())
    return report.lines["front"]["ann"]["reads"]


def begin(node: Node, reads: float) -> Ticket:
    return node.throttle("front", "ann", {"reads": reads}, ticket=True)


def end(node: Node, reads: float, ticket: Ticket | None = None) -> None:
    node.consume("front", "ann", {"reads": reads}, ticket)


def test_throttle_returns_a_ticket_only_when_asked_for_one(node: Node) -> None:
    grant(node, 9.0)
    assert node.throttle("front", "ann", {"reads": 1.0}) is None
    assert isinstance(begin(node, 1.0), Ticket)
    assert asyncio.run(node.throttle_async("front", "ann", {"reads": 1.0})) is None
    given = asyncio.run(node.throttle_async("front", "ann", {"reads": 1.0}, ticket=True))
    assert isinstance(given, Ticket)
    assert line(node).held == 4.0


def test_the_first_request_of_a_newcomer_is_reserved_beyond_its_window(
    node: Node, clock: ManualClock
) -> None:
    now = node._user_table.now()
    services = {"front": ServiceQuota({}, {"reads": 5.0})}
    quota = Quota("c", 1, 1, int(now), now, 1, True, 0.05, services)
    Reporter(node._user_table, node.centrals).receive(now, node.centrals[0], quota)
    first = begin(node, 1.0)
    clock.advance(1.0)
    grant(node, 9.0)
    begin(node, 1.0)
    assert line(node).held == 2.0
    end(node, 1.0, first)
    assert line(node).held == 1.0


def test_a_ticket_releases_what_its_own_request_has_reserved(node: Node) -> None:
    grant(node, 20.0)
    small, large = begin(node, 1.0), begin(node, 9.0)
    end(node, 9.0, large)
    assert line(node).held == 1.0
    end(node, 1.0, small)
    assert (line(node).consumed, line(node).held) == (10.0, 0.0)


def test_without_tickets_a_request_that_ends_releases_a_mean_one(node: Node) -> None:
    grant(node, 20.0)
    for reads in (1.0, 9.0):
        node.throttle("front", "ann", {"reads": reads})
    end(node, 9.0)
    assert line(node).held == 5.0


def test_requests_with_and_without_a_ticket_do_not_release_each_other(node: Node) -> None:
    grant(node, 20.0)
    ticket = begin(node, 7.0)
    node.throttle("front", "ann", {"reads": 2.0})
    end(node, 2.0)
    assert line(node).held == 7.0
    end(node, 3.0)  # one that nobody has announced
    assert line(node).held == 7.0
    end(node, 7.0, ticket)
    assert line(node).held == 0.0


def test_what_a_ticket_holds_does_not_fade_while_its_request_runs(
    node: Node, clock: ManualClock
) -> None:
    grant(node, 100.0)
    long = begin(node, 10.0)
    for _ in range(59):
        clock.advance(1.0)
        end(node, 1.0, begin(node, 1.0))
    assert line(node).held == 10.0
    assert not node.allows("front", "ann", {"reads": 32.0})  # 100 - 59 - 10 are left
    assert node.allows("front", "ann", {"reads": 31.0})
    end(node, 10.0, long)


def test_of_requests_that_died_what_their_tickets_hold_is_released(
    node: Node, clock: ManualClock
) -> None:
    grant(node, 1000.0)
    held = []
    begin(node, 10.0)
    for _ in range(130):
        clock.advance(1.0)
        end(node, 1.0, begin(node, 1.0))
        held.append(line(node).held)
    # At the end of the period after its own.
    assert held == [10.0] * 119 + [0.0] * 11


def test_a_ticket_that_has_expired_releases_nothing_of_others(
    node: Node, clock: ManualClock
) -> None:
    grant(node, 100.0)
    late = begin(node, 10.0)
    clock.advance(120.0)
    begin(node, 4.0)
    end(node, 10.0, late)
    assert (line(node).consumed, line(node).held) == (10.0, 4.0)


def test_a_ticket_releases_once(node: Node) -> None:
    grant(node, 20.0)
    first, _second = begin(node, 3.0), begin(node, 3.0)
    end(node, 3.0, first)
    end(node, 1.0, first)  # counted, as a cost that was found later
    assert (line(node).consumed, line(node).held) == (4.0, 3.0)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_ticket_cannot_be_copied(node: Node, duplicate: Any) -> None:
    grant(node, 20.0)
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        duplicate(begin(node, 1.0))


def test_only_a_ticket_is_taken_for_one(node: Node) -> None:
    grant(node, 20.0)
    with pytest.raises(TypeError, match="ticket"):
        node.consume("front", "ann", {"reads": 1.0}, "ticket")  # type: ignore[arg-type]


def test_a_free_user_has_a_ticket_and_is_not_counted(node: Node) -> None:
    tell(node, {})
    end(node, 5.0, begin(node, 5.0))
    [(_, report)] = Reporter(node._user_table, node.centrals).leave(START)
    assert report.lines.get("front", {}).get("ann", {}) == {}


def test_what_runs_with_a_ticket_when_a_limit_is_taken_away_is_still_counted(
    node: Node, clock: ManualClock
) -> None:
    grant(node, 20.0)
    ticket = begin(node, 5.0)
    tell(node, {})
    clock.advance(3.0)
    end(node, 4.0, ticket)
    assert (line(node).consumed, line(node).held) == (4.0, 0.0)
    end(node, 4.0, begin(node, 4.0))
    assert (line(node).consumed, line(node).held) == (4.0, 0.0)


@pytest.mark.parametrize("way", ["thread", "task"])
def test_a_request_that_has_waited_has_a_ticket_for_what_it_reserved(
    node: Node, clock: ClockWithEvents, way: str
) -> None:
    AnsweringLeader(node, clock).introduce("ann")
    cost = {"requests": 1.0}
    if way == "thread":
        ticket = node.throttle("front", "ann", cost, wait=None, ticket=True)
    else:
        ticket = asyncio.run(node.throttle_async("front", "ann", cost, ticket=True))
    assert clock.naps
    [(_, report)] = Reporter(node._user_table, node.centrals).leave(clock.now())
    assert report.lines["front"]["ann"]["requests"].held == 1.0
    node.consume("front", "ann", cost, ticket)
    [(_, report)] = Reporter(node._user_table, node.centrals).leave(clock.now())
    assert report.lines["front"]["ann"]["requests"].held == 0.0


def test_a_request_that_is_refused_has_no_ticket(node: Node) -> None:
    grant(node, 1.0)
    with pytest.raises(Throttled):
        begin(node, 2.0)
    assert line(node).held == 0.0
