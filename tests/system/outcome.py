"""The outcome of a run of a real fleet, and bounds on it.

Faults that do not disturb each other share a run; a run is a fixture, and each test examines its
outcome. All is measured by what the workers counted, in windows that begin anywhere in steps of
50 ms. `over` is against limit times window alone, with no allowance for
a burst.

A busy machine makes things late. What the processes noted of that is allowed for, and no more
(`Course`): what must pass is asserted of calm slots, what may pass of all of them. Faults are
measured from the moment at which they really happened.
"""

from dataclasses import dataclass
from statistics import median

from tests.system.course import Course
from tests.system.fleet import Fleet, State

__all__ = [
    "WARM",
    "Outcome",
    "assert_hardly_refused",
    "assert_near",
    "assert_served",
    "outcome",
]

WARM = 4.0  # seconds until everyone knows everyone
MOST_LATE = 0.1  # seconds by which requests may come late


@dataclass(frozen=True)
class Outcome:
    """What came of a run: the course of each user, what was booked, and when things were done."""

    courses: dict[str, Course]
    recorded: dict[str, float]
    states: list[list[State]]  # of each node
    at: dict[str, float]


def outcome(fleet: Fleet, *users: str, **at: float) -> Outcome:
    fleet.end()
    return Outcome(
        {user: fleet.course(user) for user in users},
        {user: fleet.central.recorded(user) for user in users},
        [node.states() for node in fleet.nodes],
        at,
    )


def assert_near(
    course: Course,
    limit: float,
    begin: float,
    end: float,
    *,
    least: float,
    most: float = 1.05,
    debt: float = 0.0,
    seen: str = "",
) -> None:
    """What passed in any calm slots between two moments is from `least` to `most` of the limit.

    `debt`: what has passed beyond the limit before, and is paid in these slots. Where fewer
    requests came than usual, the process that sends them was late: they come in the next slot.
    """
    runs = course.all_calm_runs(begin, end)
    usual = median([run.demand for run in runs if run.slots == 1] or [0])
    for run in runs:
        late = min(max(0.0, run.slots - run.demand / max(usual, 1)), MOST_LATE)
        slack = max(run.slack, late)
        expected = (least * run.slots - slack) * limit, (most * run.slots + run.slack) * limit
        is_near = expected[0] - debt <= run.admitted <= expected[1]
        assert is_near, f"{run} of {course}; debt {debt:g}; {seen}"


def assert_served(course: Course, limit: float, begin: float, end: float) -> None:
    """Most of the limit passed while all processes could run, whether slots were calm or not.

    So a fleet that never has a calm slot is not excused. It is asked for more than the limit.
    """
    least = 0.75 * limit * (end - begin - course.late(begin - 1, end))
    assert course.total(begin, end) >= least, f"{least}; {course}"


def assert_hardly_refused(course: Course, begin: float, end: float, most: float = 0.0) -> None:
    """No more than 2 % of the demand in calm slots, or `most` requests."""
    runs = course.calm_runs(begin, end)
    demand = sum(run.demand for run in runs)
    refused = demand - sum(run.admitted for run in runs)
    assert refused <= max(0.02 * demand, most), str(course)
