"""Credit: what is granted when a node asks, who waits, and what comes back."""

import math
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.quota.ledger._account import max_min
from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.messages import Ask, Line, Report, UserAsk
from tests.harness.spending_nodes import START, entry
from tests.harness.telling_nodes import NODES, T0, Cluster, Teller, cluster


def test_a_grant_leaves_the_bucket_at_once_and_a_return_gives_it_back() -> None:
    fleet = cluster()
    assert fleet.ask(T0, "a", 30) == 30.0
    assert fleet.available(T0) == 70.0
    node = fleet.nodes["a"]
    node.used["r"], node.returned["r"] = 10.0, 20.0
    fleet.ask(T0, "a")
    assert fleet.available(T0) == 90.0
    assert fleet.ledger.outstanding("front", "u", "r") == 10.0


def test_booking_moves_credit_to_the_level_and_changes_nothing_in_what_is_available() -> None:
    fleet = cluster()
    fleet.ask(T0, "a", 30)
    fleet.nodes["a"].used["r"] = 25.0
    before = fleet.available(T0)
    fleet.ledger.book(START + 1, fleet.nodes["a"].report(START))
    assert fleet.ledger.level("front", "u", "r", START) == 75.0
    assert fleet.ledger.outstanding("front", "u", "r") == 5.0
    assert fleet.available(T0) == before


def test_what_is_outstanding_counts_as_being_in_the_bucket() -> None:
    """Or a user with credit at ten nodes would have ten bursts."""
    fleet = cluster()
    for name in NODES:
        assert fleet.ask(T0, name, 10) == 10.0
    assert fleet.available(T0 + 60) == 71.0  # one request is spare: see test_turns.py
    for node in fleet.nodes.values():
        node.used["r"] = 10.0
        fleet.ledger.ask(T0 + 60, node.message(T0 + 60))
    assert fleet.available(T0 + 61) == pytest.approx(100.0, abs=0.001)


def test_the_refill_is_continuous() -> None:
    fleet = cluster()
    assert fleet.ask(T0, "a", 1000) == 100.0
    fleet.nodes["a"].used["r"] = 100.0
    fleet.ask(T0, "a")
    assert fleet.ask(T0 + 0.25, "a", 1000) == 25.0


def test_all_resources_are_granted_together_by_the_scarcest() -> None:
    ledger = Ledger([entry(r=100.0, tokens=400.0, burst_seconds=1.0)])
    fleet = Cluster(ledger, resources=("r", "tokens"))
    node = fleet.nodes["a"]
    node.costs = {"r": 1.0, "tokens": 8.0}
    assert fleet.ask(T0, "a", 80) == 50.0
    assert node.granted == {"r": 50.0, "tokens": 400.0}
    assert fleet.available(T0, "tokens") == 0.0


def test_a_node_that_does_not_know_the_resources_is_told_all_of_them() -> None:
    ledger = Ledger([entry(r=100.0, tokens=400.0, burst_seconds=1.0)])
    Cluster(ledger)
    answers = ledger.ask(T0, Ask("a", 1, T0, {"front": {"u": UserAsk(3, {})}}))
    shares = answers["a"]["front"].users["u"]
    assert {name: share.granted for name, share in shares.items()} == {"r": 3.0, "tokens": 3.0}


def test_what_is_used_beyond_the_credit_is_covered_and_a_debt() -> None:
    fleet = cluster()
    fleet.ask(T0, "a", 10)
    fleet.nodes["a"].used["r"] = 150.0
    assert fleet.ask(T0, "a", 5) == 140.0  # nothing but the cover
    assert fleet.available(T0) == -50.0
    assert fleet.nodes["a"].hint.wait == pytest.approx(0.51)


def test_a_request_that_costs_more_than_the_bucket_holds_needs_a_full_one() -> None:
    fleet = cluster(rate=10.0, burst_seconds=1.0, cost=15.0)
    assert fleet.ask(T0, "a", 2) == 15.0
    assert fleet.available(T0) == -5.0
    fleet.nodes["a"].used["r"] = 15.0
    assert fleet.ask(T0, "a", 1) == 0.0
    assert fleet.serve(T0 + 1.4) == {}
    assert fleet.serve(T0 + 1.51) == {"a": 15.0}


def test_a_limit_of_nothing_grants_nothing() -> None:
    fleet = cluster(rate=0.0)
    assert fleet.ask(T0, "a", 1) == 0.0
    assert fleet.nodes["a"].hint.wait > 60.0
    assert fleet.serve(T0 + 1000.0) == {}


