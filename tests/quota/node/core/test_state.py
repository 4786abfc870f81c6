"""Properties and examples of `NodeState`, beside the conformance table cases.json."""

import math
import os
import pickle
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.errors import ProtocolError
from sluicegate.quota.errors import Throttled
from sluicegate.quota.messages import Ack, Ask, Hint, Line, Quota, Report, ServiceQuota, Share
from sluicegate.quota.node.core._user_table import Ticket
from sluicegate.quota.node.core.reporter import Reporter
from sluicegate.quota.node.core.state import NodeState
from sluicegate.quota.stable_hash import hash_fraction

SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
_CENTRALS = ("c1", "c2")


def _node(node_id: str = "n1", **options: object) -> NodeState:
    return NodeState(node_id, 1, _CENTRALS, now=0.0, wall=1000.0, **options)  # type: ignore[arg-type]


def _quota(
    slot: int,
    users: dict[str, dict[str, Share]],
    newcomers: dict[str, float] | None = None,
    time: float | None = None,
    *,
    epoch: int = 1,
    whole: bool = False,
) -> Quota:
    """An answer to an Ask: users that the node does not know yet are told of, too."""
    services = {"front": ServiceQuota(users, newcomers or {})}
    told = float(slot) if time is None else time
    return Quota("c1", epoch, 1, slot, told, 2, whole, 0.05, services)


def _ack(report: Report, now: float, *, leads: bool = True, epoch: int = 1) -> Ack:
    return Ack("c1", leads, epoch, report.boot, report.sequence, report.sent, 1000.0 + now)


def _reports(node: NodeState, now: float) -> dict[str, Report]:
    return {to: told for to, told in node.outgoing(now) if isinstance(told, Report)}


# Sums of these are exact: an allowance is kept in single precision.
_amount = st.sampled_from([0.0, 0.125, 0.25, 1.0, 3.0, 7.5, 1000.0])
_amounts = st.dictionaries(st.sampled_from(["reads", "writes", "other"]), _amount, max_size=3)
_share = st.sampled_from([0.0, 0.0625, 0.25, 1.0, 2.5, 10.0, 333.0])
_offers = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.2, 0.9, 1.0, 3.0]),
        st.sampled_from(["ann", "bob", "cy"]),
        _amounts,
        st.integers(0, 300),
    ),
    max_size=8,
)


@settings(max_examples=200, deadline=None)
@given(_share, _share, _share, _offers, st.booleans(), st.booleans())
def test_an_offer_is_a_loop_of_throttle_and_consume(
    reads: float,
    writes: float,
    new: float,
    offers: list[tuple[float, str, dict[str, float], int]],
    is_told: bool,
    is_running: bool,
) -> None:
    nodes = [_node(fallback=None if writes else {"reads": 4.5}) for _ in range(2)]
    shares = {"reads": Share(reads, reads / 8), "writes": Share(writes, writes / 8)}
    now = 0.0
    for node in nodes:
        node.outgoing(now)
        if is_told:
            quota = _quota(1000, {"ann": shares, "cy": {}}, {"reads": new}, 1000.0)
            node.receive(now, "c1", quota)
        if is_running:
            node.throttle(now, "front", "ann", {"reads": 0.25})
    one, other = nodes
    for pause, user, amounts, count in offers:
        now += pause
        passed = 0
        for _ in range(count):
            if one.throttle(now, "front", user, amounts) is None:
                one.consume(now, "front", user, amounts)
                passed += 1
        assert other.offer(now, "front", user, amounts, count) == passed
    if (
        not is_running
    ):  # else the end of a request releases a part of another, and an offer asks later
        assert one.status(now).asking == other.status(now).asking
    ours, theirs = one.leave(now)[0][1].lines, other.leave(now)[0][1].lines
    assert _flat(ours) == pytest.approx(_flat(theirs), rel=1e-9, abs=1e-9)


def _flat(lines: dict[str, dict[str, dict[str, Line]]]) -> dict[str, float]:
    return {
        f"{service} {user} {resource} {what}": number
        for service, users in lines.items()
        for user, cells in users.items()
        for resource, line in cells.items()
        for what, number in line._asdict().items()
    }


