"""A fleet of real processes with three centrals that elect a leader.

    with ElectedFleet(limits, traffic, seconds=24) as fleet: ...

They elect it among themselves, or by a `backend`: the URL of an etcd or a Redis. With a network
any two processes can be cut off from each other; the backend's name is `BACKEND`.

Stories of several fleets run side by side (`tell`): each is a generator that yields the conditions
it waits for.
"""

import json
import math
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from sluicegate.demo.process import make_folder
from sluicegate.demo.traffic import Traffic
from tests.harness.waits import PATIENCE, wait_for
from tests.system.fleet import CentralUnderTest, Fleet
from tests.system.network import Network

__all__ = ["BACKEND", "ElectedCentral", "ElectedFleet", "Leadership", "Story", "tell"]

BACKEND = "backend"

Story = Generator[Callable[[], Any], None, None]

_STATUS_SECONDS = 2.0
_CHANGE = re.compile(
    r"^(\S+ \S+) \w+ central \S+ (?:leads, epoch (\d+)|no longer leads: its lease ended)$",
    re.MULTILINE,
)


class Leadership(NamedTuple):
    """When a central has led, by its log, in seconds of the wall clock."""

    begin: float
    end: float  # infinite: it still leads
    central: str
    epoch: int


class ElectedCentral(CentralUnderTest):
    """One of several centrals."""

    def __init__(self, folder: Path, name: str, limits: str) -> None:
        super().__init__(folder / name, limits, port=7411, has_state=True)
        self.name = name
        self.is_frozen = False

    def freeze(self) -> None:
        self.is_frozen = True
        super().freeze()

    def thaw(self) -> None:
        super().thaw()
        self.is_frozen = False

    def status(self) -> dict[str, Any] | None:
        """What it says of itself; None: it does not answer."""
        if self.pid is None or self.is_frozen:
            return None
        try:
            with urllib.request.urlopen(
                f"{self.url}/api/status", timeout=_STATUS_SECONDS
            ) as answer:
                status: dict[str, Any] = json.load(answer)
                return status
        except (OSError, urllib.error.URLError):
            return None

    def is_up(self) -> bool:
        """It knows a leader, and its peers are connected."""
        status = self.status()
        return (
            status is not None
            and status["leader"] is not None
            # None: the election needs no connection to peers.
            and all(peer["connected"] is not False for peer in status["peers"])
        )

    def leaderships(self) -> list[Leadership]:
        """When it has led since its start, in order."""
        found: list[Leadership] = []
        for when, epoch in _CHANGE.findall(self.output()):
            at = datetime.strptime(when, "%Y-%m-%d %H:%M:%S,%f").timestamp()
            if found and found[-1].end == math.inf:
                found[-1] = found[-1]._replace(end=at)  # also if it goes on in a higher epoch
            if epoch:
                found.append(Leadership(at, math.inf, self.name, int(epoch)))
        return found


class ElectedFleet(Fleet):
    """Three centrals and nodes that know all of them. `central` is the one that leads."""

    def __init__(
        self,
        limits: str,
        traffic: Sequence[Sequence[Traffic]],
        *,
        seconds: float,
        backend: str | None = None,
        has_network: bool = False,
    ) -> None:
        self.folder = make_folder("sluicegate-fleet-")
        self.seconds = seconds
        self.centrals = [ElectedCentral(self.folder, name, limits) for name in "abc"]
        self.network = Network(self.folder / "network.pauses") if has_network else None
        self.nodes = []
        self._begin = time.monotonic()
        self._traffic = traffic
        self._workers = 1
        self._has_network = False  # the centrals need it before the nodes
        self.central = self.centrals[0]
        try:
            for central in self.centrals:
                election = "paxos" if backend is None else self.path(central.name, BACKEND, backend)
                central.join(self._members(central), election)
                central.start()
        except BaseException:
            self.close()
            raise

    def start_nodes(self) -> None:
        self.central = wait_for(self.leader, seen=self.roles)
        super().start_nodes()

    def urls(self, node: str) -> list[str]:
        return [self.path(node, central.name, central.url) for central in self.centrals]

    def _members(self, central: ElectedCentral) -> dict[str, str]:
        """All centrals, as this one reaches them."""
        others = [other for other in self.centrals if other is not central]
        paths = {other.name: self.path(central.name, other.name, other.url) for other in others}
        return {central.name: central.url, **paths}

    def roles(self) -> list[tuple[str, str, int, str | None]]:
        """Name, role and epoch of each central that answers, and whom it takes for the leader."""
        statuses = [status for one in self.centrals if (status := one.status()) is not None]
        return [(each["name"], each["role"], each["epoch"], each["leader"]) for each in statuses]

    def leader(self) -> ElectedCentral | None:
        """The central that says it leads."""
        active = [name for name, role, _, _ in self.roles() if role == "active"]
        return next((one for one in self.centrals if one.name in active), None)

    def leaderships(self) -> list[Leadership]:
        """Of all centrals, in the order in which they began, in seconds of the fleet's clock."""
        begin = time.time() - self.now
        return sorted(
            each._replace(begin=each.begin - begin, end=each.end - begin)
            for central in self.centrals
            for each in central.leaderships()
        )


def tell(stories: Sequence[Story]) -> None:
    """Run stories to their ends, side by side; each wait has a deadline."""
    now = time.monotonic()
    waiting = [(story, next(story), now + PATIENCE) for story in stories]
    while waiting:
        time.sleep(0.05)
        for number, (story, condition, end) in enumerate(waiting):
            if condition():
                try:
                    waiting[number] = (story, next(story), time.monotonic() + PATIENCE)
                except StopIteration:
                    del waiting[number]
                    break
            else:
                seen = story.gi_frame.f_locals
                assert time.monotonic() < end, f"not within {PATIENCE:g} s; seen: {seen}"
