"""Quotas with real processes: a central, end nodes of several workers, and what happens to them.

Stories that do not disturb each other share a run; a run is a fixture, and each story a test of
what came of it. All is measured by what the workers wrote down, in windows of the wall clock that
begin anywhere in steps of 50 ms. `over` is against limit times window alone, with no allowance for
a burst.

Tolerances:
- Without faults shares are paced, with a lead of a tenth and one request on each node. That is one
  request for each node in a window that does not begin with a slot: 2 % here. The rest, up to the
  goal of 5 %, is for a machine on which other things run too. If that holds a worker up for more
  than 30 ms, which the workers note when they sleep, what passes later by it does not count.
- A node that has lost its central, or was met again, is not paced: it may take its share in the
  first moments of a slot. So in a window of a second that follows such a change there may be two
  slots' shares, and no more. It is no longer seen in a window of ten seconds.
- What a worker did between its last decision and a SIGKILL may not be written down: one request.
"""

import functools
import math
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from tests.system.course import Course
from tests.system.fleet import Act, Fleet, Spans, State, Traffic, begin_together, play, toml
from tests.system.quota_worker import BIN_SECONDS

WARM = 4.0  # seconds until everyone knows everyone


@dataclass(frozen=True)
class Outcome:
    """What came of a run: the course of each user, what was booked, and when things were done."""

    courses: dict[str, Course]
    recorded: dict[str, float]
    at: dict[str, float] = field(default_factory=dict)
    states: list[list[State]] = field(default_factory=list)  # of each node


def outcome(fleet: Fleet, *users: str, **at: float) -> Outcome:
    fleet.end()
    return Outcome(
        {user: fleet.course(user) for user in users},
        {user: fleet.central.recorded(user) for user in users},
        at,
        [node.states() for node in fleet.nodes],
    )


def hops(nodes: int, seconds: float, seed: int) -> list[Spans]:
    """On which node a client is, and when: 1 to 3 s on one, then on another."""
    chance = random.Random(seed)
    spans: list[list[tuple[float, float]]] = [[] for _ in range(nodes)]
    at, here = 0.0, 0
    while at < seconds:
        stays = chance.uniform(1.0, 3.0)
        spans[here].append((at, at + stays))
        at += stays
        here = chance.choice([node for node in range(nodes) if node != here])
    return [tuple(one) for one in spans]


# Without faults

CALM_SECONDS = 22.0
GREEDY, HOPPER, RARE = 200.0, 40.0, 1.0
CHANGES = ((0.0, 240.0), (9.0, 120.0), (15.0, 360.0))  # from when on, the limit of `changing`
HOPPERS_BURST = 2.0


def calm_limits(changing: float) -> str:
    return toml(
        ("greedy", GREEDY, 0.0), ("hopper", HOPPER, HOPPERS_BURST), ("changing", changing, 0.0)
    )


@pytest.fixture(scope="module")
def calm() -> Iterator[dict[str, Outcome]]:
    """Four nodes of two workers; and beside it eight of one worker, for the smallest limit."""
    traffic = [
        [
            Traffic("greedy", 3 * GREEDY / 4),
            Traffic("hopper", 5 * HOPPER, spans),
            Traffic("changing", 480.0 / 4),
        ]
        for spans in hops(4, CALM_SECONDS, seed=1)
    ]
    rare = [[Traffic("rare", 2.0)] for _ in range(8)]
    with (
        Fleet(calm_limits(CHANGES[0][1]), traffic, seconds=CALM_SECONDS) as four,
        Fleet(toml(("rare", RARE, 0.0)), rare, seconds=CALM_SECONDS, workers=1) as eight,
    ):
        begin_together(four, eight)
        for at, limit in CHANGES[1:]:
            four.wait(at)
            four.central.write_limits(calm_limits(limit))
        yield {
            "four": outcome(four, "greedy", "hopper", "changing"),
            "eight": outcome(eight, "rare"),
        }


def test_three_times_the_limit_on_four_nodes_is_held_to_the_limit(
    calm: dict[str, Outcome],
) -> None:
    greedy = calm["four"].courses["greedy"]
    assert greedy.demand(WARM, CALM_SECONDS) >= 2.9 * GREEDY * (CALM_SECONDS - WARM), greedy
    assert greedy.over_in_time(1, GREEDY, WARM, CALM_SECONDS) <= 0.05, greedy
    assert greedy.under(GREEDY, WARM, CALM_SECONDS) <= 0.02, greedy


def test_a_client_that_hops_from_node_to_node_gains_nothing(calm: dict[str, Outcome]) -> None:
    hopper = calm["four"].courses["hopper"]
    admitted = hopper.total(WARM, CALM_SECONDS) / (HOPPER * (CALM_SECONDS - WARM))
    assert admitted <= 1.1, hopper
    # Nor is he locked out. What was promised to the node he has left comes back with its report,
    # two slots later; with a burst of two slots there is nothing saved to bridge them.
    assert admitted >= 0.4, hopper


