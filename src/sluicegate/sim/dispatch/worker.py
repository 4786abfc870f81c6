"""`SimulatedWorker`: the real `WorkerCore`, and around it what `Consumer` and `Worker` do.

It fetches, listens, sends heartbeats, renews, reaps and answers as they do, with the simulated
server in place of Redis and a time drawn at random in place of a handler.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sluicegate.dispatch.batcher import Batcher
from sluicegate.dispatch.consumer import Slots
from sluicegate.dispatch.fetcher import Begin, Fetcher, Look, Pause, Read, Recover
from sluicegate.dispatch.keys import TaskId
from sluicegate.dispatch.messages import Claimed, Finishing, Heartbeat
from sluicegate.dispatch.server_clock import ServerClock
from sluicegate.dispatch.task import Ending, Task
from sluicegate.dispatch.wire import (
    FAILED,
    OK,
    Request,
    Response,
    decode_data,
    decode_request,
    encode_response,
)
from sluicegate.dispatch.worker_core import Batch, WorkerCore
from sluicegate.errors import Unavailable
from sluicegate.sim.dispatch.audit import Audit
from sluicegate.sim.dispatch.process import Process
from sluicegate.sim.dispatch.server import Server
from sluicegate.sim.world import World

__all__ = ["SimulatedWorker", "WorkerOptions"]

_RETRY_AFTER = 0.1
_LONGEST_RETRY = 2.0


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """A worker, and its handler's time: `each` per item (or its size) and `fixed` per batch."""

    lease: float = 10.0
    max_deliveries: int = 3
    concurrency: int = 1
    max_batch: int = 16
    max_wait: float = 0.0
    by_size: bool = False
    max_cost: float | None = None
    each: float = 0.001
    fixed: float = 0.005
    pads: bool = False  # a batch takes as long as if all items had the size of the longest
    noise: float = 0.0
    stalls: float = 0.0  # part of the batches that take many times as long
    stall_seconds: float = 0.0

    def batcher(self) -> Batcher:
        return Batcher(
            self.max_batch,
            self.max_wait,
            size=_size if self.by_size else None,
            cost=None if self.max_cost is None else _size,
            max_cost=self.max_cost,
        )

    def seconds(self, sizes: Sequence[float], rng: random.Random) -> float:
        """How long a batch of items of these sizes takes."""
        load = len(sizes) * max(sizes) if self.pads else sum(sizes)
        seconds = (self.fixed + self.each * load) * rng.uniform(1.0, 1.0 + self.noise)
        if self.stalls and rng.random() < self.stalls:
            seconds += rng.uniform(0.5, 1.0) * self.stall_seconds
        return seconds


def _size(item: Sequence[Any]) -> float:
    size: float = item[1]
    return size


