"""When a central assigns: by a clock in the hand, with the timers of a real loop."""

import asyncio
from collections.abc import Callable, Sequence

from sluicegate import ManualClock
from sluicegate.quota import CentralState, Entry, Ledger
from sluicegate.quota.central.leadership import SoleLeadership
from sluicegate.quota.central.limit_sources import open_source
from sluicegate.quota.central.limit_sources.sync import LimitsSync
from sluicegate.quota.central.net.registry import ConnectionRegistry
from sluicegate.quota.central.net.tokens import Tokens
from sluicegate.quota.central.scheduler import Scheduler
from sluicegate.quota.central.warm_up import WarmUp
from sluicegate.quota.messages import Ask, Credit, Report, UserAsk
from sluicegate.quota.wire import Bounds
from tests.harness.waits import PATIENCE

NODES = ("one", "two")
FIRST, LAST = 1000, 1005  # slots of a second


class Story:
    """A central that leads, and two classic nodes at three times the limit, up to LAST - 1."""

    def __init__(self) -> None:
        limits = [Entry("front", "*", rates={"requests": 100.0}, burst_seconds=2.0)]
        self.clock = ManualClock(FIRST)
        self.ledger = Ledger(limits)
        self.state = CentralState("c", self.ledger, now=FIRST, wall=FIRST)
        self.state.lead(FIRST, 1)
        self._given: dict[tuple[str, int], float] = {}  # by node and slot
        for slot in range(FIRST, LAST):
            self.set(slot + 0.1)
            self.report()
            self.set(slot + 0.5)
            self.state.tick(self.clock.now())
        source = open_source(limits)
        self.registry = ConnectionRegistry(
            self.state,
            LimitsSync(source, self.ledger),
            SoleLeadership(self.state),
            WarmUp(FIRST, 1.0),
            tokens=Tokens(),
            max_connections=1,
            bounds=Bounds(),
            clock=self.clock.now,
        )
        self.scheduler = Scheduler(self.registry, None, lambda now: None)

    def set(self, time: float) -> None:
        self.clock.advance(time - self.clock.now())

    def report(self, nodes: Sequence[str] = NODES) -> None:
        """Nodes took all they were given in the last slot; 100 were refused on each."""
        slot = self.state.slot(self.clock.now())
        refused = {"front": {"ann": {"requests": 100.0}}}
        for node in nodes:
            consumed = {"front": {"ann": {"requests": self._given.get((node, slot - 1), 0.0)}}}
            self.ledger.book_classic(slot, node, slot, consumed, refused)
            users = self.ledger.quota(slot, node)["front"].users
            self._given[node, slot + 1] = users["ann"]["requests"].granted if users else 0.0

    def shares(self) -> list[float]:
        """What was assigned in LAST, for the slot after the next."""
        quotas = [self.ledger.quota(LAST + 1, node)["front"].users for node in NODES]
        return [users["ann"]["requests"].granted for users in quotas]


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
            story.report([node])
        await until(lambda: story.ledger.assigned == LAST)
        await story.scheduler.stop()

    asyncio.run(play())
    assert min(story.shares()) >= 40.0, story.shares()


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
    assert sum(story.shares()) < 80.0, story.shares()  # three slots are promised and not reported


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


def test_an_ask_that_must_wait_wakes_it_before_the_next_assignment() -> None:
    story = Story()
    registry, ledger = story.registry, story.ledger

    def ask(sent: float, requests: int, used: float = 0.0) -> None:
        credit = {"requests": Credit(used, 0.0, used, 1.0)}
        users = {"front": {"bob": UserAsk(requests, credit)}}
        registry.handle(story.clock.now(), Ask("own", 1, sent, users))

    async def play() -> None:
        story.set(LAST + 0.51)
        registry.handle(story.clock.now(), Report("own", 1, 1, 1, 0, LAST - 1, 0.0, {}))
        story.scheduler.start()
        await until(lambda: ledger.assigned == LAST)
        ask(1.0, 1_000_000)
        granted = ledger.outstanding("front", "bob", "requests")
        ask(2.0, 1_000_000, used=granted)
        assert ledger.serve_due() < story.clock.now() + 0.1
        story.set(LAST + 0.7)
        await until(lambda: ledger.outstanding("front", "bob", "requests") > granted)
        await story.scheduler.stop()

    asyncio.run(play())