def test_limits_that_are_changed_under_load_hold_within_three_slots(
    calm: dict[str, Outcome],
) -> None:
    changing = calm["four"].courses["changing"]
    ends = [at for at, _ in CHANGES[1:]] + [CALM_SECONDS]
    for (begin, limit), end in zip(CHANGES, ends, strict=True):
        # The file is looked at every second, and the assignment is in the middle of a slot, for
        # the next one: in the first slot it is seen, in the second given, in the third it holds.
        # What the bucket held then, or owed, is evened out in the fourth.
        holds = max(WARM, begin + 2.0)
        assert changing.total(holds, holds + 2) <= 1.05 * 2 * limit, (limit, changing)
        settled = max(WARM, begin + 4.0)
        assert changing.over_in_time(1, limit, settled, end) <= 0.05, (limit, changing)
        assert changing.under(limit, settled, end) <= 0.02, (limit, changing)


def test_one_request_per_second_goes_round_between_eight_nodes(calm: dict[str, Outcome]) -> None:
    rare = calm["eight"].courses["rare"]
    seconds = CALM_SECONDS - WARM
    assert rare.total(WARM, CALM_SECONDS) >= 0.95 * RARE * seconds, rare
    assert rare.most(10, WARM, CALM_SECONDS) <= 10 * RARE + 1, rare


def test_what_is_booked_is_what_was_admitted(calm: dict[str, Outcome]) -> None:
    for run in calm.values():
        for user, course in run.courses.items():
            assert run.recorded[user] == course.total(), course


# Nodes die, freeze and come back

NODES_SECONDS = 31.0
HARMED = 100.0
HARMED_BURST = 0.0
REPORTER_KILLED, FROZEN, THAWED, KILLED, RESTARTED = 5.3, 8.3, 14.3, 20.0, 25.3


@pytest.fixture(scope="module")
def nodes() -> Iterator[Outcome]:
    """Four nodes of two workers, and a fault at a time."""
    traffic = [[Traffic("harmed", 3 * HARMED / 4), Traffic("modest", 5.0)] for _ in range(4)]
    limits = toml(("harmed", HARMED, HARMED_BURST), ("modest", 40.0, HARMED_BURST))
    with Fleet(limits, traffic, seconds=NODES_SECONDS) as fleet:
        begin_together(fleet)
        first, second, third, _ = fleet.nodes
        fleet.wait(REPORTER_KILLED)
        first.kill_reporter()
        fleet.wait(FROZEN)
        second.signal(signal.SIGSTOP)
        fleet.wait(THAWED)
        second.signal(signal.SIGCONT)
        fleet.wait(KILLED)
        third.kill()
        fleet.wait(RESTARTED)
        fleet.restart(third)
        yield outcome(fleet, "harmed", "modest")


def slots_between(course: Course, begin: float, end: float) -> list[int]:
    """Admitted in each slot that lies wholly between two moments."""
    return course.seconds(math.ceil(begin), math.floor(end))


def test_another_worker_reports_when_the_reporting_one_is_killed(nodes: Outcome) -> None:
    harmed = nodes.courses["harmed"]
    # The demand of the three others and of one worker is still more than the limit.
    for admitted in slots_between(harmed, REPORTER_KILLED - 1, FROZEN):
        assert 0.95 * HARMED <= admitted <= 1.05 * HARMED, harmed


@pytest.mark.parametrize(
    ("gone", "back"), [(FROZEN, THAWED), (KILLED, RESTARTED)], ids=["frozen", "killed"]
)
def test_the_share_of_a_node_that_is_gone_goes_to_the_others_in_three_slots(
    nodes: Outcome, gone: float, back: float
) -> None:
    harmed = nodes.courses["harmed"]
    for admitted in slots_between(harmed, gone + 3, back):
        assert 0.95 * HARMED <= admitted <= 1.05 * HARMED, harmed
    # Before that the three others have what they had, less what is kept for the one that is gone.
    for admitted in slots_between(harmed, gone, gone + 3):
        assert admitted >= 0.5 * HARMED, harmed


@pytest.mark.parametrize("back", [THAWED, RESTARTED], ids=["thawed", "restarted"])
def test_a_node_that_comes_back_adds_its_share_once(nodes: Outcome, back: float) -> None:
    harmed = nodes.courses["harmed"]
    end = back + 5.5
    assert harmed.most(1, back - 1, end) <= 2.05 * HARMED, harmed
    # What it was promised and did not use is free again; a bucket holds a slot's refill at least.
    saved = max(HARMED_BURST, 1.0) * HARMED
    assert harmed.total(back, end) <= 1.05 * HARMED * (end - back) + saved, harmed
    for admitted in slots_between(harmed, back + 3, end):
        assert 0.95 * HARMED <= admitted <= 1.05 * HARMED, harmed


