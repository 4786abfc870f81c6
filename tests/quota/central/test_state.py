"""A central without its sockets: whom it answers, when it assigns, whose clock it keeps."""

import math
from typing import Any

import pytest

from sluicegate.quota.central.state import CentralState
from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.messages import Ack, Ask, Credit, Line, Quota, Report, UserAsk
from sluicegate.quota.stable_hash import report_delay
from tests.harness.spending_nodes import START, entry


def central(name: str = "c1", *, wall: float = float(START), epoch: int = 1) -> CentralState:
    """Its monotonic clock begins at 0, when its wall clock says `wall`."""
    state = CentralState(name, Ledger([entry("*", r=100.0)]), now=0.0, wall=wall)
    if epoch:
        state.lead(0.0, epoch)
    return state


def report(sequence: int, slot: int, *, since: int = 0, epoch: int = 1, **more: object) -> Report:
    return Report("n", 1, sequence, epoch, since, slot, 7.5, {}, **more)


def ask(node: str, sent: float, requests: int, *, granted: float = 0.0, used: float = 0.0) -> Ask:
    credit = {"r": Credit(granted, 0.0, used, 1.0)} if granted else {}
    return Ask(node, 1, sent, {"front": {"u": UserAsk(requests, credit)}})


def drain(state: CentralState, node: str) -> None:
    """The node is granted all there is at 0.2 s, and uses it at once."""
    ((_, quota),) = state.receive(0.2, ask(node, 0.2, 100_000))
    granted = quota.services["front"].users["u"]["r"].granted
    state.receive(0.2, ask(node, 0.21, 0, granted=granted, used=granted))


def test_every_report_is_acknowledged_with_the_time_it_was_sent_and_the_time_it_is() -> None:
    answers = central().receive(0.25, report(1, START - 1))
    assert answers[0] == ("n", Ack("c1", True, 1, 1, 1, 7.5, START + 0.25))


def test_a_node_that_is_new_is_told_at_once_what_newcomers_have() -> None:
    state = central()
    _, (node, quota) = state.receive(0.25, report(1, START - 1, epoch=-1))
    assert node == "n"
    assert isinstance(quota, Quota)
    assert (quota.slot, quota.whole, quota.epoch) == (START, True, 1)
    assert quota.services["front"].newcomers == {"r": 100.0 / 16}
    assert len(state.receive(1.1, report(2, START))) == 1  # and then no more


def test_a_node_that_has_heard_another_leader_goes_on_with_its_safe_shares() -> None:
    (_, ack), *quotas = central().receive(0.25, report(1, START - 1, epoch=0))
    assert isinstance(ack, Ack)
    assert not quotas  # nobody is named in the one of this slot: all of its users would ask


def test_the_quota_of_the_next_slot_comes_in_the_middle_of_each() -> None:
    state = central()
    state.receive(0.1, report(1, START - 1))
    told = []
    now = 0.1
    for _ in range(4):
        assert state.tick(now) == []
        now = state.due(now)
        told += [(now, quota.slot) for _, quota in state.tick(now)]
        state.receive(now + 0.6, report(len(told) + 1, START + len(told) - 1))
    assert told == [(0.5, START + 1), (1.5, START + 2), (2.5, START + 3), (3.5, START + 4)]


def test_a_standby_books_and_assigns_and_says_nothing() -> None:
    state = central(epoch=0)
    assert state.receive(0.1, report(1, START - 1, epoch=4)) == [
        ("n", Ack("c1", False, 0, 1, 1, 7.5, pytest.approx(START + 0.0)))
    ]
    line = {"front": {"u": {"r": Line(30.0, 5, 30, 0.0, 0.0)}}}
    state.receive(1.1, report(2, START, since=1, epoch=4)._replace(lines=line))
    assert state.receive(1.2, ask("n", 1.2, 5)) == []
    assert state.due(1.2) == state.assignment_due(1.2)
    assert state.tick(1.7) == []
    assert state.ledger.recorded("front", "u", "r") == 30.0
    shares = state.ledger.quota(START + 1, "n")["front"].users["u"]["r"]
    assert shares.safe > 0.0  # assigned in the shadow


def test_who_takes_over_tells_its_quotas_from_the_next_middle_on() -> None:
    state = central(epoch=0)
    state.receive(0.1, report(1, START - 1, epoch=4))
    state.lead(0.3, 5)
    ((_, quota),) = state.tick(0.9)
    assert (quota.epoch, quota.central) == (5, "c1")


def test_an_epoch_is_never_used_twice() -> None:
    state = central(epoch=3)
    state.follow(1.0, 7)
    assert not state.leads
    with pytest.raises(ValueError, match="epoch must be above 7, got 7"):
        state.lead(2.0, 7)
    state.lead(2.0, 8)


def test_an_ask_is_answered_at_once_and_amends() -> None:
    state = central()
    state.receive(0.1, report(1, START - 1))
    ((node, quota),) = state.receive(0.7, ask("n", 0.7, 30))
    assert (node, quota.slot, quota.whole, quota.interval) == ("n", START, False, 0.05)
    assert quota.services["front"].users["u"]["r"].granted == 30.0


def test_those_that_wait_are_served_when_it_is_their_turn() -> None:
    state = central()
    for node in ("n", "m"):
        state.receive(0.1, report(1, START - 1)._replace(node=node))
    drain(state, "m")
    ((_, quota),) = state.receive(0.2, ask("n", 0.2, 7))
    assert quota.services["front"].hints["u"].wait == pytest.approx(0.0125, abs=1e-3)
    due = state.due(0.2)
    assert due == pytest.approx(0.2125, abs=1e-3)
    assert due == state.serve_due() < state.assignment_due(0.2)
    answers: list[tuple[str, Ack | Quota]] = []
    while not answers and due < 0.3:
        due = state.due(due)
        answers += state.tick(due)
    # Half of the refill is held for the other node, which was served just now.
    assert due == pytest.approx(0.22, abs=2e-3)
    ((node, quota),) = answers
    assert node == "n"
    assert quota.services["front"].users["u"]["r"].granted == 1.0
    assert state.tick(due) == []