@pytest.mark.no_cover  # in the soak a quarter of a million calls
@pytest.mark.parametrize(("nodes", "slots_each"), [(64 if SOAK else 20, 60), (20, 1)])
def test_a_small_limit_lives_on_nodes_that_are_on_their_own(nodes: int, slots_each: int) -> None:
    """One per minute, one per second on many nodes: no central, only safe shares."""
    names = [f"node-{number}" for number in range(nodes)]
    fleet = [_node(name, max_users=16) for name in names]
    share = Share(0.0, 1 / slots_each / nodes)
    for node in fleet:
        node.receive(0.0, "c1", _quota(1000, {"ann": {"reads": share}}, time=1000.0))
    passed = [
        sum(node.offer(slot + 0.5, "front", "ann", {"reads": 1.0}, 5) for node in fleet)
        for slot in range(4, 4 + slots_each * nodes)
    ]
    # Each node once in a full round, at a time of its own: by no means all at once or at the end.
    assert sum(passed) == pytest.approx(nodes, abs=1)
    # At first, those whose turn was in the slots since the leader was last heard.
    early = 4.5 / slots_each / nodes
    assert passed[0] == sum(hash_fraction(name, "front", "ann") >= 1.0 - early for name in names)
    quarter = len(passed) // 4
    for begin in range(0, 4 * quarter, quarter):
        assert nodes / 10 <= sum(passed[begin : begin + quarter]) <= nodes / 2
    assert max(passed[1:]) <= 5


def test_a_newcomer_never_gets_more_than_share_times_slots_and_one_request() -> None:
    for share in (0.01, 0.3, 1.0, 2.5):
        node = _node()
        passed = 0
        for slot in range(200):
            node.receive(float(slot), "c1", _quota(1000 + slot, {}, {"reads": share}))
            for part in range(20):
                passed += node.offer(slot + part / 20, "front", "bob", {"reads": 1.0}, 10)
                assert passed <= share * (slot + part / 20) + max(share, 1.0) + 1e-3
        # What is asked for a little late is lost where the allowance is full.
        assert passed > 0.97 * share * 200 - 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_settled_is_never_more_than_leaders_have_booked(seed: int) -> None:
    """Acks are lost, late and out of order; leaders change. What a leader booked is known here."""
    chance = random.Random(seed)
    node = _node()
    booked = 0.0  # the highest total of a report that a leader's Ack has brought back
    under_way: list[Callable[[], None]] = []
    epoch = 1

    def deliver(report: Report, total: float, leads: bool, told_epoch: int, now: float) -> None:
        nonlocal booked
        if leads and told_epoch >= highest[0]:
            highest[0] = told_epoch
            booked = max(booked, total)
        node.receive(now, "c1", _ack(report, now, leads=leads, epoch=told_epoch))

    highest = [0]
    total = 0.0
    for slot in range(1, 40):
        now = float(slot)
        report = _reports(node, now + 0.2)["c1"]  # it tells of the slots before this one
        line = report.lines.get("front", {}).get("ann", {}).get("reads")
        if line is not None:
            assert line.consumed == total
            assert line.settled <= booked
        if chance.random() < 0.1:
            epoch += 1
        told = total
        node.consume(now + 0.2, "front", "ann", {"reads": 1.0})
        total += 1.0
        leads, at = chance.random() < 0.7, now + 0.3
        under_way.append(
            lambda report=report, total=told, leads=leads, epoch=epoch, at=at: deliver(  # type: ignore[misc]
                report, total, leads, epoch, at
            )
        )
        chance.shuffle(under_way)
        while under_way and chance.random() < 0.6:
            act = under_way.pop()
            act()
            if chance.random() < 0.2:
                act()


def test_settled_catches_up_when_acks_are_late_by_many_reports() -> None:
    node = _node()
    sent: list[Report] = []
    for slot in range(1, 60):
        node.consume(float(slot), "front", "ann", {"reads": 1.0})
        sent.append(_reports(node, slot + 0.2)["c1"])
        if len(sent) > 12:
            node.receive(slot + 0.3, "c1", _ack(sent[-13], slot + 0.3))
    line = _reports(node, 60.2)["c1"].lines["front"]["ann"]["reads"]
    assert 59 - 25 <= line.settled <= 59 - 12