def test_doubled_and_crossing_asks_are_granted_once() -> None:
    fleet = cluster()
    node = fleet.nodes["a"]
    first = node.message(T0, 10)
    fleet.hear(fleet.ledger.ask(T0, first))
    fleet.hear(fleet.ledger.ask(T0 + 0.01, first))
    assert node.granted["r"] == 10.0
    crossing = first._replace(sent=T0 + 0.02)  # the answer was on its way
    answers = fleet.ledger.ask(T0 + 0.03, crossing)
    assert answers["a"]["front"].users["u"]["r"].granted == 10.0
    fleet.nodes["a"].used["r"] = 4.0
    assert fleet.ask(T0 + 0.04, "a", 10) == 10.0


def test_an_ask_that_was_overtaken_is_ignored() -> None:
    fleet = cluster()
    node = fleet.nodes["a"]
    fleet.ask(T0, "a", 10)
    old = node.message(T0 + 0.1, 10)
    node.used["r"], node.returned["r"] = 4.0, 6.0
    fleet.ask(T0 + 0.2, "a")
    before = fleet.available(T0 + 0.2)
    assert fleet.ledger.ask(T0 + 0.2, old) == {}
    # The refill of 0.2 s found room for what was used when that was told, and for a spare request.
    assert fleet.available(T0 + 0.2) == before == 97.0


def test_a_record_that_was_forgotten_and_begun_anew_counts_from_nothing() -> None:
    fleet = cluster()
    node = fleet.nodes["a"]
    fleet.ask(T0, "a", 10)
    node.used["r"], node.returned["r"] = 7.0, 3.0
    fleet.ask(T0 + 0.2, "a")
    fleet.ledger.book(START + 1, node.report(START))
    node.granted["r"] = node.returned["r"] = node.used["r"] = 0.0
    for slot in range(START + 1, START + 40):
        fleet.ledger.assign(slot)
    fleet.ledger.book(START + 40, Report("a", 1, 2, 1, 1, START + 39, T0 + 40, {}))
    node.sequence = 2
    assert fleet.ask(T0 + 40.1, "a", 5) == 5.0
    assert fleet.available(T0 + 40.1) == 95.0
    node.used["r"] = 5.0
    fleet.ledger.book(START + 41, node.report(START + 40))
    assert fleet.ledger.recorded("front", "u", "r") == 12.0


def _stay_silent(fleet: Cluster, name: str, until: int) -> None:
    """The node reports without a word of the user, and knows that all before is booked."""
    node = fleet.nodes[name]
    for slot in range(fleet.slot + 1, until + 1):
        since, node.sequence = node.sequence, node.sequence + 1
        report = Report(name, 1, node.sequence, 1, since, slot - 1, float(slot), {})
        fleet.ledger.book(slot, report)
        fleet.ledger.assign(slot)
    fleet.slot = until


def test_a_grant_to_a_node_that_waited_until_it_was_forgotten_is_not_taken_for_booked() -> None:
    fleet = cluster(rate=1.0, burst_seconds=1.0, cost=150.0)
    node = fleet.nodes["a"]
    fleet.drain("b")
    assert fleet.ask(T0 + 0.1, "a", 1) == 0.0
    _stay_silent(fleet, "a", START + 151)
    assert fleet.serve(T0 + 151.0) == {"a": 150.0}
    node.used["r"] = 150.0
    assert fleet.ask(T0 + 151.1, "a", 1) == 0.0
    assert fleet.available(T0 + 151.1) < -100.0


def test_a_grant_on_its_way_outlasts_the_first_report_after_a_long_silence() -> None:
    fleet = cluster(rate=10.0, burst_seconds=1.0)
    node = fleet.nodes["a"]
    assert fleet.ask(T0, "a", 1) == 1.0
    node.used["r"] = 1.0
    fleet.end_slots(START + 1)
    since = node.sequence
    _stay_silent(fleet, "a", START + 59)  # it is not forgotten yet
    fleet.ask(T0 + 59.9, "a")
    _stay_silent(fleet, "a", START + 63)
    line = Line(consumed=1.0, rejected=1, requests=1, settled=1.0, held=0.0, granted=1.0)
    lines = {"front": {"u": {"r": line}}}
    old = Report("a", 1, node.sequence + 1, 1, since, START + 63, T0 + 64.1, lines)
    assert fleet.ask(T0 + 64.05, "a", 4) == 4.0
    before = fleet.available(T0 + 64.2)
    fleet.ledger.book(START + 64, old)
    assert fleet.ledger.outstanding("front", "u", "r") == 4.0
    assert fleet.available(T0 + 64.2) == before