def test_who_is_within_his_limit_does_not_notice_that_nodes_die(nodes: Outcome) -> None:
    modest = nodes.courses["modest"]
    refused = modest.demand(WARM, NODES_SECONDS) - modest.total(WARM, NODES_SECONDS)
    assert refused <= 0.02 * modest.demand(WARM, NODES_SECONDS), modest


def test_nothing_that_a_killed_worker_let_through_is_lost_or_booked_twice(nodes: Outcome) -> None:
    killed = 3
    for user, course in nodes.courses.items():
        assert abs(nodes.recorded[user] - course.total()) <= killed, (nodes.recorded, course)


# The central goes away, or cannot be heard

CENTRAL_SECONDS = 31.0
HELD, MODEST = 100.0, 20.0
HELD_BURST = 0.0
# In slots after the return of a central, times the limit. One that knows its nodes holds what they
# live on until they are back. One that knows nothing gives to those who are there, and it is paid
# for at once.
EVEN, UNEVEN = 1.1, 2.0


@dataclass(frozen=True)
class Plot:
    """What happens to a fleet's central: when, and what."""

    acts: list[tuple[float, Callable[[Fleet], object]]]
    options: dict[str, bool] = field(default_factory=dict)

    @property
    def gone(self) -> float:
        """The second from which on the nodes hear nothing."""
        return self.acts[0][0]


KNOWING = {  # It knows what was when it is there again
    "killed": Plot(  # late enough that the state of the running traffic is in the file
        [
            (14.3, lambda fleet: fleet.central.stop(signal.SIGKILL)),
            (14.3, lambda fleet: fleet.central.start()),
        ],
        {"has_state": True},
    ),
    "restarted": Plot(
        [(11.3, lambda fleet: fleet.central.stop()), (16.3, lambda fleet: fleet.central.start())],
        {"has_state": True},
    ),
    "frozen": Plot(
        [(9.3, lambda fleet: fleet.central.freeze()), (17.3, lambda fleet: fleet.central.thaw())],
    ),
    "cut off": Plot(
        [(8.3, lambda fleet: fleet.cable.cut()), (18.3, lambda fleet: fleet.cable.mend())],
        {"has_cable": True},
    ),
}
FORGETFUL = {  # It, or another, knows nothing
    "without state": Plot(
        [(13.3, lambda fleet: fleet.central.stop()), (13.3, lambda fleet: fleet.central.start())],
    ),
    "another": Plot(
        [
            (10.3, lambda fleet: fleet.central.stop(signal.SIGKILL)),
            (12.3, lambda fleet: fleet.take_over()),
        ],
        {"has_next": True},
    ),
}
AWAY = KNOWING | FORGETFUL


@pytest.fixture(scope="module")
def centrals() -> Iterator[dict[str, Outcome]]:
    """Fleets of three nodes, each with a fault of its own."""
    traffic = [
        [
            Traffic("held", 3 * HELD / 3),
            Traffic("modest", MODEST / 3),
            Traffic("debtor", 10.0, cost=300.0),
        ]
        for _ in range(3)
    ]
    limits = toml(("held", HELD, HELD_BURST), ("modest", 40.0, 10.0), ("debtor", 10.0, 0.0))
    with ExitStack() as stack:
        fleets = {
            name: stack.enter_context(
                Fleet(limits, traffic, seconds=CENTRAL_SECONDS, workers=1, **plot.options)
            )
            for name, plot in AWAY.items()
        }
        begin_together(*fleets.values())
        back, heard = play(
            [
                Act(second, fleets[name], functools.partial(act, fleets[name]))
                for name, plot in AWAY.items()
                for second, act in plot.acts
            ]
        )
        yield {
            name: outcome(fleet, "held", "modest", "debtor", back=back[fleet], heard=heard[fleet])
            for name, fleet in fleets.items()
        }


@pytest.mark.parametrize("name", AWAY)
def test_no_slot_is_without_a_limit_while_the_central_is_away(
    centrals: dict[str, Outcome], name: str
) -> None:
    held = centrals[name].courses["held"]
    assert held.most(1, WARM, CENTRAL_SECONDS) <= 2.05 * HELD, held
    # Nobody is paced meanwhile: beyond ten slots' shares there may be the one of a slot, in a
    # window that does not begin with one.
    assert held.over(10, HELD, WARM, CENTRAL_SECONDS) <= 0.1, held
    slots = slots_between(held, WARM, CENTRAL_SECONDS)
    most = 1.05 if name in KNOWING else 1.1
    for first in range(len(slots) - 9):
        assert sum(slots[first : first + 10]) <= most * 10 * HELD, held