def test_of_many_reports_that_no_leader_has_acknowledged_a_few_totals_are_kept() -> None:
    node = _node()
    sent: list[Report] = []
    for slot in range(1, 60):
        node.consume(float(slot), "front", "ann", {"reads": 1.0})
        sent.append(_reports(node, slot + 0.2)["c1"])
    # One after the other is acknowledged: too little is settled for a while, and never too much.
    settled = []
    for number, report in enumerate(sent[1:], 2):
        node.receive(61.0, "c1", _ack(report, 61.0))
        node.consume(60.0 + number, "front", "ann", {"reads": 1.0})
        line = _reports(node, 61.2 + number)["c1"].lines["front"]["ann"]["reads"]
        assert line.settled <= number
        settled.append(line.settled)
    assert settled[:2] == [1.0, 2.0]


def test_users_who_have_gone_are_forgotten_and_their_totals_begin_again() -> None:
    node = _node()
    node.receive(0.0, "c1", _quota(1000, {}, {"reads": 5.0}, 1000.0))
    for user in range(1000):
        node.offer(0.1, "front", f"user-{user}", {"reads": 1.0}, 3)
    assert node.status(0.2).users == {"front": {"newcomer": 1000}}
    for slot in range(1, 140):
        for central, report in _reports(node, slot + 0.5).items():
            node.receive(slot + 0.6, central, _ack(report, slot + 0.6, leads=central == "c1"))
    assert node.status(140.0).users == {}
    node.consume(140.1, "front", "user-1", {"reads": 2.0})
    line = _reports(node, 141.5)["c1"].lines["front"]["user-1"]["reads"]
    assert line == Line(2.0, 0, 1, 0.0, 0.0)


def test_an_idle_user_gives_back_all_its_credit_before_it_is_forgotten() -> None:
    node = _node()
    node.receive(0.0, "c1", _quota(1000, {"ann": {"reads": Share(10.0, 0.0)}}, time=1000.0))
    assert node.offer(0.1, "front", "ann", {"reads": 1.0}, 3) == 3
    returned: dict[float, int] = {}  # by amount, in which slot it was first told
    for slot in range(300):
        now = slot + 0.5
        for central, sent in node.outgoing(now):
            if isinstance(sent, Ask):
                [[each]] = [users.values() for users in sent.users.values()]
                assert each.requests == 0
                returned.setdefault(each.resources["reads"].returned, slot)
            else:
                node.receive(now + 0.1, central, _ack(sent, now + 0.1, leads=central == "c1"))
    # First all but what may be needed before more can come: 4 requests, after 3 at once.
    assert list(returned) == [3.0, 7.0]
    assert returned[3.0] == 0
    assert 120 <= returned[7.0] <= 125
    assert node.status(300.0).users == {}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_no_more_passes_than_was_granted_and_not_given_back(seed: int) -> None:
    """A leader that grants at random. Its messages are late, doubled and out of order, or lost."""
    chance = random.Random(seed)
    node = _node()
    node.receive(0.0, "c1", _quota(1000, {"ann": {"reads": Share(0.0, 0.0)}}, time=1000.0))
    granted = used = returned = now = 0.0
    under_way: list[Quota] = []
    running: list[tuple[float, Ticket]] = []
    for _ in range(300):
        now += chance.choice([0.0, 0.003, 0.02, 0.15])
        cost = chance.choice([0.25, 1.0, 3.0])
        ticket = Ticket()
        if node.throttle(now, "front", "ann", {"reads": cost}, ticket=ticket) is None:
            running.append((cost, ticket))
            used += cost
        if running and chance.random() < 0.5:
            cost, ticket = running.pop(chance.randrange(len(running)))
            node.consume(now, "front", "ann", {"reads": cost}, ticket)
        assert used <= granted - returned + 1e-5
        for _, sent in node.outgoing(now):
            if isinstance(sent, Ask):
                each = sent.users["front"]["ann"]
                credit = each.resources["reads"]
                assert returned <= credit.returned <= credit.granted <= granted
                assert credit.used == pytest.approx(used, abs=1e-4)
                returned = credit.returned
                granted += chance.choice([0.0, 0.5, 1.0, 7.0]) if each.requests else 0.0
        hint = Hint(0.0, recall=chance.random() < 0.1, may_float=False)
        services = {
            "front": ServiceQuota({"ann": {"reads": Share(granted, 0.0)}}, {}, {"ann": hint})
        }
        under_way.append(_quota(1000, {}, time=1000.0 + now)._replace(services=services))
        chance.shuffle(under_way)
        while under_way and chance.random() < 0.5:
            quota = under_way.pop() if chance.random() < 0.8 else under_way[-1]
            node.receive(now, "c1", quota)


