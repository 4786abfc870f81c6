"""One worker process of an end node, which also generates its part of the node's traffic.

Of a node that is an nginx, it is one of the clients and generates traffic only: each request is one
over HTTP, and nginx consumes what it admits.

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
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from sluicegate.demo.nginx_client import NginxClient
from sluicegate.demo.pauses import PauseMeter
from sluicegate.demo.shared_counts import SharedCounts, WorkerStatus
from sluicegate.demo.traffic import SERVICE, Traffic, read_begin
from sluicegate.errors import Unavailable
from sluicegate.quota import Node, Throttled

__all__ = ["MAX_BACKLOG", "LoadGenerator", "WorkerPlan", "main"]

MAX_BACKLOG = 0.5  # seconds
_TICK = 0.01
_PUBLISH_EVERY = 0.1
_LONGEST_WAIT = 0.4  # of a request for the leader's answer, and a bit


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What a worker is to do. `traffic` is that of this worker alone.

    `phase`: the part of the time between two of its requests after which it sends the first one.
    Workers have different phases, so that requests of a steady rate come evenly over all of them.
    `nginx`: HOST:PORT of the nginx that is the node.
    """

    folder: Path
    node: str
    worker: int
    centrals: Sequence[str]
    traffic: Sequence[Traffic]
    phase: float = 0.0
    nginx: str | None = None

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

    Those that may wait, and all to nginx, need a running event loop; `finish` waits for the last of
    them.
    """

    def __init__(
        self, node: Node | NginxClient, counts: SharedCounts, plan: WorkerPlan, begin: float
    ) -> None:
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
                if traffic.is_on(due):
                    self._send(index, traffic)
                due += 1.0 / traffic.rate
            self._due[index] = due

    def _send(self, index: int, traffic: Traffic) -> None:
        if isinstance(self._node, NginxClient):
            self._start(self._send_to_nginx(self._node, index, traffic))
        elif traffic.waits:
            self._start(self._send_waiting(self._node, index, traffic))
        elif self._node.allows(SERVICE, traffic.user):
            self._node.consume(SERVICE, traffic.user, traffic.costs)
            self._count(index, self._now(), is_admitted=True)
        else:
            self._count(index, self._now(), is_admitted=False)

    def _start(self, request: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(request)
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def finish(self) -> None:
        """Until all requests that wait are answered."""
        await asyncio.gather(*self._waiting)

    async def _send_waiting(self, node: Node, index: int, traffic: Traffic) -> None:
        sent = self._now()
        try:
            await node.throttle_async(SERVICE, traffic.user)
        except Throttled:
            self._count(index, sent, is_admitted=False)
        else:
            node.consume(SERVICE, traffic.user, traffic.costs)
            self._count(index, sent, is_admitted=True)

    async def _send_to_nginx(self, nginx: NginxClient, index: int, traffic: Traffic) -> None:
        sent = self._now()
        is_admitted = await nginx.ask(traffic.user, traffic.costs)
        # Nobody asks a node that does not run, as with one whose workers were killed.
        if is_admitted is not None:
            self._count(index, sent, is_admitted=is_admitted)

    def _count(self, index: int, sent: float, *, is_admitted: bool) -> None:
        """An admitted request counts when it is answered, a refused one when it was sent.

        One that was refused in the next second is nothing that could have passed there. But a bin
        is read soon after its second, so one that waits for very long counts at the end, too.
        """
        now = self._now()
        t = now if is_admitted or now - sent > _LONGEST_WAIT else sent
        self._counts.count(t, index, is_admitted=is_admitted)

    def _now(self) -> float:
        return max(time.monotonic() - self._begin, 0.0)


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
    with plan.open_counts() as counts, PauseMeter(plan.path("pauses")):
        if plan.nginx is not None:
            with NginxClient(plan.nginx) as client:
                counts.publish(WorkerStatus(os.getpid()))
                await _generate(plan, client, counts, stops, publish=lambda t: None)
            return
        with Node(
            plan.centrals,
            node_id=plan.node,
            services=[SERVICE],
            shared=str(plan.node_path("shm")),
        ) as node:
            publisher = _StatusPublisher(node, counts, plan.node_path("states"))
            await _generate(plan, node, counts, stops, publish=publisher.publish)


async def _generate(
    plan: WorkerPlan,
    node: Node | NginxClient,
    counts: SharedCounts,
    stops: list[int],
    *,
    publish: Callable[[float | None], None],
) -> None:
    """Send the traffic until there is a stop; `publish` is called ten times a second."""
    begin: float | None = None
    generator: LoadGenerator | None = None
    publish_at = 0.0
    while not stops:
        now = time.monotonic()
        if now >= publish_at:
            publish_at = now + _PUBLISH_EVERY
            publish(None if begin is None else now - begin)
        if begin is not None and generator is not None:
            generator.send(now - begin)
        elif (begin := read_begin(plan.folder)) is not None:
            generator = LoadGenerator(node, counts, plan, begin)
        await asyncio.sleep(_TICK)
    if generator is not None:
        await generator.finish()


if __name__ == "__main__":
    main()
