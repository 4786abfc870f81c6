"""Several nodes want the credit of one user: turns, recalls, spare room, floats."""

import math

import pytest

from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.messages import Report
from tests.harness.spending_nodes import START, entry
from tests.harness.telling_nodes import T0, Cluster, cluster


def test_a_single_node_gets_half_while_another_had_traffic_just_now() -> None:
    fleet = cluster()
    assert fleet.ask(T0, "a", 20) == 20.0
    assert fleet.ask(T0 + 0.2, "b", 1000) == 40.0  # of 80, and a spare one
    assert cluster().ask(T0 + 1, "b", 1000) == 100.0
    fleet = cluster()
    fleet.ask(T0, "a", 20)
    assert fleet.ask(T0 + 0.6, "b", 1000) == 81.0


def spend_and_ask(fleet: Cluster, time: float, name: str, requests: int) -> float:
    """A node that has spent its credit asks for more; how much it is granted."""
    node = fleet.nodes[name]
    for resource in node.costs:
        node.used[resource] = node.granted[resource]
    return fleet.ask(time, name, requests)


def test_lasting_demand_far_below_the_limit_is_granted_ahead() -> None:
    fleet = cluster(rate=900.0)  # safe shares of 300
    assert fleet.ask(T0, "a", 3) == 3.0  # it is the first ask
    assert spend_and_ask(fleet, T0 + 0.2, "a", 3) == 24.0  # 8 times as much
    assert spend_and_ask(fleet, T0 + 0.4, "a", 30) == 120.0  # 0.4 of a safe share
    assert fleet.ask(T0 + 0.6, "a", 3) == 3.0  # it has as much already
    for slot in range(START + 1, START + 5):
        for node in fleet.nodes.values():
            fleet.ledger.book(slot, node.report(slot - 1))
        fleet.ledger.assign(slot)
    assert spend_and_ask(fleet, T0 + 4.0, "a", 3) == 3.0  # it is not lasting


def test_nothing_is_granted_ahead_of_a_bucket_that_is_not_nearly_full() -> None:
    fleet = cluster(rate=900.0)
    assert fleet.ask(T0, "a", 2) == 2.0
    assert spend_and_ask(fleet, T0 + 0.001, "a", 2) == 16.0
    fleet.ask(T0 + 0.002, "b", 250)
    assert spend_and_ask(fleet, T0 + 0.003, "a", 2) == 2.0  # less than three quarters are left


def test_credit_granted_ahead_is_a_quarter_of_the_bucket_at_most() -> None:
    names = [f"node-{i}" for i in range(40)]
    fleet = cluster(rate=1000.0, burst_seconds=0.25, names=names)  # 0.4 of all shares: 400 of 250
    for step in range(1, 6):
        for name in names:
            fleet.ask(T0 + 0.001 * step, name, 1)
    ahead = sum(node.granted["r"] for node in fleet.nodes.values()) - 5 * len(names)
    assert 0.0 <= ahead <= 0.25 * 250.0


def test_a_node_that_does_not_know_what_a_request_costs_is_granted_one() -> None:
    """It takes what it is granted for the cost."""
    fleet = cluster(rate=900.0)
    node = fleet.nodes["a"]
    fleet.ask(T0, "a", 1)
    node.costs = {"r": 0.0}
    assert spend_and_ask(fleet, T0 + 0.2, "a", 1) == 1.0


def test_those_that_wait_are_served_in_turn_as_the_refill_comes() -> None:
    fleet = cluster(rate=10.0)
    fleet.drain("c")
    assert fleet.ask(T0 + 0.01, "a", 1) == 0.0
    assert fleet.ask(T0 + 0.02, "b", 1) == 0.0
    assert fleet.nodes["a"].hint.wait == pytest.approx(0.09)
    assert fleet.nodes["b"].hint.wait == pytest.approx(0.18)
    turns = []
    time = T0
    while (due := fleet.ledger.serve_due()) < math.inf:
        time = due
        turns += [(round(time - T0, 3), name) for name in fleet.serve(time)]
    assert turns == [(0.1, "a"), (0.2, "b")]


def test_each_of_very_many_is_told_when_its_turn_comes() -> None:
    names = [f"node-{i}" for i in range(101)]
    fleet = cluster(rate=10.0, names=names)
    fleet.drain(names[0])
    for name in names[1:]:
        fleet.ask(T0, name, 1)
    waits = [fleet.nodes[name].hint.wait for name in names[1:]]
    assert waits == pytest.approx([0.1 * turn for turn in range(1, 101)])


