"""A standby takes over: what nodes have spent since their last reports is no debt, nor a gift."""

import pytest

from sluicegate.quota.central.state import CentralState
from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.ledger.limit_entry import Entry
from sluicegate.quota.messages import Ask, Credit, Line, Report, UserAsk
from sluicegate.quota.stable_hash import report_delay

START = 1_800_000_000
RATE = 100.0
BURST = 0.25 * RATE
NODES = ("a", "b")


def standby(burst_seconds: float = 0.25) -> CentralState:
    entry = Entry("front", "*", rates={"r": RATE}, burst_seconds=burst_seconds)
    return CentralState("c2", Ledger([entry]), now=0.0, wall=float(START))


def report(
    state: CentralState,
    node: str,
    slot: int,
    total: float,
    *,
    sequence: int,
    since: int | None = None,
    granted: float | None = None,
    rejected: int = 9,
) -> None:
    """A node reports in the slot after `slot`; it has used all that the leader has granted it."""
    granted = total if granted is None else granted
    line = Line(total, rejected, int(total), 0.0, 0.0, granted, 0.0)
    lines = {"front": {"u": {"r": line}}}
    sent = slot + 1 + report_delay(node, 1.0)
    since = sequence - 1 if since is None else since
    state.receive(sent, Report(node, 1, sequence, 1, since, START + slot, sent, lines))


def used_by(slot: int) -> float:
    """What a node has used by the end of a slot: first the burst, then half of the limit."""
    return 0.0 if slot < 3 else 0.5 * BURST + 50.0 * (slot - 2)


def follow(state: CentralState, slots: range, first: int = 0) -> None:
    """Both nodes ask for more than they get, and report what they have used."""
    for number, slot in enumerate(slots, 1):
        for node in NODES:
            report(state, node, slot, used_by(slot), sequence=first + number)
        state.tick(slot + 1.6)


def ask(state: CentralState, node: str, now: float, used: float) -> None:
    credit = {"r": Credit(used, 0.0, used, 1.0)}
    state.receive(now, Ask(node, 1, now, {"front": {"u": UserAsk(0, credit)}}))


def available(state: CentralState, now: float) -> float:
    found = state.ledger.available("front", "u", "r", START + now)
    assert found is not None
    return found


@pytest.mark.parametrize("phase", [0.1, 0.3, 0.5, 0.7, 0.95])
def test_what_nodes_used_under_the_last_leader_is_no_debt(phase: float) -> None:
    state = standby()
    follow(state, range(10))
    now = 10.0 + phase
    state.lead(now, 2)
    assert available(state, now) <= BURST
    for node in NODES:
        ask(state, node, now + 0.01, used_by(9) + 50.0 * phase)
        # Of one that has not asked yet it is taken that it lives on its safe share.
        assert available(state, now + 0.01) <= BURST
    assert available(state, now + 0.01) == pytest.approx(0.0, abs=0.1 * BURST)


def test_what_a_node_has_not_told_yet_is_given_to_nobody_else() -> None:
    state = standby()
    follow(state, range(10))
    state.lead(10.9, 2)
    ask(state, "a", 10.91, used_by(9) + 45.0)
    assert available(state, 10.91) <= 0.5 * BURST


def test_what_nodes_used_while_a_standby_did_not_hear_them_is_no_debt() -> None:
    state = standby()
    follow(state, range(10))
    for slot in range(10, 15):
        state.tick(slot + 1.6)
    for node in NODES:
        report(state, node, 15, used_by(15), sequence=11)
    state.tick(16.6)
    follow(state, range(16, 18), first=11)
    state.lead(18.1, 2)
    for node in NODES:
        ask(state, node, 18.12, used_by(17) + 5.0)
    assert -0.5 * RATE <= available(state, 18.12) <= BURST
