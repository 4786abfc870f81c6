"""`sluicegate demo pacing`: four nodes spend one budget along its line, without a coordinator.

Half-way most of the traffic moves to the first node. A little later another node is killed, and
comes back. What each node let through is added up by the second and compared with the line.

`PacingDemo` runs it, `report` returns the result as data, `pacing_screen.py` draws it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from sluicegate.demo.pacing_fleet import NODES, PacingFleet
from sluicegate.demo.pacing_node import NodeStatus
from sluicegate.demo.quota import StopFlag
from sluicegate.demo.verdict import Check

__all__ = ["MAX_SECONDS", "MIN_SECONDS", "VICTIM", "NodeRow", "PacingDemo", "checks", "report"]

MIN_SECONDS = 10
MAX_SECONDS = 3000
BUDGET = 200  # passes per second of the demo
REQUESTS = 800.0  # per second, at all nodes
_MOVED, _KILLED, _BACK = 0.5, 0.6, 0.75  # parts of the duration
_VICTIM = 2  # the place of the node that is killed
VICTIM = f"node-{_VICTIM + 1}"
_STEP = 0.2
_LATE = 0.6  # seconds after which a node has counted, and its pauses of half a second
# Parts of the budget. What the victim passed since its last sync is passed and never told.
_GOALS = {"over": 0.01, "under": 0.05, "off the line": 0.03}


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node in the last second that is over."""

    name: str
    status: NodeStatus | None  # None: it does not run
    asked: int
    passed: int


class PacingDemo:
    """A fleet, from `with` to its end, and what it did in each second."""

    def __init__(self, seconds: float, flag: StopFlag, *, in_memory: bool = False) -> None:
        self.seconds = int(min(seconds, MAX_SECONDS))
        self.target = BUDGET * self.seconds
        self.passed: list[int] = []  # in each second that is over, by all nodes
        self.events: list[str] = []
        # The most that the victim passed since its last sync: the others do not know of it. None
        # while it has not been killed.
        self.unsynced: int | None = None
        self.by_node = [0] * NODES
        self._flag = flag
        self._fleet = PacingFleet(
            *(self.seconds, self.target, REQUESTS, _MOVED * self.seconds, flag.is_set),
            in_memory=in_memory,
        )
        self._plan: list[tuple[float, str, Callable[[], object]]] = [
            (_MOVED, "most of the traffic moves to node-1", lambda: None),
            (_KILLED, f"{VICTIM} is killed", self._kill),
            (_BACK, f"{VICTIM} is started again", self._start_again),
        ]

    def __enter__(self) -> Self:
        """Start the nodes; raises StartCancelled if the flag is set meanwhile."""
        try:
            self._fleet.open()
        except BaseException:
            self._fleet.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._fleet.close()

    @property
    def store(self) -> str:
        return "Redis" if self._fleet.is_on_redis else "memory"

    def line(self, second: int) -> float:
        """What should have passed by the end of a second, counted from 1."""
        return self.target * second / self.seconds

    def nodes(self) -> list[NodeRow]:
        last = max(len(self.passed) - 1, 0)
        statuses = self._fleet.statuses()
        return [
            NodeRow(f"node-{place + 1}", status, *node.record.of_second(last))
            for place, (node, status) in enumerate(zip(self._fleet.nodes, statuses, strict=True))
        ]

    def run(self, show: Callable[[], object] = lambda: None) -> None:
        """Until the end, or until the flag is set; `show` is called five times a second."""
        while not self._flag.is_set() and len(self.passed) < self.seconds:
            self.step(time.monotonic() - self._fleet.begin)
            show()
            time.sleep(_STEP)

    def step(self, t: float) -> None:
        """Do what is due, and record the seconds that are over."""
        while self._plan and t >= self._plan[0][0] * self.seconds:
            part, what, act = self._plan.pop(0)
            act()
            self.events.append(f"{part * self.seconds:.0f} s: {what}")
        while len(self.passed) < min(t - _LATE - 1.0, self.seconds):
            second = len(self.passed)
            counts = [node.record.of_second(second) for node in self._fleet.nodes]
            self.by_node = [
                before + passed for before, (_, passed) in zip(self.by_node, counts, strict=True)
            ]
            self.passed.append(sum(passed for _, passed in counts))

    def _kill(self) -> None:
        self._fleet.nodes[_VICTIM].kill()
        self._count_unsynced()

    def _start_again(self) -> None:
        self._count_unsynced()  # a thread may have passed a few more before it stopped
        self._fleet.nodes[_VICTIM].start()

    def _count_unsynced(self) -> None:
        """Compare what the victim has counted with what the store has confirmed to it."""
        record = self._fleet.nodes[_VICTIM].record
        self.unsynced = max(record.passed() - int(record.status().synced), 0)


def checks(demo: PacingDemo) -> list[Check]:
    """What the whole run is judged by, as parts of the budget."""
    total, errors = 0, []
    for second, passed in enumerate(demo.passed, 1):
        total += passed
        errors.append(abs(total - demo.line(second)))
    reached = demo.line(len(demo.passed))
    off_the_line = sum(errors) / len(errors) if errors else 0.0
    measured = (total - reached, reached - total, off_the_line)
    return [
        Check(name, amount / demo.target, goal)
        for (name, goal), amount in zip(_GOALS.items(), measured, strict=True)
    ]


def report(demo: PacingDemo) -> dict[str, object]:
    """The result, as data."""
    found = checks(demo)
    is_whole = len(demo.passed) == demo.seconds
    return {
        "demo": "pacing",
        "store": demo.store,
        "seconds": len(demo.passed),
        "target": demo.target,
        "passed": sum(demo.passed),
        "unsynced": demo.unsynced,
        "held": is_whole and all(check.is_met for check in found),
        "checks": [
            {
                "check": check.name,
                "measured": round(check.measured, 4),
                "goal": check.goal,
                "met": check.is_met,
            }
            for check in found
        ],
        "nodes": [
            {"node": f"node-{place + 1}", "passed": passed}
            for place, passed in enumerate(demo.by_node)
        ],
        "events": demo.events,
        "per_second": {
            "line": [demo.line(second + 1) for second in range(len(demo.passed))],
            "passed": demo.passed,
        },
    }
