"""Nodes that are not heard for a while: what is assumed of them, and what they tell later."""

import math

import pytest

from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.messages import Line, Report
from tests.harness.spending_nodes import START, entry
from tests.harness.telling_nodes import T0, Cluster, Teller, cluster


def silent_fleet() -> Cluster:
    """10 per second, burst 1 s. Node a holds the credit of 8, and is silent for eleven slots."""
    fleet = cluster(rate=10.0)
    assert fleet.ask(T0, "a", 8) == 8.0
    fleet.end_slots(START + 11, silent=("a",))
    return fleet


def test_what_a_silent_node_holds_stays_deducted_and_takes_no_room() -> None:
    fleet = silent_fleet()
    assert fleet.ledger.outstanding("front", "u", "r") == 8.0
    assert fleet.available(START + 12.0) == 11.0  # with a spare one, as that credit is out
    fleet.nodes["a"].used["r"] = 8.0
    fleet.ledger.book(START + 12, fleet.nodes["a"].report(START + 11))
    assert fleet.available(START + 12.0) == 11.0  # what is there stays


@pytest.mark.parametrize("together", [0, 1, 4])
def test_what_a_silent_node_lived_on_is_covered_by_the_refill_of_that_time(together: int) -> None:
    """A node lives on its safe share for eight slots. Some reports of that time come late."""
    ledger = Ledger([entry(r=100.0, burst_seconds=0.25)])
    node = Teller(ledger, "a")
    ledger.book(START, node.report(START - 1))
    for slot in range(START, START + 9):
        ledger.assign(slot)
    for slot in [*range(START, START + together), START + 7]:  # all of them at START + 8
        node.used["r"] = 100.0 * (slot - START + 1)
        assert ledger.book(START + 8, node.report(slot))
    level = ledger.level("front", "u", "r", START + 8)
    # The last slot of a report may not be covered yet, and what the bucket held is spent.
    assert -100.0 - 25.0 <= level <= 25.0
    assert ledger.recorded("front", "u", "r") == 800.0


@pytest.mark.parametrize(
    ("used", "returned", "granted"),
    [(8.0, 0.0, 11.0), (0.0, 8.0, 11.0), (0.0, 0.0, 3.0), (20.0, 0.0, 0.0)],
)
def test_a_silent_node_that_asks_is_answered(used: float, returned: float, granted: float) -> None:
    """Its reports may come later. What it holds counts again, and is in the bucket once."""
    fleet = silent_fleet()
    node = fleet.nodes["a"]
    node.used["r"], node.returned["r"] = used, returned
    before = node.granted["r"]
    fleet.ask(T0 + 12.0, "a", 100)
    covered = max(0.0, used - before)
    assert node.granted["r"] - before - covered == granted
    fleet.ask(T0 + 12.0, "a")
    fleet.ledger.book(START + 12, node.report(START + 11))
    fleet.ledger.assign(START + 12)
    everything = fleet.ledger.available("front", "u", "r", T0 + 12.0)
    assert everything + node.credit() <= 11.0


def autonomous_fleet(*, outage: int = 20) -> Cluster:
    """100 per second on two nodes: a lives on 65, b on 35. The central stood still, and is back."""
    fleet = cluster(names="ab")
    for slot in range(START, START + 8):
        for node in fleet.nodes.values():
            fleet.ask(slot + 0.1, node.name, 50)
            node.used = dict(node.granted)
            fleet.ask(slot + 0.1, node.name)
        fleet.end_slots(slot + 1)
    fleet.slot += outage
    fleet.ledger.begin(fleet.slot)
    return fleet


def test_what_autonomous_nodes_are_taken_to_spend_grows_with_time() -> None:
    fleet = autonomous_fleet()
    now, node = fleet.slot, fleet.nodes["a"]
    node.used["r"] += 20 * 65.0  # what it lived on
    fleet.ledger.book(now, node.report(now - 1))
    fleet.ask(float(now), "a", 1000)
    served = fleet.ledger.serve_due()
    assert fleet.serve(served)["a"] > 0.0
    node.used = dict(node.granted)
    fleet.ask(served, "a")
    first = fleet.available(served)
    # The part of the other one is kept for it, at every moment.
    grown = [fleet.available(served + passed) - first for passed in (0.1, 0.2, 0.5, 0.9)]
    assert grown == pytest.approx([6.5, 13.0, 32.5, 58.5], abs=1.0)
    other = fleet.nodes["b"]
    other.used["r"] += 20 * 35.0
    fleet.ledger.book(now, other.report(now - 1))
    other.used["r"] += 0.5 * 35.0
    fleet.ask(now + 0.5, "b", 0)
    # It has told: it spends no more than it is granted from now on.
    assert fleet.available(now + 0.9) - fleet.available(now + 0.5) == pytest.approx(40.0, abs=1.0)