def test_a_report_is_sent_after_the_ask_of_the_next_slot_and_does_not_take_it_back() -> None:
    """It tells of the slot before, also if it is sent later than the ask."""
    fleet = cluster(rate=10.0, burst_seconds=1.0)
    node = fleet.nodes["a"]
    fleet.ask(T0 + 0.9, "a", 8)
    node.used["r"] = 2.0
    report = node.report(START)
    node.used["r"] = 8.0
    fleet.ask(T0 + 1.05, "a")
    fleet.ledger.book(START + 1, report._replace(sent=T0 + 1.15))
    # What is used takes no room in the bucket: it goes on filling up.
    assert fleet.available(T0 + 3.0) == 10.0


def test_a_node_that_has_forgotten_the_user_is_not_told_of_its_earlier_grants() -> None:
    """Its totals begin at nothing: what it was granted before would be credit once more."""
    fleet = cluster(rate=10.0, burst_seconds=1.0)
    node = fleet.nodes["a"]
    node.costs["r"] = 1.0 + 1e-8  # what is out keeps it from being forgotten here
    assert fleet.ask(T0, "a", 5) == pytest.approx(5.0)
    node.used["r"] = 5.0
    fleet.end_slots(START + 1)
    _stay_silent(fleet, "a", START + 130)
    asks = {"front": {"u": UserAsk(1, {})}}
    for seconds in (130.5, 130.6):  # the first answer may be lost
        answers = fleet.ledger.ask(T0 + seconds, Ask("a", 1, T0 + seconds, asks))
        assert answers["a"]["front"].users["u"]["r"].granted == 1.0
    assert fleet.ledger.outstanding("front", "u", "r") == 1.0


def test_requests_that_were_booked_before_a_cell_was_forgotten_do_not_lower_the_mean_cost() -> None:
    fleet = cluster(rate=10.0, burst_seconds=1.0)
    node = fleet.nodes["a"]
    node.used["r"] = 1.0
    fleet.end_slots(START + 1)
    _stay_silent(fleet, "a", START + 80)
    line = Line(consumed=2.0, rejected=0, requests=2, settled=1.0, held=0.0)
    lines = {"front": {"u": {"r": line}}}
    report = Report("a", 1, node.sequence + 1, 1, node.sequence, START + 80, T0 + 81, lines)
    fleet.ledger.book(START + 81, report)
    answers = fleet.ledger.ask(T0 + 81.5, Ask("a", 1, T0 + 81.5, {"front": {"u": UserAsk(1, {})}}))
    assert answers["a"]["front"].users["u"]["r"].granted == 3.0  # one more, of a mean cost
    assert fleet.ledger.recorded("front", "u", "r") == 2.0


def test_a_new_boot_has_nothing_and_the_credit_of_the_old_one_is_spent() -> None:
    fleet = cluster()
    fleet.ask(T0, "a", 40)
    fleet.ledger.book(START, Report("a", 2, 1, 1, 0, START - 1, T0, {}))
    assert fleet.available(T0) == 60.0
    assert fleet.ledger.outstanding("front", "u", "r") == 0.0
    assert fleet.available(T0 + 0.25) == 85.0


def test_a_node_that_leaves_gives_its_credit_back() -> None:
    fleet = cluster()
    fleet.ask(T0, "a", 40)
    fleet.nodes["a"].used["r"] = 15.0
    fleet.ledger.book(START, fleet.nodes["a"].report(START - 1, leaving=True))
    assert fleet.available(T0) == 85.0


def test_a_ledger_that_booked_only_reports_goes_on_exactly() -> None:
    ledgers = [Ledger([entry(r=100.0, burst_seconds=2.0)]) for _ in range(2)]
    leading, standby = (Cluster(ledger) for ledger in ledgers)
    for slot in range(START, START + 5):
        for name in NODES:
            leading.ask(slot + 0.1, name, 20)
            node = leading.nodes[name]
            node.used["r"] += min(15.0, node.credit())
            node.returned["r"] += max(0.0, node.credit() - 1.0)
            leading.ask(slot + 0.9, name)
        for name in NODES:
            report = leading.nodes[name].report(slot)
            for ledger in ledgers:
                ledger.book(slot + 1, report)
        for ledger in ledgers:
            ledger.assign(slot + 1)
        # But for the spare request, which only asks make room for.
        assert standby.available(slot + 1.6) == pytest.approx(leading.available(slot + 1.6) - 1.0)
    taken_over = Cluster.__new__(Cluster)
    taken_over.ledger, taken_over.nodes = ledgers[1], leading.nodes
    before = standby.available(START + 5.7)
    assert taken_over.ask(START + 5.7, "a", 10) == 10.0
    assert taken_over.available(START + 5.7) == pytest.approx(before - 10.0)