def test_who_follows_serves_nobody_any_more() -> None:
    state = central()
    state.receive(0.1, report(1, START - 1))
    drain(state, "n")
    state.receive(0.2, ask("n", 0.3, 1000))
    assert state.serve_due() < 1.0
    state.follow(0.22, 2)
    assert state.serve_due() == math.inf
    state.lead(0.3, 3)
    assert state.serve_due() == math.inf  # the node asks again


@pytest.mark.parametrize("skew", [-3600.0, -2.0, 0.0, 2.0, 3600.0])
def test_a_standby_keeps_the_slots_of_the_leader_whatever_its_own_clock_says(skew: float) -> None:
    state = central(wall=START + skew, epoch=0)
    for second in range(1, 20):
        # Slots end on the leader's clock at whole seconds; reports are 20 to 80 ms on their way.
        delay = report_delay("n", 1.0) + 0.02 + 0.06 * (second % 4) / 3
        told = report(second, START + second - 1, since=second - 1, epoch=4)
        state.receive(second + delay, told)
        assert state.tick(second + 0.7) == []
    state.lead(20.0, 5)
    assert state.time(20.0) == pytest.approx(START + 20.0, abs=0.05)
    ((_, quota),) = state.tick(state.due(20.0))
    assert quota.slot == START + 21


def test_a_node_that_nobody_has_told_the_time_is_no_clock() -> None:
    state = central(epoch=0)
    state.receive(1.0, report(1, START + 500, epoch=-1))
    assert state.slot(1.0) == START + 1


def test_one_node_that_is_wrong_about_the_time_moves_nobody() -> None:
    state = central(epoch=0)
    for second in range(1, 20):
        for number, node in enumerate("abc"):
            slot = START + second - 1 + (3600 if node == "b" else 0)
            told = report(second, slot, since=second - 1, epoch=4)._replace(node=node)
            state.receive(second + report_delay(node, 1.0) + 0.01 * number, told)
    assert state.time(20.0) == pytest.approx(START + 20.0, abs=0.05)


def test_a_standby_is_behind_the_leader_by_no_more_than_a_message_takes() -> None:
    state = central(wall=START - 7.0, epoch=0)
    for second in range(1, 10):
        for node in ("node-1", "node-2", "node-3"):
            told = report(second, START + second - 1, since=second - 1, epoch=4)
            state.receive(second + report_delay(node, 1.0) + 0.005, told._replace(node=node))
    assert state.time(10.0) == pytest.approx(START + 10.0, abs=0.006)


@pytest.mark.parametrize("told", [{"since": 0}, {"since": 8, "leaving": True}])
def test_a_report_that_is_sent_at_any_moment_is_no_clock(told: dict[str, Any]) -> None:
    state = central(epoch=0)
    for second in range(1, 9):
        regular = report(second, START + second - 1, since=second - 1, epoch=4)
        state.receive(second + report_delay("n", 1.0), regular)
    slot = START + 9 if "leaving" in told else START + 8
    state.receive(9.0 + 0.1 * report_delay("n", 1.0), report(9, slot, epoch=4, **told))
    assert state.time(10.0) == pytest.approx(START + 10.0, abs=0.001)


def test_a_new_leader_sends_safe_shares_at_once_and_grants_nothing_with_them() -> None:
    state = central(epoch=0)
    line = {"front": {"u": {"r": Line(30.0, 0, 30, 0.0, 0.0, 40.0, 0.0)}}}
    for second in range(1, 5):
        told = report(second, START + second - 1, since=second - 1, epoch=4)
        state.receive(second + report_delay("n", 1.0), told._replace(lines=line))
        assert state.tick(second + 0.6) == []
    state.lead(4.7, 5)
    ((_, announced),) = state.announce(4.7)
    assert not announced.whole
    assert state.due(4.7) <= 4.7
    ((node, quota),) = state.tick(4.7)
    assert (node, quota.whole, quota.epoch, quota.slot) == ("n", True, 5, START + 5)
    assert quota.services["front"].users["u"]["r"] == (40.0, 100.0)
    assert state.due(4.7) > 5.0


def test_a_central_that_has_gone_back_to_a_snapshot_says_how_far_it_is() -> None:
    state = central()
    line = {"front": {"u": {"r": Line(30.0, 0, 30, 0.0, 0.0)}}}
    state.receive(1.1, report(2, START)._replace(lines=line))
    kept = state.ledger.snapshot()
    more = {"front": {"u": {"r": Line(50.0, 0, 50, 30.0, 0.0)}}}
    state.receive(2.1, report(3, START + 1, since=2)._replace(lines=more))

    back = CentralState("c1", Ledger([entry(r=100.0)]), now=0.0, wall=float(START))
    back.ledger.restore(kept)
    back.lead(0.0, 2)
    ack = back.receive(3.1, report(4, START + 2, since=3))[0][1]
    assert isinstance(ack, Ack)
    assert ack.sequence == 2
    assert back.ledger.recorded("front", "u", "r") == 30.0
    back.receive(4.1, report(5, START + 3, since=2)._replace(lines=more))
    assert back.ledger.recorded("front", "u", "r") == 50.0


def test_its_repr_says_how_it_stands() -> None:
    assert repr(central(epoch=3)) == (
        "CentralState(c1, active, epoch=3, Ledger(services=['front'], nodes=0, cells=0))"
    )