def test_an_ask_for_nothing_leaves_the_queue_and_a_newer_one_keeps_its_place() -> None:
    fleet = cluster(rate=10.0)
    fleet.drain("c")
    for name in ("a", "b"):
        fleet.ask(T0 + 0.01, name, 1)
    fleet.ask(T0 + 0.02, "a", 3)
    assert fleet.serve(T0 + 0.1001) == {"a": 1.0}
    fleet.ask(T0 + 0.11, "b")
    assert fleet.serve(T0 + 1.0) == {}
    assert fleet.ledger.serve_due() == math.inf


def test_several_that_wait_get_max_min_fair_parts_in_whole_requests() -> None:
    fleet = cluster(rate=100.0)
    fleet.drain("c")
    fleet.ask(T0 + 0.001, "c", 50)
    fleet.ask(T0 + 0.002, "a", 2)
    fleet.ask(T0 + 0.003, "b", 50)
    assert fleet.serve(T0 + 0.11) == {"a": 2.0, "b": 4.0, "c": 5.0}  # first in the queue


def test_a_bucket_with_little_left_is_served_in_batches() -> None:
    fleet = cluster(rate=1000.0)
    fleet.drain("c")
    assert fleet.ask(T0 + 0.005, "a", 100) == 0.0
    assert fleet.ledger.serve_due() == pytest.approx(T0 + 0.0125, abs=1e-5)
    assert fleet.ask(T0 + 0.01, "b", 100) == 0.0
    # A third of the refill is held for the node that was served last, and will ask again.
    assert fleet.serve(T0 + 0.0126) == {"a": 4.0, "b": 4.0}
    assert fleet.ask(T0 + 0.051, "c", 100) == pytest.approx(17.0, abs=1.0)


@pytest.mark.parametrize("offsets", [(0.0, 0.001), (0.0, 0.04), (0.0, 0.005, 0.04)])
def test_nodes_that_ask_at_different_moments_get_the_same(offsets: tuple[float, ...]) -> None:
    """Each asks every 50 ms, and would get all that came in since the other one asked."""
    names = [f"node-{number}" for number in range(len(offsets))]
    fleet = cluster(rate=1000.0, names=["first", *names])
    fleet.drain("first")
    due = {name: T0 + 0.2 + offset for name, offset in zip(names, offsets, strict=True)}
    before: dict[str, float] = {}
    while (time := min(fleet.ledger.serve_due(), *due.values())) < T0 + 1.8:
        if time > T0 + 0.8 and not before:
            before = {name: fleet.nodes[name].granted["r"] for name in names}
        if time == fleet.ledger.serve_due():
            fleet.serve(time)
            continue
        name = min(due, key=due.__getitem__)
        due[name] += 0.05
        node = fleet.nodes[name]
        node.used = dict(node.granted)
        fleet.ask(time, name, 1000)
    granted = [fleet.nodes[name].granted["r"] - before[name] for name in names]
    assert sum(granted) == pytest.approx(1000.0, abs=60.0)
    assert max(granted) - min(granted) <= 60.0  # of one turn, at most


def test_a_request_or_two_for_each_is_given_in_the_order_of_the_queue() -> None:
    """Nothing is held back for others: their parts would be less than a request, and lost."""
    fleet = cluster(rate=10.0)
    fleet.drain("c")
    assert fleet.ask(T0 + 0.101, "a", 5) == 1.0


# Recall


def test_credit_is_recalled_from_a_quiet_node_while_a_request_waits() -> None:
    fleet = cluster(rate=1.0, burst_seconds=5.0)
    assert fleet.ask(T0, "c", 1) == 1.0
    recalls = []
    for tick in range(6):  # a request waits for 0.2 s, then another one does
        fleet.ask(T0 + 0.15 * tick + 0.05, "a", 1, waits=True)
        recalls += fleet.recalls(T0 + 0.15 * tick + 0.2)
    # Not before what was granted has settled, and then every 0.3 s.
    assert [name for _, name in recalls] == ["c", "c", "c"]
    assert [time for time, _ in recalls] == pytest.approx([0.3, 0.6, 0.9], abs=0.03)
    fleet.nodes["c"].returned["r"] = 1.0
    fleet.ask(T0 + 0.95, "c")
    assert fleet.nodes["a"].granted["r"] == 1.0


def test_a_grant_is_not_recalled_before_it_has_settled() -> None:
    """A request may wait for it there."""
    fleet = cluster(rate=10.0)
    fleet.ask(T0, "c", 10)
    fleet.ask(T0 + 0.01, "a", 100, waits=True)
    assert fleet.recalls(T0 + 0.21) == []
    fleet.ask(T0 + 0.22, "a", 100, waits=True)
    recalls = fleet.recalls(T0 + 0.42)
    assert [name for _, name in recalls] == ["c"]
    assert 0.3 <= recalls[0][0] <= 0.33