def test_a_user_is_not_forgotten_before_a_leader_knows_his_totals() -> None:
    node = _node()
    node.consume(0.1, "front", "ann", {"reads": 2.0})
    for slot in range(1, 200):
        for central, report in _reports(node, slot + 0.5).items():
            node.receive(slot + 0.6, central, _ack(report, slot + 0.6, leads=False))
    assert node.status(200.0).users == {"front": {"fallback": 1}}


def test_a_central_that_is_dead_for_long_holds_no_memory() -> None:
    node = _node()
    node.consume(0.1, "front", "ann", {"reads": 2.0})
    for slot in range(1, 300):
        report = _reports(node, slot + 0.5)["c1"]
        node.receive(slot + 0.6, "c1", _ack(report, slot + 0.6))
    assert node.status(300.0).users == {}


def test_credit_that_was_spent_is_not_forgiven_by_forgetting() -> None:
    node = _node()
    node.receive(0.0, "c1", _quota(1000, {}, {"reads": 0.001}, 1000.0))
    node.consume(0.1, "front", "ann", {"reads": 1.0})
    for slot in range(1, 300):
        for central, report in _reports(node, slot + 0.5).items():
            node.receive(slot + 0.6, central, _ack(report, slot + 0.6, leads=central == "c1"))
    assert node.status(300.0).users == {"front": {"newcomer": 1}}


def test_at_the_cap_new_users_share_and_nobody_gets_more() -> None:
    node = _node(max_users=10)
    node.receive(0.0, "c1", _quota(1000, {}, {"reads": 1.0}, 1000.0))
    passed = sum(
        node.offer(0.1, "front", f"user-{user}", {"reads": 1.0}, 5) for user in range(1000)
    )
    assert passed <= 10 + 256
    assert node.status(0.2).users["front"]["newcomer"] <= 10 + 256


def test_users_who_share_a_tally_are_not_free() -> None:
    node = _node(max_users=1)
    spare = {f"~{number}": {} for number in range(256)}
    node.throttle(0.0, "front", "ann")
    node.receive(0.0, "c1", _quota(1000, spare, time=1000.0))
    assert node.offer(0.1, "front", "bob", {"reads": 1.0}, 1000) == 10


def test_very_many_free_users_leave_room_for_the_others() -> None:
    node = _node(max_users=100)
    free: dict[str, dict[str, Share]] = {f"user-{number}": {} for number in range(200)}
    node.receive(0.0, "c1", _quota(1000, free, {"reads": 1.0}, 1000.0))
    assert node.state(0.1, "front", "user-0") == "free"
    assert node.state(0.1, "front", "user-199") == "newcomer"
    for number in range(40):
        assert node.throttle(0.1, "front", f"limited-{number}", {"reads": 1.0}) is None


def test_a_free_user_is_not_forgotten_as_long_as_he_comes() -> None:
    node = _node()
    node.receive(0.0, "c1", _quota(1000, {"ann": {}, "bob": {}}, {"reads": 1.0}, 1000.0))
    for slot in range(1, 400):
        assert node.throttle(slot + 0.1, "front", "ann", {"reads": 1e6}) is None
        for central, report in _reports(node, slot + 0.5).items():
            node.receive(slot + 0.6, central, _ack(report, slot + 0.6, leads=central == "c1"))
    assert node.status(400.0).users == {"front": {"free": 1}}


def test_a_flood_of_reservations_is_a_few_numbers() -> None:
    node = _node()
    node.receive(0.0, "c1", _quota(1000, {"ann": {"reads": Share(1e9, 1.0)}}, time=1000.0))
    for _ in range(10_000):
        node.throttle(0.1, "front", "ann", {"reads": 1.0})
    line = _reports(node, 1.2)["c1"].lines["front"]["ann"]["reads"]
    assert line.held == 10_000.0
    for _ in range(10_000):
        node.consume(1.3, "front", "ann", {"reads": 1.0})
    line = _reports(node, 2.2)["c1"].lines["front"]["ann"]["reads"]
    assert (line.consumed, line.held) == (10_000.0, 0.0)


