"""An assignment in parts: whatever comes between two of them came before it or after it."""

import pytest

from sluicegate.quota import Entry, Ledger
from sluicegate.quota.central.state import CentralState
from sluicegate.quota.messages import Ask, Line, Quota, Report, UserAsk
from tests.harness.spending_nodes import START

USERS = [f"user-{number}" for number in range(20)]


def ledger_with_traffic() -> Ledger:
    rates = {"requests": 100.0, "traffic_up": 1000.0}
    ledger = Ledger([Entry("front", "*", rates=rates, burst_seconds=10.0)])
    for node in ("node-1", "node-2"):
        ledger.book(START, report(node, 1, START - 1, 10.0))
    ledger.assign(START)
    ledger.book(START + 1, report("node-1", 2, START, 40.0))
    return ledger


def report(node: str, sequence: int, slot: int, consumed: float) -> Report:
    line = Line(consumed, 0, int(consumed), 0.0, 0.0)
    users = {user: {"requests": line, "traffic_up": line} for user in USERS}
    return Report(node, 1, sequence, 1, sequence - 1, slot, 0.5, {"front": users})


def shares(ledger: Ledger, user: str, resource: str) -> list[float]:
    return [
        ledger.quota(START + 1, node)["front"].users[user][resource].safe
        for node in ("node-1", "node-2")
    ]


@pytest.mark.parametrize("parts", [1, 3, 17, 39])
def test_a_report_between_two_parts_is_for_each_bucket_before_or_after(parts: int) -> None:
    before, after, between = (ledger_with_traffic() for _ in range(3))
    late = report("node-2", 2, START, 60.0)
    before.book(START + 1, late)
    before.assign(START + 1)
    after.assign(START + 1)
    after.book(START + 1, late)
    assigning = between.assigning(START + 1, cells=1)
    for _ in range(parts):
        next(assigning)
    between.book(START + 1, late)
    for _ in assigning:
        pass
    kinds = set()
    for user in USERS:
        for resource in ("requests", "traffic_up"):
            given = shares(between, user, resource)
            kinds.add(given == shares(before, user, resource))
            assert given in (shares(before, user, resource), shares(after, user, resource))
            for ledger in (before, after, between):
                level = ledger.level("front", user, resource, START + 1)
                assert level == between.level("front", user, resource, START + 1)
    assert kinds == {True, False}  # some of them before, some after


def test_who_asks_between_two_parts_gets_what_is_free_once() -> None:
    for parts in range(1, 45):
        ledger = ledger_with_traffic()
        ledger.book(START + 1, Report("node-3", 1, 1, 1, 0, START, 0.5, {}))
        assigning = ledger.assigning(START + 1, cells=1)
        going_on = True
        for _ in range(parts):
            going_on = going_on and next(assigning, True) is None
        users = {"front": {"user-9": UserAsk(500, {})}}
        answer = ledger.ask(START + 1.5, Ask("node-3", 1, 0.5, users))
        for _ in assigning:
            pass
        shares = answer["node-3"]["front"].users["user-9"]
        assert set(shares) == {"requests", "traffic_up"}, parts
        for resource in ("requests", "traffic_up"):
            available = ledger.available("front", "user-9", resource, START + 1.5)
            assert available is not None
            assert available >= 0.0  # what is granted was in the bucket before


def test_a_node_that_comes_between_two_parts_is_told_a_whole_quota() -> None:
    ledger = ledger_with_traffic()
    assigning = ledger.assigning(START + 1, cells=1)
    next(assigning)
    for number in range(40):
        ledger.book(START + 1, report(f"new-{number}", 1, START, 1.0))
    for _ in assigning:
        pass
    assert len(ledger.quota(START + 1, "new-39")["front"].users) >= len(USERS) - 2


def test_the_next_assignment_brings_the_one_that_is_going_on_to_its_end() -> None:
    one, other = ledger_with_traffic(), ledger_with_traffic()
    next(one.assigning(START + 1, cells=1))
    one.assign(START + 2)
    other.assign(START + 1)
    other.assign(START + 2)
    assert one.snapshot() == other.snapshot()


def test_a_clock_that_goes_back_ends_it() -> None:
    ledger = ledger_with_traffic()
    assigning = ledger.assigning(START + 1, cells=1)
    next(assigning)
    ledger.begin(START - 100)
    assert list(assigning) == []
    ledger.assign(START - 100)
    assert ledger.quota(START - 100, "node-1")["front"].users


def test_a_central_ticks_in_parts_and_is_due_at_once_until_it_has_told_all() -> None:
    ledger = Ledger([Entry("front", "*", rates={"requests": 100.0})])
    state = CentralState("central", ledger, now=0.0, wall=float(START))
    state.lead(0.0, 1)
    for number in range(50):
        state.receive(0.1, report(f"node-{number}", 1, START - 1, 5.0))
    assert state.due(0.1) == pytest.approx(0.5)
    told: list[tuple[str, Quota]] = []
    now = 0.5
    ticks = 0
    while state.due(now) <= now:
        told += state.tick_some(now)
        now += 0.001
        ticks += 1
    assert sorted(node for node, _ in told) == sorted(f"node-{number}" for number in range(50))
    assert ticks > 2
    assert told[-1][1].time > told[0][1].time
    assert all(quota.slot == START + 1 and quota.whole for _, quota in told)


def test_an_assignment_that_breaks_off_is_not_the_end_of_all() -> None:
    """Not an error of the rule, which is caught, but what may come at any instruction."""
    breaks = [KeyboardInterrupt]

    def rule(*_: object) -> list[float]:
        if breaks:
            raise breaks.pop()
        return [40.0]

    ledger = Ledger([Entry("front", "*", rates={"requests": 100.0})], assignment=rule)
    line = Line(10.0, 0, 10, 0.0, 0.0)
    ledger.book(
        START, Report("n", 1, 1, 1, 0, START - 1, 0.5, {"front": {"ann": {"requests": line}}})
    )
    with pytest.raises(KeyboardInterrupt):
        ledger.assign(START)
    ledger.assign(START + 1)
    assert ledger.errors == {}
    assert ledger.quota(START + 1, "n")["front"].users["ann"]["requests"].safe == 100.0


def test_limits_that_change_are_brought_into_the_buckets_in_parts() -> None:
    users = {f"u{n}": {"r": Line(3.0, 0, 3, 0.0, 0.0)} for n in range(9000)}
    ledgers = [Ledger([Entry("front", "*", rates={"r": 10.0})]) for _ in range(3)]
    for ledger in ledgers:
        ledger.book(START, Report("n", 1, 1, -1, 0, START - 1, 0.0, {"front": users}))
        ledger.assign(START)
        ledger.set_limits([Entry("front", "*", rates={"r": 40.0}, burst_seconds=5.0)])
    at_once, in_parts, set_back = ledgers
    at_once.assign(START + 1)
    parts = in_parts.assigning(START + 1)
    next(parts)
    assert in_parts.level("front", "u0", "r", START + 1) != in_parts.level(
        "front", "u8999", "r", START + 1
    )
    assert len(list(parts)) >= 1
    assert in_parts.quota(START + 1, "n") == at_once.quota(START + 1, "n")
    # A clock that goes back ends an assignment, but not the change of the limits.
    next(set_back.assigning(START + 1))
    set_back.begin(START - 100)
    levels = {set_back.level("front", user, "r", START - 100) for user in users}
    assert len(levels) == 1