def test_credit_is_recalled_for_a_request_that_waits_where_little_is_left() -> None:
    """A user that hops leaves credit at each node, and needs all of it where it is now."""
    fleet = cluster(rate=10.0)
    assert fleet.ask(T0, "c", 7) == 7.0
    assert fleet.ask(T0 + 0.6, "a", 20, waits=True) == 4.0  # all that is left, and a spare one
    assert fleet.nodes["c"].hint.recall


def test_a_grant_in_full_recalls_nothing() -> None:
    fleet = cluster(rate=10.0)
    fleet.ask(T0, "c", 7)
    assert fleet.ask(T0 + 0.6, "a", 4, waits=True) == 4.0
    assert not fleet.nodes["c"].hint.recall


def test_a_look_that_recalls_nothing_puts_off_no_recall() -> None:
    fleet = cluster(rate=1.0, burst_seconds=5.0)
    fleet.ask(T0, "c", 1)
    fleet.ask(T0 + 0.4, "b", 1)  # no request waits, and the bucket is not full
    assert not fleet.nodes["c"].hint.recall
    fleet.ask(T0 + 0.43, "a", 1, waits=True)
    assert fleet.nodes["c"].hint.recall


def test_a_node_with_traffic_keeps_its_credit() -> None:
    fleet = cluster(rate=10.0)
    fleet.ask(T0, "c", 10)
    recalls = []
    for tick in range(1, 12):
        fleet.nodes["c"].used["r"] += 0.5
        fleet.ask(T0 + 0.09 * tick, "c")
        fleet.ask(T0 + 0.09 * tick + 0.01, "a", 100, waits=True)
        recalls += fleet.recalls(T0 + 0.09 * tick + 0.09)
    assert recalls == []


def test_where_no_request_waits_credit_is_recalled_only_while_the_bucket_is_full() -> None:
    """As long as more comes in nothing is lost if the others keep what they have."""
    fleet = cluster(rate=1.0, burst_seconds=3.0, names="abcde")
    fleet.end_slots(START + 3)
    for name in "abc":
        assert fleet.ask(T0 + 3.0, name, 1) == 1.0
    assert fleet.ask(T0 + 3.5, "e", 1) == 0.0
    assert fleet.recalls(T0 + 3.9) == []
    fleet.ask(T0 + 3.9, "e")
    for slot, name in ((START + 4, "d"), (START + 5, "a"), (START + 6, "b")):
        fleet.end_slots(slot)
        assert fleet.ask(float(slot), name, int(fleet.nodes[name].credit()) + 1) == 1.0
    # It holds three, and three beyond that while they are out: it is full.
    assert fleet.ask(T0 + 6.1, "e", 1) == 0.0
    assert fleet.nodes["e"].hint.wait == 0.0
    assert [name for name in "abcd" if fleet.nodes[name].hint.recall] == ["a", "c", "d"]
    assert [time for time, name in fleet.recalls(T0 + 7.2) if name == "b"] == [7.0]


def test_who_waits_for_a_recall_is_not_told_that_the_user_is_empty() -> None:
    fleet = cluster(rate=1.0)
    fleet.ask(T0, "c", 1)
    fleet.ask(T0 + 0.35, "a", 1, waits=True)
    assert fleet.nodes["c"].hint.recall
    assert fleet.nodes["a"].hint.wait == 0.0


# Spare room


@pytest.mark.parametrize(
    ("rate", "cost", "nodes", "waits", "spare"),
    [
        (100.0, 1.0, 1, True, 1.0),  # a request
        (100.0, 1.0, 1, False, 1.0),
        (100.0, 30.0, 1, True, 30.0),
        (100.0, 60.0, 1, True, 40.0),  # 0.4 s of the limit
        (1.0, 1.0, 1, True, 0.4),
        (1.0, 1.0, 3, True, 0.4),
        (1.0, 1.0, 1, False, 1.0),  # thin, and nobody waits: a request for each active node
        (1.0, 1.0, 2, False, 2.0),
        (1.0, 1.0, 5, False, 3.0),  # 3 s of the limit
        (0.1, 1.0, 5, False, 1.0),  # one request at least
    ],
)
def test_a_bucket_holds_a_little_more_while_credit_is_out(
    rate: float, cost: float, nodes: int, waits: bool, spare: float
) -> None:
    """Or it would stand still until that is used."""
    names = [f"node-{number}" for number in range(nodes)]
    burst_seconds = 10.0 * cost / rate
    fleet = cluster(rate=rate, burst_seconds=burst_seconds, names=names, cost=cost)
    fleet.end_slots(START + math.ceil(burst_seconds))  # limits begin with one slot's refill
    for name in [*names, names[0]]:
        fleet.ask(float(fleet.slot), name, 1, waits=waits)
    held = sum(node.credit() for node in fleet.nodes.values())
    capacity = max(10.0 * cost, 0.25 * rate)
    assert fleet.available(fleet.slot + 1000.0) + held == pytest.approx(capacity + spare)