def test_after_a_standstill_a_node_reports_before_its_asks_count() -> None:
    """What it asks was sent before others have spent what is there."""
    fleet = autonomous_fleet()
    now, node = fleet.slot, fleet.nodes["a"]
    assert fleet.ledger.must_report("a", now)
    assert fleet.ledger.ask(float(now), node.message(float(now), 10)) == {}
    assert fleet.ledger.serve_due() == math.inf
    node.used["r"] += 20 * 35.0
    fleet.ledger.book(now, node.report(now - 1))
    assert not fleet.ledger.must_report("a", now)
    assert fleet.ledger.must_report("b", now)
    assert "a" in fleet.ledger.ask(float(now), node.message(float(now), 10))
    # One that is not heard at all may ask again when its share is held for it no more.
    assert not fleet.ledger.must_report("b", now + 5)


def test_after_a_standstill_nobody_is_served_for_half_an_interval() -> None:
    """The messages that waited are heard one by one: all of them count before anyone is served."""
    fleet = autonomous_fleet()
    now = fleet.slot
    for offset, node in enumerate(fleet.nodes.values()):
        node.used["r"] += 20 * 35.0
        fleet.ledger.book(now, node.report(now - 1))
        fleet.ask(now + 0.01 * offset, node.name, 10)
        assert node.credit() == 0.0  # what it lived on is covered, and no more
    half = 0.5 * fleet.ledger.interval
    assert fleet.serve(now + half - 0.001) == {}
    assert fleet.ledger.serve_due() == pytest.approx(now + half, abs=1e-4)
    assert fleet.serve(fleet.ledger.serve_due()) == {"a": 10.0, "b": 10.0}
    assert fleet.ask(now + half + 0.1, "a", 20) > 0.0  # and from then on at once


@pytest.mark.parametrize(("slots", "is_standstill"), [(1, False), (2, False), (3, True)])
def test_a_standstill_is_more_than_two_slots_without_an_assignment(
    slots: int, is_standstill: bool
) -> None:
    fleet = autonomous_fleet(outage=slots)
    assert fleet.ledger.must_report("a", fleet.slot) == is_standstill


# Late reports, and the refill of their time


@pytest.mark.parametrize(
    ("burst_seconds", "used", "level"),
    [
        (10.0, 250.0, 350.0),
        (10.0, 500.0, 100.0),
        (10.0, 700.0, -100.0),
        (3.0, 250.0, 250.0),
        (3.0, 700.0, -200.0),
        (1.0, 500.0, 0.0),
        (1.0, 700.0, -200.0),
    ],
)
def test_a_new_bucket_has_the_refill_of_the_time_before_it_once(
    burst_seconds: float, used: float, level: float
) -> None:
    """A report on five slots makes the bucket: limits begin with 100, and 500 came in since.

    The 100 are a slot's refill too. A bucket that cannot hold all of it has the 500 alone, which
    is what came in during the time of the report.
    """
    ledger = Ledger([entry(r=100.0, burst_seconds=burst_seconds)])
    node = Teller(ledger, "a")
    ledger.book(START, Report("a", 1, 0, 1, 0, START - 1, T0, {}))
    for slot in range(START, START + 5):
        ledger.assign(slot)
    node.used["r"] = used
    assert ledger.book(START + 5, node.report(START + 4))
    assert ledger.level("front", "u", "r", START + 5) == pytest.approx(level)


@pytest.mark.parametrize("asks_first", [False, True])
@pytest.mark.parametrize(
    ("used", "debt"),
    [
        (40.0, 0.0),
        (60.0, 0.0),
        (160.0, 100.0 / 6),  # 100 beyond its credit, a sixth of them in the last slot
        (760.0, 760.0 + 101.0 - 690.0),  # all that was used, and all that came in
    ],
)
def test_only_what_exceeds_the_credit_is_set_against_refill_that_overflowed(
    used: float, debt: float, asks_first: bool
) -> None:
    """A node has the credit of 60 and is silent for six slots; it may tell first by an ask."""
    fleet = cluster(names="ab")
    node, other = fleet.nodes["a"], fleet.nodes["b"]
    fleet.ask(T0, "a", 60)
    fleet.end_slots(START + 5, silent=("a",))
    fleet.ask(T0 + 5.9, "b", 1000)
    other.used = dict(other.granted)
    fleet.ask(T0 + 5.9, "b")
    node.used["r"] = used
    if asks_first:
        fleet.ask(T0 + 5.9, "a")
    fleet.ledger.book(START + 6, node.report(START + 5))
    assert fleet.available(T0 + 5.9) == pytest.approx(-debt, abs=1e-6)


