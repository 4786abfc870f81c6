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


@pytest.mark.parametrize("heard_first", [("a", "b"), ("b", "a"), ("a",), ("b",)])
def test_what_nodes_used_while_a_standby_did_not_hear_them_is_no_debt(
    heard_first: tuple[str, ...],
) -> None:
    state = standby()
    follow(state, range(10))
    for slot in range(10, 15):
        state.tick(slot + 1.6)
    for node in heard_first:
        report(state, node, 15, used_by(15), sequence=11)
    state.tick(16.6)
    for node in NODES:
        since = 11 if node in heard_first else 10
        report(state, node, 16, used_by(16), sequence=12, since=since)
    state.tick(17.6)
    follow(state, range(17, 18), first=12)
    state.lead(18.1, 2)
    for node in NODES:
        ask(state, node, 18.25, used_by(17) + 12.5)
    assert -0.1 * RATE <= available(state, 18.25) <= BURST


@pytest.mark.parametrize("begun", [0.0, 0.3, 0.6, 0.9])
def test_refill_that_the_leader_had_no_room_for_is_no_gift(begun: float) -> None:
    # The bucket is full. In slot 5 the user begins to ask for three times the limit.
    state = standby(burst_seconds=1.0)
    for slot in range(12):
        used = RATE + RATE * (slot - 5 + 1.0 - begun) if slot >= 5 else 0.0
        for node in NODES:
            rejected = max(0, 100 * (slot - 5))
            report(state, node, slot, used / 2, sequence=slot + 1, rejected=rejected)
        state.tick(slot + 1.6)
    state.lead(12.5, 2)
    for node in NODES:
        ask(state, node, 12.51, used / 2 + 25.0)
    assert available(state, 12.51) == pytest.approx(0.0, abs=0.1 * RATE)


def test_what_was_saved_while_nobody_led_is_there() -> None:
    # Slots 10 and 11 had no leader, and half of the refill was used.
    state = standby(burst_seconds=10.0)
    follow(state, range(10))
    for slot in (10, 11):
        for node in NODES:
            total = used_by(9) + 25.0 * (slot - 9)
            report(state, node, slot, total, sequence=slot + 1, granted=used_by(9))
        state.tick(slot + 1.6)
    before = available(state, 12.0)
    state.lead(12.3, 2)
    for node in NODES:
        ask(state, node, 12.31, used_by(9) + 50.0)
    assert available(state, 12.31) >= before


def test_a_user_that_has_moved_is_not_short_of_what_is_kept_where_it_was() -> None:
    state = standby(burst_seconds=1.0)
    totals = dict.fromkeys(NODES, 0.0)
    for slot in range(12):
        here, left = ("a", "b") if slot < 10 else ("b", "a")
        totals[here] += RATE
        report(state, here, slot, totals[here], sequence=slot + 1, rejected=9 * slot)
        sent = slot + 1 + report_delay(left, 1.0)
        state.receive(sent, Report(left, 1, slot + 1, 1, slot, START + slot, sent, {}))
        state.tick(slot + 1.6)
    state.lead(12.4, 2)
    ask(state, "b", 12.41, totals["b"])
    for now in (12.6, 12.9):
        assert available(state, now) >= 0.8 * RATE * (now - 12.0)
