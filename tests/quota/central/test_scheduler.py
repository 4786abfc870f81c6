"""When a central assigns: by a clock in the hand, with the timers of a real loop."""

import asyncio
from collections.abc import Callable, Sequence

from sluicegate import ManualClock
from sluicegate.quota import CentralState, Ledger
from sluicegate.quota.central.limit_sources import open_source
from sluicegate.quota.central.limit_sources.sync import LimitsSync
from sluicegate.quota.central.net.registry import ConnectionRegistry
from sluicegate.quota.central.net.tokens import Tokens
from sluicegate.quota.central.scheduler import Scheduler
from sluicegate.quota.messages import Line, Report
from sluicegate.quota.wire import Bounds
from tests.harness.central import LIMITS
from tests.harness.waits import PATIENCE

NODES = ("one", "two")
FIRST, LAST = 1000, 1005  # slots of a second


class Story:
    """A central that leads, and two nodes at three times the limit, up to LAST - 1."""

    def __init__(self) -> None:
        self.clock = ManualClock(FIRST)
        self.ledger = Ledger(LIMITS)
        self.state = CentralState("c", self.ledger, now=FIRST, wall=FIRST)
        self.state.lead(FIRST, 1)
        self._sequence = 0
        self._consumed = dict.fromkeys(NODES, 0.0)
        for slot in range(FIRST, LAST):
            self.set(slot + 0.1)
            self.report(50.0 if slot > FIRST + 1 else 0.0)
            self.set(slot + 0.5)
            self.state.tick(self.clock.now())
        source = open_source(LIMITS)
        self.scheduler = Scheduler(
            ConnectionRegistry(
                self.state,
                LimitsSync(source, self.ledger),
                tokens=Tokens(),
                max_connections=1,
                bounds=Bounds(),
                clock=self.clock.now,
            ),
            None,
            lambda now: None,
        )

    def set(self, time: float) -> None:
        self.clock.advance(time - self.clock.now())

    def report(self, amount: float, nodes: Sequence[str] = NODES) -> None:
        """Nodes tell what was taken in the last slot; 100 were refused on each."""
        self._sequence += 1
        slot = self.state.slot(self.clock.now()) - 1
        for node in nodes:
            self._consumed[node] += amount
            consumed = self._consumed[node]
            line = Line(consumed, 100 * self._sequence, int(consumed), 0.0, 0.0)
            lines = {"front": {"ann": {"requests": line}}}
            told = Report(node, 1, self._sequence, 1, 0, slot, 0.0, lines)
            self.state.receive(self.clock.now(), told)

    def shares(self) -> list[float]:
        """What was assigned for the slot after LAST."""
        quotas = [self.ledger.quota(LAST, node)["front"].users for node in NODES]
        return [users["ann"]["requests"].amount for users in quotas]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  the state machine has no events
            await asyncio.sleep(0.001)


def test_an_assignment_that_was_held_up_waits_for_the_reports_that_were_held_up_too() -> None:
    story = Story()

    async def play() -> None:
        # The machine stood still from before the reports until after the middle of the slot.
        story.set(LAST + 0.6)
        story.scheduler.start()
        for node in NODES:
            await asyncio.sleep(0.05)  # it has every chance to assign too early
            assert story.ledger.assigned == LAST - 1
            story.report(50.0, [node])
        await until(lambda: story.ledger.assigned == LAST)
        await story.scheduler.stop()

    asyncio.run(play())
    assert min(story.shares()) >= 40.0


def test_it_does_not_wait_for_long() -> None:
    story = Story()

    async def play() -> None:
        story.set(LAST + 0.6)
        story.scheduler.start()
        await asyncio.sleep(0.02)
        story.set(LAST + 0.91)
        await until(lambda: story.ledger.assigned == LAST)
        await story.scheduler.stop()

    asyncio.run(play())
    assert sum(story.shares()) < 20.0  # two slots are promised and not reported


def test_in_time_it_waits_for_nobody() -> None:
    story = Story()

    async def play() -> None:
        story.set(LAST + 0.499)
        story.scheduler.start()
        await asyncio.sleep(0)
        story.set(LAST + 0.501)
        await until(lambda: story.ledger.assigned == LAST)
        await story.scheduler.stop()

    asyncio.run(play())
