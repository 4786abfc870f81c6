"""The nodes of a simulated pacing cluster, and their way to the store.

A node is a real `Cluster` with one limiter, which is driven from outside: at the times that its
state asks for, its request is taken to the store and the reply is taken back. Each node has a
clock of its own, whose seconds began at its boot and whose wall time may be wrong.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable

from sluicegate.pacing import Cluster, ClusterLimiter
from sluicegate.pacing.state import PendingSync
from sluicegate.sim.pacing.scenario import PacingScenario
from sluicegate.sim.pacing.store_books import StoreBooks
from sluicegate.sim.world import World
from sluicegate.stores import MemoryStore
from sluicegate.stores.store import CounterUpdate, SyncReply, SyncRequest

__all__ = ["LIMITER", "NodeClock", "PacingNode", "SimulatedStore", "origin_of"]

LIMITER = "pacing"
_CLUSTER = "simulation"


class NodeClock:
    """Local seconds since some moment before the run, and a wall time that may be wrong."""

    __slots__ = ("_boot", "_wall", "_world")

    def __init__(self, world: World, origin: float, boot: float, skew: float) -> None:
        self._world = world
        self._boot = boot
        self._wall = origin + skew

    def now(self) -> float:
        return self._world.now + self._boot

    def wall(self) -> float:
        return self._world.now + self._wall

    def sleep(self, seconds: float, /) -> None:
        raise NotImplementedError("nothing sleeps in a simulation")

    async def sleep_async(self, seconds: float, /) -> None:
        raise NotImplementedError("nothing sleeps in a simulation")


class SimulatedStore:
    """A `MemoryStore` with a clock of its own, behind a network."""

    def __init__(self, world: World, scenario: PacingScenario, origin: float) -> None:
        self.store = MemoryStore()
        self.books = StoreBooks()
        self._world = world
        self._link = scenario.link
        self._origin = origin

    def carry(
        self,
        pending: PendingSync,
        answered: Callable[[PendingSync, SyncReply], object],
        failed: Callable[[], object],
    ) -> None:
        """Take a request to the store and its reply back; call one of the two in the end."""
        world, link, rng = self._world, self._link, self._world.network
        there = link.delay + link.jitter * rng.random()
        back = link.delay + link.jitter * rng.random()
        is_lost = link.loss > 0.0 and rng.random() < link.loss
        arrives = not is_lost or rng.random() < 0.5
        gives_up = world.now + link.timeout

        def arrive() -> None:
            if link.is_away(world.now):
                world.at(gives_up, failed)
                return
            reply = self._sync(pending)
            if is_lost or world.now + back > gives_up:
                world.at(gives_up, failed)
            else:
                world.at(world.now + back, answered, pending, reply)

        if arrives:
            world.at(world.now + there, arrive)
        else:
            world.at(gives_up, failed)

    def fill(self, updates: list[CounterUpdate]) -> None:
        """Book what a node that is gone has told before the run."""
        now = self._origin + self._world.now
        request = SyncRequest(_CLUSTER, "node-0", 1, now, 0.0, 0.0, False, updates)
        self.books.note(request, self.store.sync(request))

    def _sync(self, pending: PendingSync) -> SyncReply:
        # A memory store takes the writer's word for the time. Here it has a clock, as Redis does.
        request = pending.request._replace(time=self._origin + self._world.now)
        reply = self.store.sync(request)
        self.books.note(request, reply)
        return reply


class PacingNode:
    """One life of one node."""

    def __init__(
        self,
        number: int,
        life: int,
        world: World,
        store: SimulatedStore,
        scenario: PacingScenario,
        origin: float,
    ) -> None:
        rng = random.Random(f"node {world.seed} {number} {life}")
        clock = NodeClock(
            world, origin, rng.uniform(10.0, 1e6), rng.uniform(-scenario.skew, scenario.skew)
        )
        cluster = Cluster(
            store.store,
            _CLUSTER,
            node_id=f"node-{number + 1}-{rng.random()}",  # which decides when it syncs
            sync_interval=scenario.sync_interval,
            clock=clock,
        )
        self.number = number
        self.is_up = True
        self.has_crashed = False
        self.counted: dict[float, float] = defaultdict(float)  # passes, by begin of the period
        self.writers: set[str] = set()  # names under which it has synced
        self.limiter: ClusterLimiter = cluster.limiter(
            LIMITER,
            target=scenario.target,
            period=scenario.period,
            scored=scenario.scores is not None,
            **scenario.options,
        )
        self._cluster = cluster
        self._state = cluster.state
        self._clock = clock
        self._world = world
        self._store = store
        self._state.wake = self._wake
        self._planned = math.inf  # when the next sync begins
        self._plan()

    def leave(self) -> None:
        """Stop in good order: the last counts are sent."""
        self.is_up = False
        self._flush()

    def crash(self) -> None:
        """Stop at once: what was not sent is lost."""
        self.is_up = False
        self.has_crashed = True

    def _plan(self) -> None:
        local = self._clock.now()
        wait = max(self._state.next_sync(local) - local, 0.0)
        self._planned = self._world.now + wait
        self._world.at(self._planned, self._sync, self._planned)

    def _wake(self) -> None:
        if self._planned < math.inf:
            self._plan()

    def _sync(self, planned: float) -> None:
        if self.is_up and planned == self._planned:
            self._planned = math.inf  # one is on its way
            self._store.carry(self._request(), self._answered, self._failed)

    def _answered(self, pending: PendingSync, reply: SyncReply) -> None:
        if self.is_up:
            is_first = not self._state.knows_time
            believed = self.limiter.passes.span[0]
            self._state.receive(pending, reply, self._clock.now())
            if is_first and self.limiter.passes.span[0] != believed:
                # What it has counted by a wrong clock belongs to the right period now.
                self.counted[self.limiter.passes.span[0]] += self.counted.pop(believed, 0.0)
            self._plan()

    def _failed(self) -> None:
        if self.is_up:
            self._state.fail(self._clock.now())
            self._plan()

    def _flush(self) -> None:
        self._store.carry(self._request(), lambda pending, reply: None, self._flush)

    def _request(self) -> PendingSync:
        pending = self._state.request(self._clock.now())
        self.writers.add(pending.request.writer)
        return pending


def origin_of(period: float) -> float:
    """A Unix time at which a period begins."""
    return math.ceil(1.7e9 / period) * period