def test_nodes_that_hear_nothing_go_on_with_leases_and_then_with_safe_shares(
    centrals: dict[str, Outcome],
) -> None:
    held = centrals["cut off"].courses["held"]
    (gone, _), (back, _) = AWAY["cut off"].acts
    for admitted in slots_between(held, gone, back):
        assert 0.95 * HELD <= admitted <= 1.05 * HELD, held


@pytest.mark.parametrize("name", AWAY)
def test_all_is_normal_five_slots_after_the_central_hears_its_nodes(
    centrals: dict[str, Outcome], name: str
) -> None:
    run = centrals[name]
    held, normal = run.courses["held"], run.at["heard"] + 5
    slots = slots_between(held, normal, CENTRAL_SECONDS)
    assert len(slots) >= 3, (normal, held)  # it did come back in time to be seen
    for admitted in slots:
        assert 0.98 * HELD <= admitted <= 1.05 * HELD, (run.at, held)


def after_the_return(run: Outcome) -> list[int]:
    """Admitted in each slot, from the one in which the central is back. Nodes come one by one."""
    return run.courses["held"].seconds(math.floor(run.at["back"]), run.at["heard"] + 5)


@pytest.mark.parametrize("name", KNOWING)
def test_a_central_that_knows_its_nodes_gives_nobody_what_others_live_on(
    centrals: dict[str, Outcome], name: str
) -> None:
    slots = after_the_return(centrals[name])
    assert max(slots) <= EVEN * HELD, (centrals[name].at, slots)
    assert sum(slots) <= 1.02 * HELD * len(slots), (centrals[name].at, slots)


@pytest.mark.parametrize("name", ["killed", "restarted", "frozen"])
def test_a_central_that_was_away_is_not_felt_at_its_return(
    centrals: dict[str, Outcome], name: str
) -> None:
    slots = after_the_return(centrals[name])
    assert min(slots) >= 0.9 * HELD, (centrals[name].at, slots)


@pytest.mark.parametrize("name", FORGETFUL)
def test_what_a_central_that_knows_nothing_gives_too_much_is_paid_for_at_once(
    centrals: dict[str, Outcome], name: str
) -> None:
    slots = after_the_return(centrals[name])
    assert max(slots) <= UNEVEN * HELD, (centrals[name].at, slots)
    assert sum(slots) <= 1.02 * HELD * len(slots), (centrals[name].at, slots)


@pytest.mark.parametrize("name", AWAY)
def test_who_is_within_his_limit_hardly_notices(centrals: dict[str, Outcome], name: str) -> None:
    modest = centrals[name].courses["modest"]
    demand = modest.demand(WARM, CENTRAL_SECONDS)
    # A central that knows nothing has to meet him anew on each node, which may cost a slot.
    most = MODEST if name in FORGETFUL else 0.02 * demand
    assert demand - modest.total(WARM, CENTRAL_SECONDS) <= most, modest


@pytest.mark.parametrize("name", KNOWING)
def test_a_debt_is_remembered(centrals: dict[str, Outcome], name: str) -> None:
    """He took more in his first seconds than he may in a minute: each request cost him 300."""
    debtor = centrals[name].courses["debtor"]
    assert debtor.total() > 0, debtor
    assert debtor.total(WARM, CENTRAL_SECONDS) == 0, debtor


@pytest.mark.parametrize("name", KNOWING)
def test_all_that_was_admitted_meanwhile_is_booked_once(
    centrals: dict[str, Outcome], name: str
) -> None:
    run = centrals[name]
    for user, cost in (("held", 1.0), ("modest", 1.0), ("debtor", 300.0)):
        course = run.courses[user]
        assert run.recorded[user] == cost * course.total(), (run.recorded, course)


@pytest.mark.parametrize("name", FORGETFUL)
def test_a_central_that_knows_nothing_books_what_none_before_it_has_acknowledged(
    centrals: dict[str, Outcome], name: str
) -> None:
    run = centrals[name]
    # Reports are of whole slots. The last one that was due may still have been on its way.
    unknown = math.floor(AWAY[name].gone)
    for user in ("held", "modest"):
        course = run.courses[user]
        least, most = course.total(unknown + BIN_SECONDS), course.total(unknown - 1)
        assert least <= run.recorded[user] <= most, (run.recorded, course)


def test_nodes_that_know_another_central_have_fresh_quotas_of_it(
    centrals: dict[str, Outcome],
) -> None:
    run = centrals["another"]
    for states in run.states:
        first = next(one for one in states if one.state == "fresh")
        last = states[-1]
        assert last.state == "fresh", states
        assert last.epoch > first.epoch, states
        # The longest wait between two tries, and two slots: to report, and to be given something.
        assert last.second <= run.at["back"] + 2 + 2, (run.at, states)
