"""A leader in virtual time, which answers what a node asks after a delay of the test's choice.

    leader = AnsweringLeader(node, clock, delay=0.03)
    leader.introduce("ann")          tells that ann is limited, and grants nothing
    node.throttle("front", "ann", wait=None)

`clock` is a `ClockWithEvents`: whoever sleeps on it, in a thread or in a task, lets the leader work
meanwhile. The node must not be started: the leader has its reporter.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable

from sluicegate import ManualClock, Node
from sluicegate.quota.messages import Ask, Hint, Quota, ServiceQuota, Share
from sluicegate.quota.node.core.reporter import Reporter

__all__ = ["AnsweringLeader", "ClockWithEvents"]

_STEP = 0.001


class ClockWithEvents(ManualClock):
    """A manual clock that does what is due whenever somebody sleeps on it."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__(start)
        self.naps: list[float] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), act))

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self._pass_time(self.now() + seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.naps.append(seconds)
        end = self.now() + seconds
        await asyncio.sleep(0)  # others may run, and sleep, at the same time
        self._pass_time(end)

    def _pass_time(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            time, _, act = heapq.heappop(self._events)
            self.advance(max(0.0, time - self.now()))
            act()
        self.advance(max(0.0, end - self.now()))


class AnsweringLeader:
    """Grants `grants` requests to each user that asks, `delay` seconds after that; None: never.

    `empty_seconds`: instead of a grant, that there will be nothing for so long.
    """

    def __init__(
        self,
        node: Node,
        clock: ClockWithEvents,
        *,
        delay: float | None = 0.02,
        grants: int = 1,
        empty_seconds: float = 0.0,
    ) -> None:
        self.delay = delay
        self.grants = grants
        self.empty_seconds = empty_seconds
        self.asked: list[tuple[float, str]] = []
        self._clock = clock
        self._reporter = Reporter(node._user_table, node.centrals)
        self._central = node.centrals[0]
        self._granted: dict[str, float] = {}
        self._work()

    def introduce(self, *users: str) -> None:
        """Tell that these users have a limit."""
        for user in users:
            self._tell(user)

    def _work(self) -> None:
        """Look every millisecond whether the node has something to send."""
        now = self._clock.now()
        for _, message in self._reporter.outgoing(now):
            if isinstance(message, Ask):
                self._hear(now, message)
        self._clock.at(now + _STEP, self._work)

    def _hear(self, now: float, ask: Ask) -> None:
        for user, asked in ask.users.get("front", {}).items():
            if not asked.requests:
                continue
            self.asked.append((now, user))
            if self.delay is not None:
                self._clock.at(now + self.delay, lambda user=user: self._answer(user))

    def _answer(self, user: str) -> None:
        if not self.empty_seconds:
            self._granted[user] = self._granted.get(user, 0.0) + self.grants
        self._tell(user, wait=self.empty_seconds)

    def _tell(self, user: str, wait: float = 0.0) -> None:
        now = self._clock.now()
        share = Share(self._granted.setdefault(user, 0.0), 0.0)
        hints = {user: Hint(wait, recall=False, may_float=False)}
        service = ServiceQuota({user: {"requests": share}}, {"requests": 0.0}, hints)
        quota = Quota("c", 1, 1, int(now), now, 1, False, 0.05, {"front": service})
        self._reporter.receive(now, self._central, quota)