def test_a_bucket_of_which_nothing_is_out_holds_its_capacity() -> None:
    fleet = cluster(rate=1.0, burst_seconds=5.0)
    fleet.drain("a")
    assert fleet.available(T0 + 60.0) == 5.0


def test_credit_that_comes_back_is_not_there_twice() -> None:
    """Its place was filled while it was reserved. The node asks as it gives back."""
    fleet = cluster(rate=10.0)
    node = fleet.nodes["a"]
    fleet.ask(T0, "a", 8)
    node.used["r"] = 8.0  # by requests that run, and cost nothing in the end
    fleet.ask(T0 + 0.1, "a")
    node.used["r"], node.returned["r"] = 0.0, 8.0
    assert fleet.ask(T0 + 1.9, "a", 100) == 11.0  # with the spare one, but not 18


# Floats


def test_a_float_may_pass_only_where_limits_are_thin_and_the_debt_is_small() -> None:
    thick, thin = cluster(rate=100.0), cluster(rate=1.0)
    thick.ask(T0, "a", 1)
    assert not thick.nodes["a"].hint.may_float
    thin.ask(T0, "a", 1)
    assert thin.nodes["a"].hint.may_float
    thin.nodes["a"].used["r"] = 4.0
    thin.ask(T0, "a", 1)
    assert not thin.nodes["a"].hint.may_float


@pytest.mark.parametrize("weeks", [0, 1, 2, 3, 4, 5, 6, 7])
def test_floats_are_bounded_in_sum_in_every_month(weeks: int) -> None:
    """Times of traffic are kept in 32 bits of milliseconds, which is seven weeks."""
    begin = START + weeks * 7 * 86_400
    fleet = Cluster(Ledger([entry(r=1.0, burst_seconds=2.0)]), [f"node-{i}" for i in range(8)])
    for node in fleet.nodes.values():
        fleet.ledger.book(begin, Report(node.name, 1, 1, 1, 0, begin - 1, 0.0, {}))
    for number, name in enumerate(fleet.nodes):
        fleet.ask(begin + 0.05 * number, name, 1)
    floating = [
        node for node in fleet.nodes.values() if node.hint.may_float and node.credit() < 1.0
    ]
    # Each may let one pass before we hear of it: three seconds' worth of the limit.
    assert len(floating) == 3


def test_only_nodes_without_credit_are_reckoned_to_float() -> None:
    fleet = cluster(rate=1.0, burst_seconds=10.0, names="abcdef")
    fleet.end_slots(START + 4)
    for name in "abcde":
        assert fleet.ask(T0 + 4.0, name, 1) == 1.0
    assert fleet.ask(T0 + 4.0, "f", 1) == 0.0
    assert fleet.nodes["f"].hint.may_float  # one request, and the bound is three
    for name in "abcde":
        fleet.nodes[name].used["r"] = 1.0
        fleet.ask(T0 + 4.0, name)
    fleet.ask(T0 + 4.0, "f", 1)
    assert not fleet.nodes["f"].hint.may_float  # six might do so


def test_a_report_of_traffic_makes_its_node_active_at_once() -> None:
    """A limit of three per second is thin for two nodes with traffic, and not for one."""
    fleet = cluster(rate=3.0, burst_seconds=10.0)
    fleet.ask(T0, "b", 4)
    fleet.end_slots(START + 10)
    fleet.nodes["b"].used["r"] = 2.0
    fleet.ledger.book(START + 11, fleet.nodes["b"].report(START + 10))
    fleet.ask(T0 + 11.1, "a", 1)
    assert fleet.nodes["a"].hint.may_float


def test_a_late_report_of_traffic_makes_no_node_active() -> None:
    fleet = cluster(rate=3.0, burst_seconds=10.0)
    fleet.ask(T0, "b", 4)
    fleet.end_slots(START + 10, silent=("b",))
    fleet.nodes["b"].used["r"] = 2.0
    fleet.ledger.book(START + 11, fleet.nodes["b"].report(START + 1))
    fleet.ask(T0 + 11.1, "a", 1)
    assert not fleet.nodes["a"].hint.may_float


def test_a_node_with_traffic_after_a_pause_counts_as_one() -> None:
    fleet = cluster(rate=3.0, burst_seconds=10.0)
    fleet.ask(T0 + 0.5, "a", 1)
    fleet.end_slots(START + 4)
    fleet.ask(T0 + 5.6, "a", 1)  # more than five seconds after, and still among the active ones
    assert not fleet.nodes["a"].hint.may_float
