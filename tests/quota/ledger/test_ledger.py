"""The ledger: what is booked, what is promised, what is forgotten. Slots are numbers, no time."""

import logging
import math
import os
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.errors import ProtocolError
from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.ledger.service import BucketService
from sluicegate.quota.messages import Ask, Line, Report, Share, UserAsk
from tests.harness.spending_nodes import START, Fleet, entry


def report(
    node: str, sequence: int, slot: int, *, boot: int = 1, service: str = "front", **lines: Line
) -> Report:
    users = {user: {"r": line} for user, line in lines.items()}
    return Report(node, boot, sequence, 1, 0, slot, 0.0, {service: users} if users else {})


def line(consumed: float, *, rejected: int = 0, settled: float = 0.0, held: float = 0.0) -> Line:
    requests = int(consumed) if math.isfinite(consumed) else 0
    return Line(consumed, rejected, requests, settled, held)


def asking(node: str, sent: float, requests: int = 1, **services: str) -> Ask:
    """An ask for a user of each service, of whom the node knows nothing yet."""
    users = {name: {user: UserAsk(requests, {})} for name, user in services.items()}
    return Ask(node, 1, sent, users)


# Giving out


@pytest.mark.parametrize("overload", [1.5, 3.0, 10.0])
def test_under_overload_every_slot_admits_the_limit(overload: float) -> None:
    fleet = Fleet(Ledger([entry(r=1000.0)]), 10)
    fleet.run(12, overload * 1000.0)
    admitted = fleet.run(50, overload * 1000.0)
    assert sum(admitted) == pytest.approx(50_000.0, abs=20.0)
    assert min(admitted) >= 950.0


def test_the_classic_rule_gives_classic_nodes_the_whole_bucket_in_every_slot() -> None:
    ledger = Ledger([entry(r=1000.0)], assignment="classic")
    nodes = [f"node-{i}" for i in range(10)]
    quota: dict[tuple[str, int], float] = {}
    admitted = []
    last = dict.fromkeys(nodes, 0.0)
    for slot in range(START, START + 72):
        for node in nodes:
            counted = {"front": {"u": {"r": last[node]}}}, {"front": {"u": {"r": 300 - last[node]}}}
            ledger.book_classic(slot, node, slot, *counted)
            shares = ledger.quota(slot, node)["front"].users.get("u", {})
            quota[node, slot + 1] = shares.get("r", Share(0.0, 0.0)).granted
        last = {node: min(300.0, quota.get((node, slot), 0.0)) for node in nodes}
        admitted.append(sum(last.values()))
        ledger.assign(slot)
    assert max(admitted[12:]) >= 1500.0
    assert sum(amount == 0.0 for amount in admitted[12:]) >= 10


@given(st.lists(st.lists(st.integers(0, 400), min_size=4, max_size=4), min_size=8, max_size=40))
def test_credit_never_exceeds_what_is_there(demands: list[list[int]]) -> None:
    ledger = Ledger([entry(r=100.0, burst_seconds=3.0)])
    fleet = Fleet(ledger, 4)
    for demand in demands:
        fleet.step(dict(zip(fleet.names, map(float, demand), strict=True)))
        level = ledger.level("front", "u", "r", fleet.slot)
        if level is not None:
            assert ledger.outstanding("front", "u", "r") <= level + 1e-3


def test_idle_nodes_have_a_little_safe_share() -> None:
    fleet = Fleet(Ledger([entry(r=1000.0)]), 10)
    everyone = dict.fromkeys(fleet.names, 300.0)
    few = {name: 600.0 if int(name[5:]) < 5 else 0.0 for name in fleet.names}
    for demand in [everyone] * 5 + [few] * 10:
        fleet.step(demand)
    safe = [fleet.safe(name) for name in fleet.names]
    assert sum(safe) == pytest.approx(1000.0, rel=0.01)  # rounded down to two digits
    assert 0.01 * 1000 <= sum(safe[5:]) <= 0.12 * 1000


@pytest.mark.no_cover
@pytest.mark.parametrize(("nodes", "slots"), [(20, 400), (7, 210)])
def test_a_limit_of_one_goes_round_between_the_nodes(nodes: int, slots: int) -> None:
    fleet = Fleet(Ledger([entry(r=1.0)]), nodes)
    fleet.run(2 * nodes, 2.0 * nodes)
    turns: Counter[str] = Counter()
    for _ in range(slots):
        admitted = fleet.step(dict.fromkeys(fleet.names, 2.0))
        turns.update(name for name, amount in admitted.items() if amount)
    assert sum(turns.values()) == pytest.approx(slots, abs=2)
    assert set(turns) == set(fleet.names)
    assert max(turns.values()) - min(turns.values()) <= 2


@pytest.mark.no_cover  # ten minutes on 64 nodes, and half an hour in the soak
def test_a_limit_of_one_per_minute_lets_one_through_per_minute() -> None:
    minutes = 30 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 10
    fleet = Fleet(Ledger([entry(r=1 / 60)]), 64)
    fleet.run(120, 64.0)
    admitted = fleet.run(60 * minutes, 64.0)
    assert abs(sum(admitted) - minutes) <= 1.0
    assert max(sum(admitted[i : i + 60]) for i in range(60 * (minutes - 1))) <= 2.0


