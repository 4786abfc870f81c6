"""One node of `sluicegate demo pacing`: its traffic, its limiter, and what it has counted.

    python -m sluicegate.demo.pacing_node PLAN        a `NodePlan` as JSON

It waits for the begin of the traffic, sends requests by the clock, whatever the answers are, and
counts them by the second in a file that the demo reads. What a killed node has counted stays there.
The demo runs nodes as processes over Redis, or as threads over one `MemoryStore`.
"""

import contextlib
import json
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from sluicegate.demo.traffic import read_begin
from sluicegate.pacing import Cluster, ClusterLimiter
from sluicegate.stores import RedisStore
from sluicegate.stores.store import Store

__all__ = ["MAX_SECONDS", "NodePlan", "NodeRecord", "NodeStatus", "run_node"]

MAX_SECONDS = 3600
_SYNC_INTERVAL = 0.5
_MAX_BACKLOG = 0.5  # seconds of requests that are made up after a pause
_TICK = 0.01
_HEADER = 7
_WORD = 8


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What a node is to do. `moved_at`: seconds after which most traffic goes to the first node."""

    folder: Path
    name: str
    place: int  # among the nodes
    nodes: int
    seconds: int
    target: int
    requests: float  # per second, at all nodes
    moved_at: float
    url: str = ""  # of Redis; empty for a thread

    def rate(self, t: float) -> float:
        """Requests per second at this node."""
        if t < self.moved_at:
            return self.requests / self.nodes
        return self.requests * (0.7 if self.place == 0 else 0.3 / (self.nodes - 1))

    def encode(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def decode(cls, text: str) -> Self:
        plan = json.loads(text)
        return cls(folder=Path(plan.pop("folder")), **plan)


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What a node publishes about itself. `pid` 0: it is not ready."""

    pid: int
    is_in_touch: bool = False
    pass_rate: float = 0.0
    share: float = 0.0
    lag: float = 0.0
    value: float = 0.0  # the passes of all nodes, as it knows them
    synced: float = 0.0  # its own passes as of its last answered sync


class NodeRecord:
    """The status of one node, then requests and passes of each second, in a mapped file.

    There is one writer, which never waits for a reader. All numbers are 64-bit floats.
    """

    def __init__(self, path: Path) -> None:
        size = (_HEADER + 2 * MAX_SECONDS) * _WORD
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map).cast("d")

    def publish(self, status: NodeStatus) -> None:
        for place, value in reversed(list(enumerate(_values(status)))):
            self._words[place] = value  # the process id is the last

    def status(self) -> NodeStatus:
        pid, is_in_touch, *rest = self._words[:_HEADER]
        return NodeStatus(int(pid), bool(is_in_touch), *rest)

    def count(self, t: float, *, has_passed: bool) -> None:
        place = _HEADER + 2 * min(int(t), MAX_SECONDS - 1)
        self._words[place] += 1
        self._words[place + 1] += has_passed

    def of_second(self, second: int) -> tuple[int, int]:
        """Requests and passes of a second."""
        place = _HEADER + 2 * second
        return int(self._words[place]), int(self._words[place + 1])

    def passed(self) -> int:
        """Passes of all seconds."""
        return int(sum(self._words[_HEADER + 1 :: 2]))

    def close(self) -> None:
        self._words.release()
        self._map.close()


def run_node(
    plan: NodePlan, record: NodeRecord, store: Store, is_stopping: Callable[[], bool]
) -> None:
    """Be a node until the end of the traffic, or until it is stopped."""
    cluster = Cluster(
        store, "demo", node_id=plan.name, sync_interval=_SYNC_INTERVAL, nodes=plan.nodes
    )
    with cluster:
        record.publish(NodeStatus(os.getpid()))
        while (begin := read_begin(plan.folder)) is None and not is_stopping():
            time.sleep(_TICK)
        if begin is None:
            return
        at = round(time.time() + begin - time.monotonic())  # begin is a whole second
        limiter = cluster.limiter("budget", target=plan.target, begin=at, end=at + plan.seconds)
        _send(plan, record, cluster, limiter, begin, is_stopping)


def _send(
    plan: NodePlan,
    record: NodeRecord,
    cluster: Cluster,
    limiter: ClusterLimiter,
    begin: float,
    is_stopping: Callable[[], bool],
) -> None:
    sent_until = max(time.monotonic() - begin, plan.place / plan.requests)
    while not is_stopping():
        t = time.monotonic() - begin
        sent_until = max(sent_until, t - _MAX_BACKLOG)
        while sent_until <= t and sent_until < plan.seconds:
            has_passed = limiter.acquire()
            record.count(
                min(max(time.monotonic() - begin, 0.0), plan.seconds - 1), has_passed=has_passed
            )
            sent_until += 1.0 / plan.rate(sent_until)
        status = NodeStatus(
            os.getpid(),
            cluster.state.is_in_touch,
            limiter.pass_rate,
            limiter.requests.share,
            limiter.lag,
            limiter.passes.value(),
            _synced(limiter),
        )
        # Rates decay when the traffic has ended, so the last status with traffic stays.
        if time.monotonic() - begin < plan.seconds:
            record.publish(status)
        time.sleep(_TICK)


def _synced(limiter: ClusterLimiter) -> float:
    history = limiter.passes.history
    return history[-1][1] if history else 0.0


def _values(status: NodeStatus) -> tuple[float, ...]:
    return (
        *(status.pid, status.is_in_touch, status.pass_rate, status.share),
        *(status.lag, status.value, status.synced),
    )


def main() -> None:
    plan = NodePlan.decode(sys.argv[1])
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
    record = NodeRecord(plan.folder / f"{plan.name}.record")
    with contextlib.closing(record), contextlib.closing(RedisStore(plan.url)) as store:
        run_node(plan, record, store, lambda: bool(stops))


if __name__ == "__main__":
    main()