class SimulatedWorker(Process):
    """Items are (number, size, what happens); the answer to a number is its double.

    A worker of several queues is one of these for each, with one set of slots: `previous` is that
    of the queue that is served before this one.
    """

    def __init__(
        self,
        world: World,
        server: Server,
        audit: Audit,
        name: str,
        options: WorkerOptions,
        core: type[WorkerCore] = WorkerCore,
        previous: "SimulatedWorker | None" = None,
    ) -> None:
        super().__init__(world, name)
        self.id = name.encode()
        self.options = options
        self.core = core(
            options.batcher(), lease=options.lease, max_deliveries=options.max_deliveries
        )
        self.clock = ServerClock()
        self.slots: Slots = Slots(options.concurrency) if previous is None else previous.slots
        self.queues: list[SimulatedWorker] = [] if previous is None else previous.queues
        self.queues.append(self)
        self.fetcher: Fetcher = Fetcher(self.core, None if previous is None else previous.fetcher)
        self.listening_since = float("inf")
        self._server = server
        self._audit = audit
        self._rng = random.Random(f"{name} {world.seed}")
        self._beat_every = min(options.lease / 4, 1.0)
        self._pause = _RETRY_AFTER
        self._is_fetching = False
        self._is_stopping = False
        self._control_read = 0
        self._outbox: list[Ending] = []
        self._sending = 0
        self._beat(self._start, self._start_again)

    def now(self) -> float:
        """The time of Redis, as this worker knows it."""
        return self.clock.now(self.local())

    def stop(self) -> None:
        """SIGTERM: finish what runs, give back the rest."""
        self.run(self._stop)

    def _start_again(self, _: Unavailable) -> None:
        self.after(_RETRY_AFTER, self._beat, self._start, self._start_again)

    def _start(self) -> None:
        self._fetch()
        self._listen()
        self.after(self._beat_every, self._keep_alive)

    def _stop(self) -> None:
        if self._is_stopping:
            return
        self._is_stopping = True
        self.core.release()
        self._leave_when_done(self.world.now + 5.0)

    def _leave_when_done(self, latest: float) -> None:
        if (self.slots.ends or self._sending) and self.world.now < latest:
            self.after(0.05, self._leave_when_done, latest)
            return
        model, server = self._server.model, self._server
        server.exchange(
            self,
            lambda: model.leave(server.now, self.id, 2 * self.options.lease),
            lambda _: self.kill(),
            lambda _: self.kill(),
        )

    # Fetching

    def _fetch(self) -> None:
        self._is_fetching = True
        if self._is_stopping:
            return
        now = self.now()
        step = self.fetcher.step(now, self.slots.free, self.slots.next_free_at())
        if isinstance(step, Pause):
            self._is_fetching = False
            if step.until is not None:
                self.after(step.until - now + 1e-6, self._wake)
        elif isinstance(step, Begin):
            self._begin_batches()
            self._fetch()
        elif isinstance(step, Read):
            if not self.fetcher.is_last:
                self._begin_batches()
            self._server.read(
                self,
                lambda: self._read(step.most),
                lambda claimed: self._fetched(step, claimed or []),
                self._fetch_again,
            )
        else:
            held = self.core.held_ids()
            self._server.exchange(
                self,
                lambda: self._claim(step, held),
                lambda claimed: self._fetched(step, claimed),
                self._fetch_again,
                may_repeat=isinstance(step, Recover),
            )

    # In Redis

    def _read(self, count: int) -> list[Claimed] | None:
        model = self._server.model
        if self._is_stopping or not model.has_waiting:
            return None
        return model.read(self._server.now, self.id, count)

    def _claim(self, step: Recover | Look, held: list[TaskId]) -> list[Claimed]:
        model, now = self._server.model, self._server.now
        if self._is_stopping:
            return []
        if isinstance(step, Recover):
            return model.recover(now, self.id, held)
        claimed = model.fetch(now, self.id, step.wanted)
        self._audit.fetched(self, model, [one.task for one in claimed])
        return claimed

    # In the worker

    def _fetched(self, step: Recover | Look | Read, claimed: list[Claimed]) -> None:
        self._pause = _RETRY_AFTER
        if isinstance(step, Recover):
            self._audit.counts["recovered"] += len(claimed)
        dropped = self._add(claimed)
        if self.fetcher.fetched(self.now(), step, len(claimed), dropped):
            self._begin_batches()
        self._fetch()

    def _fetch_again(self, _: Unavailable) -> None:
        self.fetcher.failed()
        self._begin_batches()
        self._try_again(self._fetch)

    def _wake(self) -> None:
        if not self._is_fetching:
            self._fetch()

    def _add(self, claimed: Sequence[Claimed]) -> bool:
        if self._is_stopping:
            return False
        now = self.now()
        begins_at = now if self.slots.free else (self.slots.next_free_at() or now)
        tasks = [Task(one.task, one.deliveries, decode_request(one.fields[1])) for one in claimed]
        self._audit.delivered(tasks)
        endings = self.core.add(now, tasks, begins_at)
        self._finish(endings)
        return bool(endings)

    # Batches

    def _begin_batches(self) -> None:
        for queue in self.queues:
            queue._begin_own_batches()

    def _begin_own_batches(self) -> None:
        if self._is_stopping:
            return
        while self.slots.free and self.fetcher.is_turn:
            now = self.now()
            batch, endings = self.core.take(now)
            self._finish(endings)
            if batch is None:
                due_at = self.core.due_at()
                if due_at is not None:
                    self.after(max(due_at - now, 0.0) + 1e-6, self._begin_batches)
                break
            self._begin(now, batch)
        self._wake()

    def _begin(self, now: float, batch: Batch) -> None:
        self._audit.began(self, now, batch)
        items = []
        for task in batch.tasks:
            assert isinstance(task.request, Request)
            items.append(task.data if task.data is not None else decode_data(task.request))
        self.slots.ends[batch] = batch.ends_at
        seconds = self.options.seconds([item[1] for item in items], self._rng)
        if any(item[2] == "poison" for item in items):
            self.after(seconds / 2, self.kill)
        self.after(seconds, self._end, batch, items)

    def _end(self, batch: Batch, items: Sequence[Sequence[Any]]) -> None:
        del self.slots.ends[batch]
        self.core.end_batch(self.now(), batch)
        self._audit.ended(self)
        self._finish(
            [
                Ending(task, FAILED, {"error": "no"})
                if item[2] == "fail"
                else Ending(task, OK, 2 * item[0])
                for task, item in zip(batch.tasks, items, strict=True)
            ]
        )
        self._begin_batches()

    def _finish(self, endings: Sequence[Ending]) -> None:
        if not endings:
            return
        self._sending += 1
        self._send(endings, [self._finishing(ending) for ending in endings], _RETRY_AFTER)

    def _finishing(self, ending: Ending) -> Finishing:
        request = ending.task.request
        assert isinstance(request, Request)
        response = Response(request.correlation_id, ending.status, ending.data)
        payload = encode_response(request.content_type, response)
        return Finishing(ending.task.id, request.reply_to.encode(), payload, ending.reason)

    def _send(
        self, endings: Sequence[Ending], finishing: Sequence[Finishing], pause: float
    ) -> None:
        def confirmed(_: object) -> None:
            self._sending -= 1
            self.core.confirm(ending.task for ending in endings)

        def failed(_: Unavailable) -> None:
            self.after(pause, self._send, endings, finishing, min(2 * pause, _LONGEST_RETRY))

        model = self._server.model
        self._server.exchange(self, lambda: model.finish(finishing), confirmed, failed)

    # Control, heartbeats, leases

    def _listen(self) -> None:
        if self.listening_since == float("inf"):
            self.listening_since = self.world.now
        model, seen = self._server.model, self._control_read
        self._server.read(
            self,
            lambda: model.told_after(self.id, seen),
            self._heard,
            self._listen_again,
        )

    def _listen_again(self, _: Unavailable) -> None:
        self.listening_since = float("inf")
        self._try_again(self._listen)

    def _heard(self, entries: list[tuple[int, TaskId]] | None) -> None:
        if entries:
            self._control_read = entries[-1][0]
            cancelled = [task for _, task in entries]
            self._audit.told(self, cancelled)
            self.core.cancel(cancelled)
            self._wake()
        self._listen()

    def _keep_alive(self) -> None:
        self._beat(self._renew, self._keep_alive_again)

    def _keep_alive_again(self, _: Unavailable) -> None:
        self._try_again(self._keep_alive)

    def _beat(self, then: Callable[[], None], failed: Callable[[Unavailable], None]) -> None:
        sent = self.local()
        rate = self.core.rate(self.slots.count)
        model, server = self._server.model, self._server

        def received(beat: Heartbeat) -> None:
            self.clock.observe(sent, beat.time, self.local())
            then()

        server.exchange(
            self,
            lambda: model.heartbeat(server.now, self.id, self.options.lease, rate),
            received,
            failed,
        )

    def _renew(self) -> None:
        due = self.core.due_renewals(self.now())
        if not due:
            self._reap()
            return
        model, server = self._server.model, self._server

        def renewed(kept: list[int]) -> None:
            self.core.disown(
                [task.id for task, is_ours in zip(due, kept, strict=True) if not is_ours]
            )
            self._reap()

        server.exchange(
            self,
            lambda: model.renew(server.now, self.id, self.options.lease, [task.id for task in due]),
            renewed,
            self._keep_alive_again,
        )

    def _reap(self) -> None:
        room = self.core.reapable(self.now(), self.slots.free, self.slots.next_free_at())
        if self._is_stopping or not room:
            self.after(self._beat_every, self._keep_alive)
            return
        model, server = self._server.model, self._server

        def reaped(claimed: list[Claimed]) -> None:
            if claimed:
                self._add(claimed)
                self._begin_batches()
            self.after(self._beat_every, self._keep_alive)

        server.exchange(
            self,
            lambda: model.reap(server.now, self.id, self.options.lease, room, self._beat_every),
            reaped,
            self._keep_alive_again,
        )

    def _try_again(self, act: Callable[[], None]) -> None:
        self._pause = min(2 * self._pause, _LONGEST_RETRY)
        self.after(self._pause, act)
