"""One worker process of an end node, which also generates its part of the node's traffic.

    python -m sluicegate.demo.worker PLAN        a `WorkerPlan` as JSON

It opens a `Node`, waits for the begin of the traffic, and then sends requests by the clock,
whatever the answers are. A request that may wait for its answer is a task, and delays no other. An
admitted one is consumed at once: what is examined are the limits, not the work. After a pause (the
process was stopped, or the machine is busy) it makes up for MAX_BACKLOG seconds of requests;
clients wait no longer than that. SIGTERM ends it, and closes the node.

What it leaves in the folder, also when it is killed: its `SharedCounts`, the log of its pauses, and
in the file NODE.states a line `[seconds, state, epoch]` for each change of the node's quota that it
saw while it was the reporting worker.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from sluicegate.demo.pauses import PauseMeter
from sluicegate.demo.shared_counts import SharedCounts, WorkerStatus
from sluicegate.demo.traffic import SERVICE, Traffic, read_begin
from sluicegate.errors import Unavailable
from sluicegate.quota import Node, Throttled

__all__ = ["MAX_BACKLOG", "LoadGenerator", "WorkerPlan", "main"]

MAX_BACKLOG = 0.5  # seconds
_TICK = 0.01
_PUBLISH_EVERY = 0.1


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What a worker is to do. `traffic` is that of this worker alone.

    `phase`: the part of the time between two of its requests after which it sends the first one.
    Workers have different phases, so that requests of a steady rate come evenly over all of them.
    """

    folder: Path
    node: str
    worker: int
    centrals: Sequence[str]
    traffic: Sequence[Traffic]
    phase: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.node}.{self.worker}"

    def path(self, suffix: str) -> Path:
        """A file of this worker."""
        return self.folder / f"{self.name}.{suffix}"

    def node_path(self, suffix: str) -> Path:
        """A file of all workers of the node."""
        return self.folder / f"{self.node}.{suffix}"

    def open_counts(self) -> SharedCounts:
        return SharedCounts(self.path("counts"), len(self.traffic))

    def encode(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def decode(cls, text: str) -> Self:
        plan = json.loads(text)
        traffic = [Traffic(**one) for one in plan.pop("traffic")]
        return cls(folder=Path(plan.pop("folder")), traffic=traffic, **plan)


class LoadGenerator:
    """Sends the requests of a worker when they are due. Times are seconds since the begin.

    Those that may wait need a running event loop; `finish` waits for the last of them.
    """

    def __init__(self, node: Node, counts: SharedCounts, plan: WorkerPlan, begin: float) -> None:
        self._node = node
        self._counts = counts
        self._traffic = plan.traffic
        self._begin = begin
        now = time.monotonic() - begin
        self._due = [max(plan.phase / one.rate, now) for one in plan.traffic]  # the next of each
        self._waiting: set[asyncio.Task[None]] = set()

    def send(self, now: float) -> None:
        """Send all requests that are due at `now`."""
        for index, traffic in enumerate(self._traffic):
            due = max(self._due[index], now - MAX_BACKLOG)
            while due <= now:
                if traffic.is_on(due) and traffic.waits:
                    task = asyncio.create_task(self._send_waiting(index, traffic))
                    self._waiting.add(task)
                    task.add_done_callback(self._waiting.discard)
                elif traffic.is_on(due):
                    self._answered(index, is_admitted=self._node.allows(SERVICE, traffic.user))
                due += 1.0 / traffic.rate
            self._due[index] = due

    async def finish(self) -> None:
        """Until all requests that wait are answered."""
        await asyncio.gather(*self._waiting)

    async def _send_waiting(self, index: int, traffic: Traffic) -> None:
        try:
            await self._node.throttle_async(SERVICE, traffic.user)
        except Throttled:
            self._answered(index, is_admitted=False)
        else:
            self._answered(index, is_admitted=True)

    def _answered(self, index: int, *, is_admitted: bool) -> None:
        if is_admitted:
            traffic = self._traffic[index]
            self._node.consume(SERVICE, traffic.user, traffic.costs)
        # It counts in the bin in which it was answered, also when that was late.
        t = max(time.monotonic() - self._begin, 0.0)
        self._counts.count(t, index, is_admitted=is_admitted)


class _StatusPublisher:
    """Publishes the status of the worker, and logs each change of the node's quota."""

    def __init__(self, node: Node, counts: SharedCounts, log: Path) -> None:
        self._node = node
        self._counts = counts
        self._log = log
        self._logged: tuple[str, int] | None = None

    def publish(self, t: float | None) -> None:
        """`t`: seconds since the begin of the traffic; None before it is known."""
        try:
            status = self._node.status()
        except Unavailable:
            return  # the reporter thread is busy; the next call may succeed
        state = "none" if status.quota is None else status.quota.state
        slot = -1 if status.slot is None else status.slot
        published = WorkerStatus(os.getpid(), status.is_reporting, state, status.epoch, slot)
        self._counts.publish(published)
        seen = (state, status.epoch)
        if t is None or t < 0 or not status.is_reporting or status.quota is None:
            return
        if seen != self._logged:
            self._logged = seen
            with self._log.open("a") as file:
                file.write(json.dumps([t, *seen]) + "\n")


def main() -> None:
    plan = WorkerPlan.decode(sys.argv[1])
    logging.basicConfig(format=f"%(asctime)s {plan.name} {os.getpid()} %(message)s", level="INFO")
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
    asyncio.run(_run(plan, stops))


async def _run(plan: WorkerPlan, stops: list[int]) -> None:
    begin: float | None = None
    generator: LoadGenerator | None = None
    with (
        plan.open_counts() as counts,
        PauseMeter(plan.path("pauses")),
        Node(
            plan.centrals,
            node_id=plan.node,
            services=[SERVICE],
            shared=str(plan.node_path("shm")),
        ) as node,
    ):
        publisher = _StatusPublisher(node, counts, plan.node_path("states"))
        publish_at = 0.0
        while not stops:
            now = time.monotonic()
            if now >= publish_at:
                publish_at = now + _PUBLISH_EVERY
                publisher.publish(None if begin is None else now - begin)
            if begin is not None and generator is not None:
                generator.send(now - begin)
            elif (begin := read_begin(plan.folder)) is not None:
                generator = LoadGenerator(node, counts, plan, begin)
            await asyncio.sleep(_TICK)
        if generator is not None:
            await generator.finish()


if __name__ == "__main__":
    main()
