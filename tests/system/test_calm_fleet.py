"""Quotas with real processes and no faults: a central, and end nodes of several workers.

Shares are paced, with a lead of a tenth and one request on each node. That is one request for each
node in a window that does not begin with a slot: 2 % here. The goal is 5 %.
"""

import math
import random
from collections.abc import Iterator

import pytest

from sluicegate.demo.traffic import Spans, Traffic
from tests.system.fleet import Fleet, begin_together, toml
from tests.system.outcome import WARM, Outcome, assert_served, outcome

CALM_SECONDS = 22.0
GREEDY, HOPPER, RARE = 200.0, 40.0, 1.0
CHANGES = {0.0: 240.0, 9.0: 120.0, 15.0: 360.0}  # from when on, the limit of `changing`
HOPPERS_BURST = 2.0


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
        Fleet(calm_limits(CHANGES[0.0]), traffic, seconds=CALM_SECONDS) as four,
        Fleet(toml(("rare", RARE, 0.0)), rare, seconds=CALM_SECONDS, workers=1) as eight,
    ):
        begin_together(four, eight)
        written = {}
        for at, limit in CHANGES.items():
            four.wait(at)
            four.central.write_limits(calm_limits(limit))
            written[f"{limit:g}"] = four.now
        yield {
            "four": outcome(four, "greedy", "hopper", "changing", **written),
            "eight": outcome(eight, "rare"),
        }


def test_three_times_the_limit_on_four_nodes_is_held_to_the_limit(
    calm: dict[str, Outcome],
) -> None:
    greedy = calm["four"].courses["greedy"]
    for slot in greedy.calm(WARM, CALM_SECONDS):
        assert greedy.demand(slot, slot + 1) >= 2.8 * GREEDY, str(greedy)
    assert greedy.over(1, GREEDY, WARM, CALM_SECONDS, calm=True) <= 0.05, str(greedy)
    assert greedy.over(1, GREEDY, WARM, CALM_SECONDS) <= 1.05, str(greedy)
    assert greedy.over(10, GREEDY, WARM, CALM_SECONDS) <= 0.1, str(greedy)
    assert greedy.under(GREEDY, WARM, CALM_SECONDS) <= 0.02, str(greedy)
    assert_served(greedy, GREEDY, WARM, CALM_SECONDS)


def test_a_client_that_hops_from_node_to_node_gains_nothing(calm: dict[str, Outcome]) -> None:
    hopper = calm["four"].courses["hopper"]
    seconds = CALM_SECONDS - WARM
    assert hopper.total(WARM, CALM_SECONDS) <= 1.1 * HOPPER * seconds, str(hopper)
    # Nor are they locked out. What was promised to the node they have left comes back with its
    # report, two slots later; with a burst of two slots there is nothing saved to bridge them.
    busy = seconds - len(hopper.calm(WARM, CALM_SECONDS))
    assert hopper.total(WARM, CALM_SECONDS) >= 0.4 * HOPPER * (seconds - busy), str(hopper)


def test_limits_that_are_changed_under_load_hold_within_three_slots(
    calm: dict[str, Outcome],
) -> None:
    run = calm["four"]
    changing = run.courses["changing"]
    ends = [*list(CHANGES)[1:], CALM_SECONDS]
    for limit, end in zip(CHANGES.values(), ends, strict=True):
        begin = math.ceil(run.at[f"{limit:g}"])
        late = math.ceil(changing.late(begin, begin + 4.0))
        # The file is looked at every second, and the assignment is in the middle of a slot, for
        # the next one: in the first slot it is seen, in the second given, in the third it holds.
        # What the bucket held then, or owed, is evened out in the fourth.
        holds = max(WARM, begin + 2.0 + late)
        two = min(holds + 2, end)
        assert changing.over(2, limit, holds, two, calm=True) <= 0.05, f"{limit}; {changing}"
        settled = max(WARM, begin + 4.0 + late)
        assert changing.over(1, limit, settled, end, calm=True) <= 0.05, f"{limit}; {changing}"
        assert changing.under(limit, settled, end) <= 0.02, f"{limit}; {changing}"


def test_one_request_per_second_goes_round_between_eight_nodes(calm: dict[str, Outcome]) -> None:
    rare = calm["eight"].courses["rare"]
    runs = rare.calm_runs(WARM, CALM_SECONDS)
    least = sum(0.95 * RARE * run.slots - 1 for run in runs)
    assert sum(run.admitted for run in runs) >= least, str(rare)
    for first in range(int(WARM), int(CALM_SECONDS) - 9):
        # In a slot that is not calm, a node that heard nothing may use its turn once more.
        busy = 10 - len(rare.calm(first, first + 10))
        assert rare.total(first, first + 10) <= 10 * RARE + 1 + busy, f"{first}; {rare}"


def test_what_is_booked_is_what_was_admitted(calm: dict[str, Outcome]) -> None:
    for run in calm.values():
        for user, course in run.courses.items():
            assert run.recorded[user] == course.total(), str(course)