def test_a_limit_of_nothing_gives_nothing() -> None:
    fleet = Fleet(Ledger([entry(r=0.0)]), 3)
    assert sum(fleet.run(20, 30.0)) == 0.0


def test_what_running_requests_will_cost_is_not_granted_again() -> None:
    ledger = Ledger([entry(r=100.0, burst_seconds=1.0)])
    fleet = Fleet(ledger, 1)
    ledger.book(START, fleet.report("node-0"))
    fleet.slot += 1
    ledger.book(START + 1, fleet.report("node-0", held=60.0))
    assert ledger.available("front", "u", "r", START + 0.0) == 40.0
    assert ledger.available("front", "u", "r", START + 2.0) == 100.0


def test_the_others_have_all_of_the_limit_while_a_node_is_silent() -> None:
    fleet = Fleet(Ledger([entry(r=1000.0)]), 10)
    fleet.run(20, 3000.0)
    demand = dict.fromkeys(fleet.names, 300.0)
    admitted = [sum(fleet.step(demand, silent=("node-9",)).values()) for _ in range(8)]
    assert min(admitted) >= 950.0


def test_a_node_that_says_good_bye_loses_it_at_once() -> None:
    ledger = Ledger([entry(r=1000.0)])
    fleet = Fleet(ledger, 10)
    fleet.run(20, 3000.0)
    ledger.book(fleet.slot, fleet.report("node-9")._replace(leaving=True))
    assert "node-9" not in ledger.live_nodes(fleet.slot)
    demand = dict.fromkeys(fleet.names, 300.0)
    fleet.step(demand, silent=("node-9",))
    assert sum(fleet.step(demand, silent=("node-9",)).values()) >= 990.0


def test_what_a_silent_node_holds_does_not_narrow_a_bucket_that_holds_little() -> None:
    """It did: the others had two thirds of the limit until the node was forgotten."""
    fleet = Fleet(Ledger([entry(r=1000.0, burst_seconds=0.0)]), 4)
    fleet.run(12, 3000.0)
    demand = dict.fromkeys(fleet.names, 750.0)
    admitted = [sum(fleet.step(demand, silent=("node-3",)).values()) for _ in range(10)]
    assert min(admitted[4:]) >= 990.0, admitted


def test_late_reports_that_come_one_by_one_get_the_refill_of_their_time() -> None:
    """They did not, unlike one for all: after a cut cable came seconds of nothing."""
    ledger = Ledger([entry(r=100.0, burst_seconds=0.0)])
    ledger.book(START, report("n", 1, START - 1))
    for slot in range(START + 1, START + 5):
        ledger.book(slot, report("n", slot - START + 1, slot - 1, u=line(100.0 * (slot - START))))
        ledger.assign(slot)
    for slot in range(START + 5, START + 15):  # it goes on, unheard
        ledger.assign(slot)
    for slot in range(START + 5, START + 16):
        late = report("n", slot - START + 1, slot - 1, u=line(100.0 * (slot - START)))
        ledger.book(START + 15, late)
    ledger.assign(START + 15)
    assert ledger.recorded("front", "u", "r") == 1500.0
    assert ledger.level("front", "u", "r", START + 15) >= -100.0


def test_a_late_report_is_set_against_the_refill_of_its_own_time() -> None:
    """Half a minute without reports fills the bucket in the books only: the nodes went on."""
    ledger = Ledger([entry(r=100.0, burst_seconds=10.0)])
    fleet = Fleet(ledger, 5)
    fleet.run(20, 300.0)
    for name in fleet.names:
        fleet.consumed[name] += 600.0  # 20 per slot on each of five nodes: the limit, for 30 slots
    fleet.slot += 30
    ledger.assign(fleet.slot - 1)
    for name in fleet.names:
        ledger.book(fleet.slot, fleet.report(name))
    level = ledger.level("front", "u", "r", fleet.slot)
    assert level is not None
    assert -100.0 <= level <= 300.0


# Asking


def test_a_node_that_asks_is_granted_what_it_wants_of_what_is_there() -> None:
    ledger = Ledger([entry(r=100.0)])
    for slot in range(START, START + 21):
        ledger.book(slot, report("n", slot, slot - 1))
        ledger.assign(slot)
    answer = ledger.ask(START + 20.0, asking("n", 1.0, 700, front="u"))
    assert answer["n"]["front"].users["u"]["r"] == Share(700.0, 100.0)
    assert ledger.ask(START + 20.0, asking("n", 2.0, 700, front="u")) == answer


def test_a_user_without_a_limit_is_free() -> None:
    ledger = Ledger([entry("someone", r=1.0)])
    ledger.book(START, report("n", 1, START - 1))
    answer = ledger.ask(START + 0.5, asking("n", 1.0, front="u", other="v"))["n"]
    assert answer["front"].users == {"u": {}}
    assert answer["other"].users == {"v": {}}