def first_report(slots: int, **amounts: float) -> Report:
    """The first report of a node to this leader: a leader acknowledged one `slots` before."""
    numbers = dict.fromkeys(("consumed", "settled", "held", "granted", "returned"), 0.0) | amounts
    line = Line(rejected=0, requests=0, **numbers)  # type: ignore[arg-type]
    lines = {"front": {"u": {"r": line}}}
    return Report("a", 1, 9, 1, 8, START - 1, T0, lines, settled_slot=START - 1 - slots)


@pytest.mark.parametrize(
    ("slots", "amounts", "charged"),
    [
        # Requests that run are paid for. A slot's refill is in the bucket: it pays for that slot.
        (1, {"granted": 400.0, "held": 400.0}, 0.0),
        (1, {"granted": 440.0, "held": 400.0, "consumed": 40.0}, 40.0),
        (1, {"granted": 540.0, "held": 400.0, "consumed": 140.0, "settled": 100.0}, 40.0),
        # Credit that the node has not used is out.
        (1, {"granted": 430.0, "held": 400.0}, 30.0),
        (1, {"granted": 430.0, "held": 400.0, "returned": 30.0}, 0.0),
        # What ended within the credit of the earlier leader, evenly in five slots.
        (5, {"granted": 300.0, "held": 100.0, "consumed": 200.0}, 40.0),
        # Let through on a share, evenly in five slots, ended or not.
        (5, {"consumed": 200.0}, 40.0),
        (5, {"held": 200.0}, 40.0),
        (5, {"granted": 160.0, "consumed": 200.0, "held": 160.0}, 40.0),
        # More than the refill of the four slots before: that is a debt.
        (5, {"held": 1000.0}, 600.0),
    ],
)
def test_a_ledger_without_books_charges_what_was_let_through_since_its_refill_begins(
    slots: int, amounts: dict[str, float], charged: float
) -> None:
    ledger = Ledger([entry(r=100.0, burst_seconds=1.0)])
    ledger.begin(START)
    assert ledger.book(START, first_report(slots, **amounts))
    available = ledger.available("front", "u", "r", T0)
    assert available == pytest.approx(100.0 - charged)


def test_a_user_that_a_later_report_names_first_is_taken_over_too() -> None:
    """Its requests run on, and nothing has changed: the first report says nothing of it."""
    for asks_first in (False, True):
        ledger = Ledger([entry(r=100.0, burst_seconds=1.0)])
        node = Teller(ledger, "a")
        ledger.book(START, Report("a", 1, 8, 1, 7, START - 1, T0, {}, settled_slot=START - 2))
        node.sequence = 8
        node.granted["r"] = node.used["r"] = 400.0
        if asks_first:
            ledger.ask(T0 + 0.5, node.message(T0 + 0.5))
        ledger.book(START + 1, node.report(START, held=400.0))
        assert ledger.available("front", "u", "r", T0 + 1.0) == pytest.approx(100.0)
        assert ledger.outstanding("front", "u", "r") == pytest.approx(400.0)


def test_what_is_taken_over_is_paid_for_once() -> None:
    """When the requests end, nothing comes back; a node that begins anew has new ones."""
    ledger = Ledger([entry(r=100.0, burst_seconds=1.0)])
    ledger.begin(START)
    ledger.book(START, first_report(1, granted=400.0, held=400.0))
    node = Teller(ledger, "a")
    node.sequence = 9
    node.granted["r"] = node.used["r"] = 400.0
    node.hear(ledger.ask(T0, node.message(T0, 100)))
    assert node.granted["r"] == 500.0
    node.used["r"] = 500.0
    ledger.book(START + 1, node.report(START, held=100.0))
    available = ledger.available("front", "u", "r", T0 + 1.0)
    assert available == pytest.approx(100.0)  # all was granted, and 100 have come in
    node.boot, node.sequence = 2, 0
    ledger.book(START + 2, node.report(START + 1, held=400.0))
    available = ledger.available("front", "u", "r", T0 + 2.0)
    assert available is not None
    assert available < -300.0
