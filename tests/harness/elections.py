"""Elections for one contract: what makes their candidates, and takes their backend away.

A new election joins with one more `Electorate`. `Leaderships` watches candidates and knows from
when until when each has led, by its own deadline, on one clock.
"""

import asyncio
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sluicegate.election import Alone, EtcdElection, PaxosLease, RedisElection
from sluicegate.election.election import Election, boottime
from sluicegate.election.lease_election import LeaseElection
from tests.harness.etcd import EtcdServer
from tests.harness.paxos_wire import Wire
from tests.harness.servers import RedisServer
from tests.harness.waits import PATIENCE

__all__ = [
    "AloneElectorate",
    "Electorate",
    "EtcdElectorate",
    "Leaderships",
    "PaxosElectorate",
    "RedisElectorate",
    "campaigning",
    "wait_for_leader",
]

_groups = itertools.count()


class Electorate(ABC):
    """The candidates of one election. `lease`: seconds for which they lead without a renewal."""

    names: tuple[str, ...] = ("a", "b", "c")  # all campaign: some elections need a majority of them

    def __init__(self, lease: float) -> None:
        self.lease = lease
        self.group = f"group-{next(_groups)}"  # of this electorate alone

    @abstractmethod
    def candidate(self, name: str) -> Election:
        """A new candidate; its predecessor of the same name has been closed, or cancelled."""

    @abstractmethod
    def deadline(self, candidate: Election) -> float:
        """Until when this candidate leads, as it knows now; -inf if it does not."""

    @abstractmethod
    def take_away(self) -> None:
        """From now on nobody can renew or win a leadership."""

    @abstractmethod
    def bring_back(self) -> None:
        """Undo `take_away`, if it was called."""


class AloneElectorate(Electorate):
    names = ("a",)

    def __init__(self, directory: Path, lease: float) -> None:
        super().__init__(lease)
        self._path = directory / "epoch"

    def candidate(self, name: str) -> Election:
        return Alone(name, path=self._path)

    def deadline(self, candidate: Election) -> float:
        return math.inf if candidate.is_leader else -math.inf

    def take_away(self) -> None:
        raise NotImplementedError("it has no backend")

    def bring_back(self) -> None:
        pass


class PaxosElectorate(Electorate):
    """Three members in one event loop; what is taken away is the network between them."""

    def __init__(self, directory: Path, lease: float) -> None:
        super().__init__(lease)
        self._directory = directory
        self._wire = Wire()

    def candidate(self, name: str) -> Election:
        path = self._directory / f"{name}.paxos"
        member = PaxosLease(name, self.names, self._wire.end(name), path, lease=self.lease)
        self._wire.members[name] = member
        return member

    def deadline(self, candidate: Election) -> float:
        assert isinstance(candidate, PaxosLease)
        return candidate.deadline

    def take_away(self) -> None:
        self._wire.cut.update(self.names)

    def bring_back(self) -> None:
        self._wire.cut.clear()


class _LeaseElectorate(Electorate):
    def deadline(self, candidate: Election) -> float:
        assert isinstance(candidate, LeaseElection)
        return candidate._candidacy.deadline


class RedisElectorate(_LeaseElectorate):
    def __init__(self, server: RedisServer, lease: float) -> None:
        super().__init__(lease)
        self._server = server

    def candidate(self, name: str) -> Election:
        return RedisElection(self._server.url, name, group=self.group, lease=self.lease)

    def take_away(self) -> None:
        self._server.stop()

    def bring_back(self) -> None:
        self._server.cont()


class EtcdElectorate(_LeaseElectorate):
    """`away`: the members that are taken away."""

    def __init__(self, server: EtcdServer, lease: float, away: tuple[int, ...] = (0,)) -> None:
        super().__init__(lease)
        self._server = server
        self._away = away

    def candidate(self, name: str) -> Election:
        return EtcdElection(self._server.endpoints, name, group=self.group, lease=self.lease)

    def take_away(self) -> None:
        self._server.freeze(self._away)

    def bring_back(self) -> None:
        self._server.thaw()


@asynccontextmanager
async def campaigning(electorate: Electorate) -> AsyncIterator[list[Election]]:
    """All candidates, started."""
    async with AsyncExitStack() as stack:
        candidates = [electorate.candidate(name) for name in electorate.names]
        for candidate in candidates:
            stack.push_async_callback(candidate.close)
        await asyncio.gather(*(candidate.start() for candidate in candidates))
        yield candidates


async def wait_for_leader(candidates: Iterable[Election], seconds: float = PATIENCE) -> Election:
    """The candidate that leads, as soon as one does."""
    candidates = list(candidates)
    end = boottime() + seconds
    while True:
        for candidate in candidates:
            if candidate.is_leader:
                return candidate
        assert boottime() < end, f"nobody leads after {seconds:g} s: {candidates}"
        await asyncio.sleep(0.002)


@dataclass
class Leadership:
    """What was seen of one leadership."""

    name: str
    epoch: int
    begin: float
    end: float  # the deadline, or when it was first seen to have ended before that


class Leaderships:
    """Watches candidates: at most one leads at a time, and each leadership has a higher epoch."""

    def __init__(self, electorate: Electorate) -> None:
        self._electorate = electorate
        self._epochs: dict[Election, int] = {}  # of each candidate, the last that was seen
        self._leaderships: dict[tuple[Election, int], Leadership] = {}

    @asynccontextmanager
    async def watching(self, *candidates: Election) -> AsyncIterator[None]:
        """Look at all candidates each millisecond, and check in the end."""
        self.add(*candidates)
        task = asyncio.create_task(self._look_for_ever())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
        self._look()
        if not task.cancelled():
            task.result()
        self.check()

    def add(self, *candidates: Election) -> None:
        self._epochs |= dict.fromkeys(candidates, 0)

    def in_order(self) -> list[Leadership]:
        return sorted(self._leaderships.values(), key=lambda one: one.epoch)

    def check(self) -> None:
        for former, later in itertools.pairwise(self.in_order()):
            assert former.epoch < later.epoch, f"one epoch for two: {self.in_order()}"
            assert former.end <= later.begin, f"two leaders at once: {self.in_order()}"

    def _look(self) -> None:
        """All in one turn of the event loop, in which a candidate changes by the clock alone."""
        now = boottime()
        for candidate, known in self._epochs.items():
            epoch = candidate.epoch
            assert epoch >= known, f"its epoch was {known}: {candidate}"
            self._epochs[candidate] = epoch
            if candidate.is_leader:
                new = Leadership(candidate.name, epoch, now, now)
                leadership = self._leaderships.setdefault((candidate, epoch), new)
                leadership.end = max(leadership.end, self._electorate.deadline(candidate))
                continue
            for (owner, _), leadership in self._leaderships.items():
                if owner is candidate:
                    leadership.end = min(leadership.end, now)

    async def _look_for_ever(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(0.001)