def test_a_node_nobody_has_heard_of_is_not_answered() -> None:
    ledger = Ledger([entry()])
    assert ledger.ask(START + 0.5, asking("n", 1.0, front="u")) == {}


def test_newcomers_have_a_nodes_part_of_what_everyone_has() -> None:
    ledger = Ledger([entry("*", r=100.0), entry("big", r=5000.0)])
    newcomers = []
    for slot in range(START, START + 4):
        for node in "abcd":
            ledger.book(slot, report(node, slot, slot - 1))
        ledger.assign(slot)
        newcomers.append(ledger.quota(slot, "a")["front"].newcomers["r"])
    assert newcomers == [6.25, 6.25, 25.0, 25.0]  # at first, how many nodes there are is a guess


# Booking


@given(st.data())
def test_lost_doubled_late_and_reordered_reports_are_booked_once(data: st.DataObject) -> None:
    """All totals are cumulative, so whatever arrives, the newest tells everything."""
    ledger = Ledger([entry()])
    amounts = data.draw(st.lists(st.integers(0, 100), min_size=1, max_size=20))
    reports, total = [], 0.0
    for sequence, amount in enumerate(amounts, 1):
        total += amount
        reports.append(report("n", sequence, START + sequence, u=line(total)))
    arriving = data.draw(
        st.lists(st.sampled_from(range(len(reports))), max_size=60), label="arriving"
    )
    highest = -1
    for at, which in enumerate([*arriving, len(reports) - 1]):
        booked = ledger.book(START + at + 1, reports[which])
        assert booked == (which > highest)
        highest = max(highest, which)
        assert ledger.recorded("front", "u", "r") == sum(amounts[: highest + 1])
    assert ledger.recorded("front", "u", "r") == total


def test_a_node_that_lost_its_counters_begins_again() -> None:
    ledger = Ledger([entry()])
    ledger.book(START, report("n", 9, START - 1, u=line(50.0)))
    ledger.book(START + 1, report("n", 1, START, boot=2, u=line(30.0)))
    assert ledger.recorded("front", "u", "r") == 80.0
    assert not ledger.book(START + 1, report("n", 10, START, u=line(60.0)))
    assert ledger.recorded("front", "u", "r") == 80.0


def test_a_life_that_began_while_we_were_away_is_booked_as_a_whole() -> None:
    ledger = Ledger([entry()])
    ledger.book(START, report("n", 9, START - 1, u=line(50.0)))
    ledger.book(START + 9, report("n", 8, START + 8, boot=2, u=line(30.0, settled=25.0)))
    assert ledger.recorded("front", "u", "r") == 80.0


def test_a_central_that_knows_nothing_books_what_no_leader_has_acknowledged() -> None:
    ledger = Ledger([entry()])
    ledger.book(START, report("n", 500, START - 1, u=line(9000.0, settled=8990.0)))
    assert ledger.recorded("front", "u", "r") == 10.0


def test_what_was_silent_for_a_minute_is_taken_as_unknown() -> None:
    ledger = Ledger([entry()])
    ledger.book(START, report("n", 1, START - 1, u=line(100.0)))
    for slot in range(START + 1, START + 150):
        ledger.book(slot, report("n", slot - START + 1, slot - 1))
        ledger.assign(slot)
    assert ledger.cells == 0
    ledger.book(START + 150, report("n", 151, START + 149, u=line(7.0)))  # totals begun anew
    assert ledger.consumption_sum(START + 149) == {"front": {"u": {"r": 7.0}}}


def test_a_level_goes_below_zero_and_nothing_is_given_until_the_debt_is_paid() -> None:
    ledger = Ledger([entry(r=100.0, burst_seconds=0.0)])
    fleet = Fleet(ledger, 1)
    fleet.run(10, 300.0)
    fleet.consumed["node-0"] += 1000.0
    admitted = [fleet.step({"node-0": 300.0})["node-0"] for _ in range(16)]
    assert sum(admitted[:9]) <= 25.0
    assert sum(admitted[11:]) == pytest.approx(500.0, abs=20.0)


def test_what_is_not_limited_is_booked_all_the_same() -> None:
    ledger = Ledger([entry("other")])
    ledger.book(START, report("n", 1, START - 1, u=line(50.0)))
    assert ledger.recorded("front", "u", "r") == 50.0
    assert ledger.level("front", "u", "r", START) is None
    assert ledger.consumption_sum(START - 1) == {"front": {"u": {"r": 50.0}}}


@pytest.mark.parametrize(
    "bad",
    [
        line(-1.0),
        line(float("nan")),
        line(float("inf")),
        line(5.0, settled=6.0),
        line(5.0, held=-1.0),
        line(5.0, held=float("inf")),
    ],
)
def test_a_line_that_makes_no_sense_is_refused(bad: Line) -> None:
    with pytest.raises(ProtocolError, match="expected names, and amounts"):
        Ledger([entry()]).book(START, report("n", 1, START - 1, u=bad))