def test_outgoing_has_something_to_say_when_due_says_so() -> None:
    chance = random.Random(3)
    for slot_seconds in (0.1, 1.0, 3.0):
        wall = chance.uniform(1.6e9, 1.8e9)
        node = NodeState("n1", 1, _CENTRALS, now=5.0, wall=wall, slot_seconds=slot_seconds)
        now = 5.0
        for _ in range(200):
            now = node.due(now)
            assert node.outgoing(now)
            assert node.due(now) > now


def test_epochs_and_slots_do_not_go_back() -> None:
    chance = random.Random(5)
    node = _node()
    node.receive(0.0, "c1", _quota(1000, {}, {"reads": 1.0}, 1000.0))
    epoch, slot, now = 0, 0, 0.0
    for _ in range(500):
        now += chance.uniform(0.0, 0.7)
        time = 1000.0 + now + chance.uniform(-5.0, 5.0)
        told = chance.randint(1, 1 + int(now / 20))
        node.receive(now, "c1", Ack("c1", True, told, 1, 0, now - 0.01, time))
        status = node.status(now)
        assert status.epoch >= epoch
        assert status.slot >= slot
        epoch, slot = status.epoch, status.slot


_BAD: list[tuple[Callable[[NodeState], object], type[Exception], str]] = [
    (lambda n: n.consume(0.0, "s", "u", {"reads": -1.0}), ValueError, "amounts .* got -1.0 for"),
    (lambda n: n.consume(0.0, "s", "u", {"reads": math.nan}), ValueError, "got nan for 'reads'"),
    (lambda n: n.consume(0.0, "s", "u", {"a": 1, "b": "2"}), ValueError, "got '2' for 'b'"),  # type: ignore[dict-item]
    (lambda n: n.consume(0.0, "s", "u", {"": 1.0}), ValueError, "resource must not be empty"),
    (lambda n: n.consume(0.0, "", "u", {"reads": 1.0}), ValueError, "service must not be empty"),
    (lambda n: n.throttle(0.0, "s", ""), ValueError, "user must not be empty, got ''"),
    (lambda n: n.throttle(0.0, "s", 7), TypeError, "user must be a str, got 7"),  # type: ignore[arg-type]
    (lambda n: n.throttle(0.0, "s", "u", {"reads": math.inf}), ValueError, "expect .* got inf"),
    (lambda n: n.offer(0.0, "s", "u", {"reads": 1.0}, -1), ValueError, "count must be from 0"),
    (lambda n: n.receive(0.0, "c9", _quota(1, {})), ValueError, "central must be one of .* 'c9'"),
    (lambda n: n.receive(0.0, "c1", "hello"), TypeError, "an Ack or a Quota, got 'hello'"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("act", "error", "message"), _BAD)
def test_bad_input_is_refused_and_changes_nothing(
    act: Callable[[NodeState], object], error: type[Exception], message: str
) -> None:
    node = _node()
    with pytest.raises(error, match=message):
        act(node)
    assert node.status(0.0).users == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lease": -1}, "lease must be from 0"),
        ({"slot_seconds": 0.0}, "slot_seconds must be"),
        ({"reservation_seconds": 0.0}, "reservation_seconds must be"),
        ({"max_users": 0}, "max_users must be from 1"),
        ({"fallback": {}}, "fallback must name 1 to 8 resources"),
        ({"fallback": {"reads": -1.0}}, "got -1.0 for 'reads'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _node(**options)


@pytest.mark.parametrize("centrals", [(), ("a", "a"), ("",)])
def test_centrals_have_different_names(centrals: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="central"):
        NodeState("n1", 1, centrals, now=0.0, wall=0.0)


def test_a_refusal_can_be_sent_to_another_process() -> None:
    refusal = Throttled("front", "ann", "reads", 0.25)
    again = pickle.loads(pickle.dumps(refusal))
    assert (again.service, again.user, again.resource, again.retry_after) == (
        "front",
        "ann",
        "reads",
        0.25,
    )
    assert str(again) == (
        "user 'ann' of service 'front' has used up its 'reads' quota, retry in 0.25 s"
    )


def test_a_node_shows_itself() -> None:
    assert repr(_node()) == ("NodeState('n1', slot=1000, epoch=-1, leader=None, users=0)")


def test_requests_that_cost_nothing_do_not_make_the_next_ones_free() -> None:
    node = _node()
    node.receive(0.0, "c1", _quota(1000, {"ann": {"reads": Share(4.0, 1.0)}}, time=1000.0))
    for reads in (1.0, 0.0):
        node.throttle(0.1, "front", "ann", {"reads": reads})
        node.consume(0.1, "front", "ann", {"reads": reads})
    assert sum(node.throttle(0.2, "front", "ann") is None for _ in range(100)) == 3


def test_what_is_not_limited_makes_no_debt() -> None:
    node = _node()
    for slot in range(60):  # on fallback: nobody has told anything of the service
        if node.throttle(float(slot), "front", "ann") is None:
            node.consume(float(slot), "front", "ann", {"reads": 1000.0})
    node.receive(60.0, "c1", _quota(1060, {}, {"reads": 5.0}, 1060.0))
    passed = 0
    for slot in range(61, 71):
        node.receive(float(slot), "c1", _quota(1000 + slot, {}, {"reads": 5.0}, 1000.0 + slot))
        passed += node.offer(slot + 0.5, "front", "ann", {"reads": 1.0}, 20)
    assert passed >= 40


def test_what_runs_when_a_limit_is_taken_away_is_still_booked() -> None:
    node = _node()
    node.receive(0.0, "c1", _quota(1000, {"ann": {"reads": Share(9.0, 1.0)}}, time=1000.0))
    assert node.throttle(0.1, "front", "ann", {"reads": 5.0}) is None
    node.receive(0.2, "c1", _quota(1000, {"ann": {}}, time=1000.2))
    node.consume(0.3, "front", "ann", {"reads": 4.0})
    line = _reports(node, 1.2)["c1"].lines["front"]["ann"]["reads"]
    assert (line.consumed, line.held) == (4.0, 0.0)


@pytest.mark.parametrize("time", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_a_time_that_is_none_is_refused(time: float) -> None:
    node = _node()
    with pytest.raises(ProtocolError, match="expected seconds"):
        node.receive(0.0, "c1", Ack("c1", True, 1, 1, 0, 0.0, time))
    with pytest.raises(ProtocolError, match="expected seconds"):
        node.receive(0.0, "c1", _quota(1000, {}, {"reads": 1.0}, time))
    assert node.status(0.5).slot == 1000


def test_a_slow_first_word_of_a_new_leader_does_not_move_the_slots() -> None:
    node = _node()
    node.receive(0.0, "c1", Ack("c1", True, 1, 1, 0, -0.01, 1000.0))
    node.receive(20.0, "c2", Ack("c2", True, 2, 1, 0, 0.5, 1020.0))  # 19.5 s on its way
    assert node.status(20.0).slot == 1020


def test_a_leader_whose_clock_was_an_hour_wrong_is_left_behind() -> None:
    node = _node()
    node.receive(0.0, "c1", Ack("c1", True, 1, 1, 0, -0.01, 4600.0))
    assert node.status(0.0).slot == 4600
    node.receive(1.0, "c2", Ack("c2", True, 2, 1, 0, 0.99, 1001.0))
    assert node.status(1.0).slot == 1001
    node.receive(
        1.1, "c2", _quota(1001, {"ann": {"reads": Share(3.0, 1.0)}}, time=1001.1)._replace(epoch=2)
    )
    assert node.state(1.2, "front", "ann") == "fresh"


def test_the_next_reporter_goes_on_with_what_the_leader_has_told_of_all_users() -> None:
    """Or new users would live on the fallback, which may be more than their limit."""
    node = NodeState("n1", 1, ("c1",), now=0.0, wall=1000.0)
    node.outgoing(0.0)
    services = {"front": ServiceQuota({"free": {}}, {"requests": 0.5}, {})}
    for user in ("free", "new"):
        node.consume(0.05, "front", user, {"requests": 1.0})
    node.receive(0.1, "c1", Quota("c1", 1, 7, 1000, 1000.1, 2, False, 0.05, services))
    node.lose_connection(0.2, "c1")
    table = node._user_table
    assert table.window(0.3)[4] == pytest.approx(0.2)
    node._reporter = Reporter(table, ("c1",), boot=1)
    node.outgoing(0.4)
    assert node.state(0.4, "front", "free") == "free"
    assert node.state(0.4, "front", "new") == "newcomer"
    assert table.window(0.4)[4] == pytest.approx(0.2)  # still alone