def test_a_restart_from_a_snapshot_keeps_level_and_credit() -> None:
    fleet = cluster(burst_seconds=2.0)
    fleet.ask(T0, "a", 80)
    fleet.nodes["a"].used["r"] = 50.0
    fleet.ledger.book(START + 1, fleet.nodes["a"].report(START))
    fleet.ledger.assign(START + 1)
    back = Ledger([entry(r=100.0, burst_seconds=2.0)])
    back.restore(fleet.ledger.snapshot())
    assert (
        back.outstanding("front", "u", "r") == fleet.ledger.outstanding("front", "u", "r") == 30.0
    )
    assert back.available("front", "u", "r", T0 + 1.5) == fleet.available(T0 + 1.5)


def test_nodes_ask_less_often_when_there_are_many() -> None:
    ledger = Ledger([entry()])
    assert ledger.interval == 0.05
    for number in range(300):
        ledger.book(START, Report(f"n{number}", 1, 1, 1, 0, START - 1, 0.0, {}))
    assert ledger.interval == 0.2


# What must always hold


@given(
    st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=3),
    st.lists(st.floats(0.1, 50.0), min_size=3, max_size=3),
    st.lists(
        st.tuples(st.integers(1, 300), st.lists(st.floats(1.0, 1.9), min_size=3, max_size=3)),
        min_size=1,
        max_size=8,
    ),
)
def test_shares_are_max_min_fair_in_whole_requests(
    available: list[float], least: list[float], waiters: list[tuple[int, list[float]]]
) -> None:
    """No request costs twice as much as another: larger ones are passed."""
    count = len(available)
    rows = [
        (float(requests), [least[r] * factors[r] for r in range(count)])
        for requests, factors in waiters
    ]
    given = max_min(available, [math.inf] * count, rows)
    left = [
        available[r] - sum(amount * row[1][r] for amount, row in zip(given, rows, strict=True))
        for r in range(count)
    ]
    assert min(left) >= -1e-3
    unmet = []
    for amount, (requests, costs) in zip(given, rows, strict=True):
        assert amount == int(amount) <= requests
        if amount < requests:
            assert amount >= max(given) - 1.0  # nobody could have more but from one with less
            unmet.append((amount, costs))
    if unmet:  # the next one in turn could not have one more
        _, costs = min(unmet, key=itemgetter(0))
        assert any(a < c + 1e-3 for a, c in zip(left, costs, strict=True))


@pytest.mark.parametrize(
    ("waiters", "given"),
    [
        ([(1, [400.0]), (50, [1.0])], [0.0, 50.0]),  # a small request passes a large one
        ([(50, [1.0]), (1, [400.0])], [50.0, 0.0]),
        ([(1, [400.0]), (50, [1.0]), (50, [1.0])], [0.0, 50.0, 50.0]),
        ([(1, [100.1]), (1, [90.0])], [0.0, 0.0]),  # one that is nearly as large does not
        ([(1, [90.0]), (1, [100.1])], [1.0, 0.0]),
        ([(1, [60.0]), (10, [1.0])], [1.0, 10.0]),
    ],
)
def test_requests_pass_larger_ones_that_there_is_not_enough_for(
    waiters: list[tuple[float, list[float]]], given: list[float]
) -> None:
    assert max_min([100.0], [1000.0], waiters) == given


class Reference:
    """One exact bucket of each resource, charged for what is granted and given back by returns."""

    def __init__(self, rates: dict[str, float], burst: float) -> None:
        self.rates = rates
        self.consumed = dict.fromkeys(rates, 0.0)
        self.most = {name: rate * burst for name, rate in rates.items()}

    def bound(self, name: str, seconds: float) -> float:
        """The most that may be consumed in all, `seconds` after the begin."""
        return self.most[name] + self.rates[name] * seconds


MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["ask", "use", "return", "report", "serve", "assign"]),
        st.sampled_from(NODES),
        st.integers(0, 60),
        st.sampled_from(["heard", "lost", "doubled", "late"]),
        st.floats(0.0, 0.2),
    ),
    max_size=120,
)


@given(MESSAGES, st.booleans())
def test_whatever_is_lost_or_doubled_nothing_is_granted_that_was_not_there(
    steps: list[tuple[str, str, int, str, float]], is_scarce: bool
) -> None:
    rates = {"r": 20.0, "tokens": 50.0 if is_scarce else 200.0}
    burst = 1.0
    ledger = Ledger([entry(burst_seconds=burst, **rates)])
    fleet = Cluster(ledger, resources=tuple(rates))
    reference = Reference(rates, burst)
    for node in fleet.nodes.values():
        node.costs = {"r": 1.0, "tokens": 8.0}
    time, slot = T0, START
    late: list[tuple[Teller, dict]] = []
    for kind, name, amount, fate, passed in steps:
        time += passed
        node = fleet.nodes[name]
        before = {each: ledger.available("front", "u", each, time) for each in rates}
        answers: dict = {}
        if kind == "ask":
            message = node.message(time, amount)
            if fate != "lost" or amount % 2:  # the ask itself is lost, or its answer
                answers = ledger.ask(time, message)
                if fate == "doubled":
                    fleet.hear(answers)
                    answers = ledger.ask(time, message)
        elif kind == "use":
            requests = min(
                float(amount), *(node.credit(each) // node.costs[each] for each in rates)
            )
            for each in rates:
                node.used[each] += requests * node.costs[each]
        elif kind == "return":
            for each in rates:
                node.returned[each] += node.credit(each) * (amount % 3) / 2
        elif kind == "serve":
            answers = ledger.serve(time)
        if fate == "late":
            late.append((node, answers))
        elif fate != "lost":
            fleet.hear(answers)
            for _, old in late:
                fleet.hear(old)
            late.clear()
        while slot < math.floor(time):
            slot += 1
            for each in fleet.nodes.values():  # all nodes must be live
                ledger.book(slot, each.report(slot - 1))
            ledger.assign(slot)
        for each in rates:
            available = ledger.available("front", "u", each, time)
            if available is None:
                continue
            used = sum(one.used[each] for one in fleet.nodes.values())
            spare = min(fleet.nodes["a"].costs[each], 0.4 * rates[each])
            assert used <= reference.bound(each, time - T0) + spare + 1e-3
            if before[each] is not None and available < before[each] - 1e-6:
                assert available >= -1e-3  # by a grant, and never below nothing
            assert available <= reference.most[each] + spare + 1e-6
            level = ledger.level("front", "u", each, time)
            outstanding = ledger.outstanding("front", "u", each)
            assert level - outstanding == pytest.approx(available)
    for node in fleet.nodes.values():
        fleet.hear(ledger.ask(time, node.message(time)))
    for each in rates:
        held = sum(
            one.granted[each] - one.returned[each] - one.used[each] for one in fleet.nodes.values()
        )
        told = sum(one.used[each] for one in fleet.nodes.values())
        booked = ledger.recorded("front", "u", each)
        # Nothing is lost: what nodes hold, and what they used and have not reported.
        assert ledger.outstanding("front", "u", each) >= held + told - booked - 1e-3


@pytest.mark.parametrize(("rate", "saved"), [(1.0, 0.6), (50.0, 30.0), (1000.0, 600.0)])
def test_a_changed_limit_scales_what_is_saved_and_not_what_nodes_hold(
    rate: float, saved: float
) -> None:
    """40 of the bucket's 100 are at a node: 25 are used and 15 are not."""
    fleet = cluster()
    fleet.ask(T0, "a", 40)
    fleet.nodes["a"].used["r"] = 25.0
    fleet.ask(T0, "a")
    assert fleet.available(T0) == 60.0
    fleet.ledger.set_limits([entry(r=rate, burst_seconds=1.0)])
    fleet.ledger.assign(START + 1)
    assert fleet.available(T0) == pytest.approx(saved, abs=1.01 * rate)
    # What was out when the limit was lowered is not taken from the new bucket.
    fleet.nodes["a"].used["r"] = 40.0
    fleet.ask(T0 + 2, "a")
    fleet.ledger.book(START + 3, fleet.nodes["a"].report(START + 2))
    assert fleet.available(T0 + 4) == pytest.approx(rate, abs=0.01)