def test_classic_reports_are_booked_once_for_each_node_and_slot() -> None:
    ledger = Ledger([entry(r=100.0)])
    consumption = {"front": {"u": {"r": 10.0}}}
    order = [5, 6, 5, 8, 7, 7, 6, 9]
    booked = [ledger.book_classic(START + 10, "n", START + slot, consumption, {}) for slot in order]
    assert booked == [True, True, False, True, True, False, False, True]
    assert ledger.recorded("front", "u", "r") == 50.0
    assert ledger.book_classic(START + 200, "n", START + 200, consumption, {})
    assert not ledger.book_classic(START + 200, "n", START + 100, consumption, {})


def test_a_classic_node_has_its_quota_ready_when_it_reports() -> None:
    """Its answer in slot s is for slot s + 1, so it is assigned one slot earlier than others."""
    ledger = Ledger([entry(r=1000.0)])
    amounts = dict.fromkeys(range(START - 1, START + 2), 0.0)
    for slot in range(START, START + 80):
        consumption = {"front": {"u": {"r": amounts[slot - 1]}}}
        ledger.book_classic(slot, "n", slot, consumption, {"front": {"u": {"r": 50.0}}})
        shares = ledger.quota(slot, "n")["front"].users.get("u", {})
        amounts[slot + 1] = shares.get("r", Share(0.0, 0.0)).granted
        ledger.assign(slot)
    assert [round(amounts[slot]) for slot in range(START + 70, START + 80)] == [1000] * 10


# Limits


def test_a_changed_limit_takes_effect_with_the_next_assignment_and_keeps_the_proportion() -> None:
    ledger = Ledger([entry(r=100.0, burst_seconds=10.0)])
    ledger.book(START, report("n", 1, START - 1, u=line(0.0)))
    ledger.book(START + 20, report("n", 2, START + 19))
    ledger.assign(START + 20)
    assert ledger.level("front", "u", "r", START + 20) == 1000.0
    ledger.book(START + 20, report("n", 3, START + 20, u=line(500.0)))
    before = ledger.version
    ledger.set_limits([entry(r=200.0, burst_seconds=10.0)])
    assert ledger.level("front", "u", "r", START + 20) == 500.0
    ledger.assign(START + 21)
    assert ledger.level("front", "u", "r", START + 21) == pytest.approx(1200.0)
    assert ledger.version != before


def test_a_debt_is_not_forgiven_by_a_change_of_limits() -> None:
    ledger = Ledger([entry(r=100.0, burst_seconds=1.0)])
    ledger.book(START, report("n", 1, START - 1, u=line(5000.0)))
    before = ledger.level("front", "u", "r", START)
    assert before is not None
    assert before < -4000.0
    ledger.set_limits([entry(r=1.0, burst_seconds=1.0)])
    ledger.assign(START + 1)
    assert ledger.level("front", "u", "r", START + 1) == pytest.approx(before + 100.0)


def test_a_user_whose_limit_is_removed_is_booked_and_gets_no_share() -> None:
    ledger = Ledger([entry(r=100.0)])
    fleet = Fleet(ledger, 2)
    fleet.run(5, 200.0)
    ledger.set_limits([])
    ledger.assign(fleet.slot)
    assert ledger.quota(fleet.slot, "node-0")["front"].users == {}
    recorded = ledger.recorded("front", "u", "r")
    fleet.slot += 1
    fleet.consumed["node-0"] += 77.0
    ledger.book(fleet.slot, fleet.report("node-0"))
    assert ledger.recorded("front", "u", "r") >= recorded + 77.0


def test_a_resource_that_an_entry_gets_later_begins_with_one_slots_refill() -> None:
    ledger = Ledger([entry(other=5.0)])
    ledger.book(START, report("n", 1, START - 1, u=line(50.0)))  # of r, which has no limit yet
    ledger.assign(START + 29)
    ledger.set_limits([entry(other=5.0, r=100.0)])
    ledger.assign(START + 30)
    assert ledger.level("front", "u", "r", START + 30) == 100.0  # and not ten times as much


def test_a_limit_that_is_new_begins_with_one_slots_refill_and_piles_up_from_there() -> None:
    ledger = Ledger([entry("other")])
    ledger.book(START, report("n", 1, START - 1, u=line(50.0)))
    ledger.set_limits([entry(r=100.0)])
    ledger.assign(START + 1)
    assert ledger.level("front", "u", "r", START + 1) == 100.0
    ledger.assign(START + 4)
    ledger.book(START + 5, report("n", 2, START + 4, late=line(0.0)))
    assert ledger.level("front", "late", "r", START + 4) is None


def test_everyone_without_an_entry_of_his_own_has_that_of_the_star() -> None:
    ledger = Ledger([entry("*", r=100.0), entry("own", r=5.0)])
    ledger.book(START, report("n", 1, START - 1, x=line(0.0), own=line(0.0)))
    assert ledger.level("front", "x", "r", START) == 100.0
    assert ledger.level("front", "own", "r", START) == 5.0
    # Each has a bucket of his own.
    ledger.book(START, report("n", 2, START - 1, x=line(60.0)))
    assert ledger.level("front", "y", "r", START) is None


def test_two_entries_for_one_user_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="got two for 'front' and 'u'"):
        Ledger([entry(), entry()])
    ledger = Ledger([entry()])
    before = ledger.version
    with pytest.raises(ValueError, match="got two"):
        ledger.set_limits([entry(), entry()])
    ledger.assign(START)
    assert ledger.version == before


@pytest.mark.parametrize("name", ["a/b", "a.b", "..", "ü", "user 1", "*foo", "front", "\U0001f600"])
def test_any_name_is_just_a_name(name: str) -> None:
    ledger = Ledger([entry(name, **{name: 100.0})])
    fleet = Fleet(ledger, 3, user=name, resource=name)
    fleet.run(12, 300.0)
    assert sum(fleet.run(5, 300.0)) == pytest.approx(500.0, abs=10.0)


# Forgetting


def test_users_who_come_and_go_leave_nothing_behind() -> None:
    ledger = Ledger([entry("*", r=100.0)])
    most = 0
    for slot in range(START, START + 400):
        users = {f"u{slot}_{i}": line(1.0) for i in range(20)}
        ledger.book(slot, report("n", slot - START + 1, slot - 1, **users))
        ledger.assign(slot)
        most = max(most, ledger.cells)
    assert most <= 20 * (60 + 16 + 2)
    assert len(ledger._service_ledgers["front"]) <= most  # the buckets that are full go as well


def test_a_bucket_that_was_forgotten_comes_back_full() -> None:
    ledger = Ledger([entry("*", r=100.0, burst_seconds=10.0)])
    ledger.book(START, report("n", 1, START - 1, u=line(100.0)))
    for slot in range(START, START + 120):
        ledger.book(slot, report("n", slot - START + 2, slot - 1))
        ledger.assign(slot)
    assert ledger.level("front", "u", "r", START + 120) is None
    ledger.book(START + 120, report("n", 200, START + 119, u=line(130.0, settled=100.0)))
    assert ledger.level("front", "u", "r", START + 119) == 1000.0 - 30.0


def test_a_debt_is_never_forgotten() -> None:
    ledger = Ledger([entry("*", r=1.0)])
    ledger.book(START, report("n", 1, START - 1, u=line(10_000.0)))
    for slot in range(START, START + 500):
        ledger.book(slot, report("n", slot - START + 2, slot - 1))
        ledger.assign(slot)
    assert ledger.cells == 0
    level = ledger.level("front", "u", "r", START + 500)
    assert level is not None
    assert level < -9000.0


def test_nodes_that_have_gone_are_forgotten() -> None:
    ledger = Ledger([entry("*", r=100.0)])
    for i in range(10):
        ledger.book(START, report(f"n{i}", 1, START - 1, u=line(1.0)))
    for slot in range(START, START + 310):
        ledger.book(slot, report("n0", slot - START + 2, slot - 1))
        ledger.assign(slot)
    assert repr(ledger) == "Ledger(services=['front'], nodes=1, cells=0)"


def test_a_clock_that_steps_back_mints_nothing() -> None:
    ledger = Ledger([entry(r=100.0, burst_seconds=100.0)])
    ledger.book(START, report("n", 1, START - 1, u=line(0.0)))
    ledger.assign(START + 10)
    level = ledger.level("front", "u", "r", START + 10)
    for slot in [START + 3, START + 10, START + 4, START + 10]:
        ledger.assign(slot)
        assert ledger.level("front", "u", "r", slot) == level


# Services


class Counting:
    """A service that lets each node pass 7 of everything, and remembers what it was called with."""

    def __init__(self, name: str, service_ledger: object) -> None:
        self.calls: list[object] = []

    def consume(self, slot: int, usage: object) -> None:
        self.calls.append((slot, usage.node, usage.consumed, usage.rejected, usage.requests))

    def assign(self, slot: int) -> None:
        self.calls.append(slot)

    def quota(self, slot: int, node_id: str) -> dict:
        return {"u": {"r": Share(7.0, 1.0)}}


class Failing:
    def __init__(self, name: str, service_ledger: object) -> None:
        pass

    def consume(self, slot: int, usage: object) -> None:
        raise RuntimeError("consume")

    def assign(self, slot: int) -> None:
        raise RuntimeError("assign")

    def quota(self, slot: int, node_id: str) -> dict:
        raise RuntimeError("quota")


def test_a_service_of_ones_own_is_told_of_usage_and_asked_for_quotas() -> None:
    made = []

    def make(name: str, service_ledger: object) -> Counting:
        made.append(Counting(name, service_ledger))
        return made[0]

    ledger = Ledger([entry()], services={"front": make})
    ledger.book(START, report("n", 1, START - 1, u=line(5.0, rejected=2)))
    ledger.book(START, report("n", 2, START - 1, u=line(8.0, rejected=2)))
    ledger.assign(START)
    assert made[0].calls == [
        (START - 1, "n", {"u": {"r": 5.0}}, {}, {}),  # counts from before it was known are not new
        (START - 1, "n", {"u": {"r": 3.0}}, {}, {"u": {"r": 3}}),
        START,
    ]
    told = {"u": {"r": Share(8.0 + 7.0, 1.0)}}  # of which 8 are used
    assert ledger.quota(START, "n")["front"].users == told
    asked = ledger.ask(START + 1.5, asking("n", 1.0, front="u"))
    assert asked["n"]["front"].users == told
    assert ledger.quota(START, "n")["front"].users == told  # once for a slot


def test_a_service_of_ones_own_gives_classic_nodes_amounts() -> None:
    ledger = Ledger([entry()], services={"front": Counting})
    ledger.book_classic(START, "c", START, {"front": {"u": {"r": 5.0}}}, {})
    ledger.assign(START)
    assert ledger.quota(START, "c")["front"].users == {"u": {"r": Share(7.0, 1.0)}}


def test_a_service_that_fails_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    bad = entry()
    good = type(bad)("good", "u", rates={"r": 100.0})
    ledger = Ledger([bad, good], services={"front": Failing})
    lines = {"front": {"u": {"r": line(5.0)}}, "good": {"u": {"r": line(5.0)}}}
    with caplog.at_level(logging.CRITICAL):
        ledger.book(START, Report("n", 1, 1, 1, 0, START - 1, 0.0, lines))
        ledger.assign(START)
        quota = ledger.quota(START, "n")
    assert quota["good"].users["u"]["r"].safe > 0.0
    assert quota["front"].users == {}
    assert ledger.errors == {"front": 3}
    assert ledger.recorded("front", "u", "r") == 5.0


def test_a_service_that_cannot_be_made_is_replaced_by_the_default(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def make(name: str, service_ledger: object) -> BucketService:
        raise RuntimeError("no")

    ledger = Ledger([entry()], services={"front": make})
    with caplog.at_level(logging.CRITICAL):
        ledger.book(START, report("n", 1, START - 1, u=line(5.0)))
    ledger.assign(START)
    assert ledger.errors == {"front": 1}
    assert ledger.quota(START, "n")["front"].users["u"]["r"].safe > 0.0


def test_a_rule_of_ones_own_splits_the_refill() -> None:
    def first_takes_all(user, resource, budget, rate, nodes):
        return [budget if i == 0 else 0.0 for i, _ in enumerate(nodes)]

    ledger = Ledger([entry(r=100.0)], assignment=first_takes_all)
    fleet = Fleet(ledger, 3)
    fleet.run(20, 300.0)
    assert fleet.safe("node-0") == pytest.approx(100.0, rel=0.01)
    assert fleet.safe("node-1") == 0.0


@pytest.mark.parametrize("shares", [[1.0], [1e9, 1e9], [-1.0, 1.0], [float("nan"), 1.0]])
def test_a_rule_that_gives_nonsense_is_an_error_of_its_service(
    shares: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger([entry(r=100.0)], assignment=lambda *_: shares)
    fleet = Fleet(ledger, 2)
    with caplog.at_level(logging.CRITICAL):
        fleet.run(3, 300.0)
    assert ledger.errors["front"] >= 2


# Looking


def test_the_last_slots_can_be_looked_at() -> None:
    ledger = Ledger([entry(r=100.0)], nr_slot=5)
    fleet = Fleet(ledger, 2)
    fleet.run(20, 300.0)
    last = fleet.slot - 2
    assert ledger.reported(last) == ["node-0", "node-1"]
    assert ledger.reported(last - 10) == []
    consumed = ledger.consumption_sum(last)["front"]["u"]["r"]
    assert consumed == pytest.approx(100.0, abs=10.0)
    assert ledger.rejection_sum(last) == {"front": {"u": {"r": 300.0 - consumed}}}
    assert ledger.consumption_sum(last - 10) == {"front": {}}
    where = ledger.distribution()["front"]["u"]["r"]
    assert where["node-1"]["slot_number"] == last
    assert where["node-1"]["consumption"] + where["node-1"]["rejection"] == 150.0
    quotas = ledger.quotas(last)  # what was granted
    assert sum(users["front"]["u"]["r"] for users in quotas.values()) == pytest.approx(
        100.0, abs=15.0
    )
    assert ledger.quotas(last - 10) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"slot_seconds": 0.01}, "from 0.1 to 3600, got 0.01"),
        ({"slot_seconds": float("nan")}, "got nan"),
        ({"nr_slot": 0}, "from 1 to 3600, got 0"),
        ({"assignment": "best"}, "got 'best'"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ledger([entry()], **arguments)


# What was broken once


def test_a_clock_that_goes_back_by_an_hour_is_followed_and_gives_nothing_away() -> None:
    ledger = Ledger([entry(r=100.0)])
    ledger.book(START + 3600, report("n", 1, START + 3599, u=line(0.0)))
    ledger.assign(START + 3600)
    for slot in range(START, START + 20):
        ledger.book(slot, report("n", slot, slot - 1, u=line(0.0, rejected=slot)))
        ledger.ask(slot + 0.3, asking("n", slot, 10_000, front="u"))
        ledger.assign(slot)
        given = ledger.quota(slot, "n")["front"].users["u"]["r"].granted
        assert 0.0 < given <= 1000.0 + 1.0  # a request is spare while all of it is out


def test_a_clock_that_goes_back_by_one_slot_grants_nothing_twice() -> None:
    ledger = Ledger([entry(r=100.0, burst_seconds=0.0)])
    fleet = Fleet(ledger, 2)
    fleet.run(10, 300.0)
    before = ledger.outstanding("front", "u", "r")
    fleet.ask(fleet.slot - 2.0, "node-0", 100)
    assert ledger.outstanding("front", "u", "r") == before


def test_what_was_booked_before_a_long_silence_is_not_booked_again() -> None:
    """Its Ack was lost, so the node tells it again, and no leader has settled it."""
    ledger = Ledger([entry()])
    ledger.book(START, report("n", 1, START - 1))
    ledger.book(START + 1, report("n", 2, START, u=line(10.0))._replace(since=1))
    for slot in range(START + 1, START + 100):
        ledger.assign(slot)
    ledger.book(START + 100, report("n", 101, START + 99, u=line(150.0))._replace(since=1))
    assert ledger.recorded("front", "u", "r") == 150.0


def test_a_lowered_limit_lowers_the_safe_share() -> None:
    fleet = Fleet(Ledger([entry(r=1000.0)]), 2)
    fleet.run(10, 3000.0)
    for rate in (10.0, 0.0):
        fleet.ledger.set_limits([entry(r=rate)])
        fleet.run(1, 3000.0)
        shares = fleet.ledger.quota(fleet.slot - 1, "node-0")["front"].users["u"]["r"]
        assert shares.safe == rate / 2


def test_of_a_report_with_a_bad_line_nothing_is_booked() -> None:
    ledger = Ledger([entry("*")])
    bad = report("n", 2, START, a=line(5.0), b=line(-1.0))
    ledger.book(START, report("n", 1, START - 1))
    with pytest.raises(ProtocolError):
        ledger.book(START + 1, bad)
    assert ledger.recorded("front", "a", "r") == 0.0
    assert ledger.book(START + 1, report("n", 2, START, a=line(5.0), b=line(1.0)))
    with pytest.raises(ProtocolError):
        ledger.book_classic(
            START, "c", START, {"front": {"u": {"r": 5.0}}, "x": {"u": {"r": -1.0}}}, {}
        )
    assert ledger.book_classic(START, "c", START, {"front": {"u": {"r": 5.0}}}, {})


@pytest.mark.parametrize(("sequence", "since"), [(-1, 0), (2**31, 0), (3, 4), (3, -1)])
def test_sequences_that_make_no_sense_are_refused(sequence: int, since: int) -> None:
    ledger = Ledger([entry()])
    with pytest.raises(ProtocolError, match="expected whole numbers"):
        ledger.book(START, report("n", sequence, START - 1)._replace(since=since))


def test_a_slot_from_another_century_hurts_only_its_own_report() -> None:
    ledger = Ledger([entry(r=100.0)])
    with pytest.raises(ProtocolError, match="check the clock of the node"):
        ledger.book_classic(START, "c", START + 10**14, {"front": {"u": {"r": 5.0}}}, {})
    ledger.book_classic(START, "c", START, {}, {})
    assert ledger.book_classic(START + 10**6, "c", START + 10**6, {}, {})
    ledger.book(START, report("n", 1, START - 1))
    assert ledger.book(START, report("n", 2, 2**62, u=line(7.0)))
    assert ledger.recorded("front", "u", "r") == 7.0


def test_a_node_that_has_lost_its_memory_is_not_given_its_old_share_again() -> None:
    fleet = Fleet(Ledger([entry(r=1000.0)]), 3)
    fleet.run(10, 3000.0)
    fleet.ledger.book(fleet.slot, report("node-0", 1, fleet.slot - 1, boot=2))
    assert fleet.ledger.quota(fleet.slot - 1, "node-0")["front"].users == {}
    assert fleet.ledger.ask(fleet.slot + 0.1, asking("node-0", 1.0, front="u")) == {}  # an old boot


def test_to_look_changes_nothing() -> None:
    ledger = Ledger([entry(r=100.0)])
    ledger.book(START, report("n", 1, START - 1, u=line(0.0)))
    before = ledger.level("front", "u", "r", START)
    assert ledger.level("front", "u", "r", START + 10**6) == 1000.0
    assert ledger.level("front", "u", "r", START) == before


def test_a_plug_in_that_does_what_it_must_not_gets_an_error() -> None:
    seen: list[str] = []

    def nosy(user: str, resource: str, budget: float, rate: float, nodes: list) -> list[float]:
        for attempt in (
            lambda: service_ledger.record("n", START, {}),
            lambda: service_ledger.raise_credit(START, "n", "u", "r", 1.0, 1.0),
            lambda: service_ledger.assign(START + 5),
        ):
            with pytest.raises(RuntimeError, match="assignment"):
                attempt()
            seen.append(user)
        return [0.0] * len(nodes)

    ledger = Ledger([entry(r=100.0)], assignment=nosy)
    ledger.book(START, report("n", 1, START - 1, u=line(0.0)))
    service_ledger = ledger._service_ledgers["front"]
    other = Ledger([entry(r=100.0)])
    other.book(START, report("n", 1, START - 1, u=line(0.0)))
    ledger.assign(START)
    assert len(seen) == 3
    with pytest.raises(ValueError, match="one that has reported, got 'nobody'"):
        service_ledger.raise_credit(START, "nobody", "u", "r", 1.0, 1.0)
    with pytest.raises(ValueError, match="usage must come from this service ledger"):
        service_ledger.deduct(other._service_ledgers["front"].record("n", START, {}))


def test_a_rule_that_fails_for_one_user_leaves_the_others_their_share(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def picky(user: str, resource: str, budget: float, rate: float, nodes: list) -> list[float]:
        if user == "a":
            raise KeyError(user)
        return [budget / len(nodes)] * len(nodes)

    ledger = Ledger([entry("*", r=100.0)], assignment=picky)
    ledger.book(START, report("n", 1, START - 1, a=line(0.0, rejected=1), b=line(0.0, rejected=1)))
    with caplog.at_level(logging.CRITICAL):
        ledger.assign(START)
    users = ledger.quota(START, "n")["front"].users
    assert users["a"]["r"].safe > 0.0
    assert users["b"]["r"].safe > 0.0
    assert ledger.errors == {"front": 1}


def test_a_service_may_be_empty_and_must_answer_with_a_dict() -> None:
    class Empty(Counting):
        def __len__(self) -> int:
            return 0

        def quota(self, slot: int, node_id: str) -> list:
            return [1, 2]

    ledger = Ledger([entry()], services={"front": Empty})
    ledger.book(START, report("n", 1, START - 1, u=line(5.0)))
    ledger.assign(START)
    assert ledger.quota(START, "n")["front"].users == {}
    assert ledger.ask(START + 0.6, asking("n", 1.0, front="u")) == {}


def test_newcomers_are_bound_in_every_resource_that_anyone_is() -> None:
    own = type(entry())("front", "alice", rates={"requests": 16.0})
    ledger = Ledger([own, entry("*", bytes=1600.0)])
    ledger.book(START, report("n", 1, START - 1))
    newcomers = ledger.quota(START, "n")["front"].newcomers
    assert newcomers == {"requests": 1.0, "bytes": 100.0}


def test_centrals_with_the_same_limits_say_the_same_version() -> None:
    one = Ledger([entry("a"), entry("b", r=3.0)])
    other = Ledger([entry("b", r=3.0), entry("a")])
    assert one.version == other.version != Ledger([entry("a"), entry("b", r=4.0)]).version


def test_reports_of_slots_long_past_leave_no_trace_for_each_of_them() -> None:
    """Sums of a slot are as large as the book: who tells of ever older ones must not make many."""
    ledger = Ledger([entry()], nr_slot=10)
    ledger.book(START, Report("n", 1, 1, 1, 0, START - 1, 0.0, {}))
    for slot in range(START, START + 20):
        ledger.assign(slot)
    now = START + 20
    for sequence in range(2, 50):
        line = Line(float(sequence), 0, sequence, 0.0, 0.0)
        lines = {"front": {"u": {"r": line}}}
        assert ledger.book(now, Report("n", 1, sequence, 1, 0, 900 - sequence, 0.0, lines))
    known = {slot: ledger.consumption_sum(slot)["front"] for slot in range(800, now + 1)}
    assert {slot: users for slot, users in known.items() if users} == {now - 10: {"u": {"r": 49.0}}}
    assert not any(ledger.reported(slot) for slot in range(800, 900))


@pytest.mark.parametrize("newcomer", [False, True])
def test_a_ledger_without_books_holds_everyone_to_what_it_lived_on(newcomer: bool) -> None:
    """Two nodes of a fleet come back in the slot in which it begins; others may be on their way."""
    ledger = Ledger([entry(burst_seconds=1.0)])
    ledger.begin(START)
    if newcomer:  # whoever comes first
        ledger.book(START, Report("new", 1, 1, -1, 0, START - 1, 0.0, {}))
    fleet = Fleet(Ledger([entry()]), 2)  # it has lived before, with another leader
    fleet.ledger, fleet.slot = ledger, START + 1
    fleet.consumed = dict.fromkeys(fleet.names, 75.0)  # 25 in each of three slots
    fleet.granted = dict.fromkeys(fleet.names, 75.0)
    for name in fleet.names:
        first = fleet.report(name)._replace(slot=START - 1, settled_slot=START - 4)
        ledger.book(START, first)
    ledger.assign(START)
    admitted = fleet.run(8, 300.0)
    # Neither much more than they had, nor nothing: what was consumed before is covered.
    assert all(40.0 <= amount <= 75.0 for amount in admitted[1:3]), admitted
    assert sum(admitted[:3]) <= 3 * 60.0 + 60.0, admitted
    assert all(amount >= 90.0 for amount in admitted[5:]), admitted  # nobody else came
