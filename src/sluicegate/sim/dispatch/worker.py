"""`SimulatedWorker`: the real `WorkerCore`, and around it what `Consumer` and `Worker` do.

It fetches, listens, sends heartbeats, renews, reaps and answers as they do, with the simulated
server in place of Redis and a time drawn at random in place of a handler.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sluicegate.dispatch.batcher import Batcher
from sluicegate.dispatch.consumer import EMPTY_FOR, Slots
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
from sluicegate.dispatch.worker_core import FETCH_AHEAD, Batch, WorkerCore
from sluicegate.errors import Unavailable
from sluicegate.sim.dispatch.audit import Audit
from sluicegate.sim.dispatch.process import Process
from sluicegate.sim.dispatch.server import Server
from sluicegate.sim.world import World

__all__ = ["SimulatedWorker", "WorkerOptions"]

_RETRY_AFTER = 0.1
_LONGEST_RETRY = 2.0
_MOST_AWAITED = 4
_MOST_REFILLS = 100


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
        self._previous = previous
        self._is_dry = False
        self.listening_since = float("inf")
        self._server = server
        self._audit = audit
        self._rng = random.Random(f"{name} {world.seed}")
        self._beat_every = min(options.lease / 4, 1.0)
        self._pause = _RETRY_AFTER
        self._is_fetching = False
        self._refills = 0
        self._empty_at = float("-inf")
        self._may_have_lost = False
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

    @property
    def is_dry(self) -> bool:
        """Whether nothing waits in this queue, nor in those that are served before it."""
        return self._is_dry and self.is_next

    @property
    def is_next(self) -> bool:
        """Whether nothing waits in the queues that are served before this one."""
        return self._previous is None or self._previous.is_dry

    def _run_dry(self) -> None:
        self._is_dry = True
        if self is not self.queues[-1]:
            self._begin_batches()

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
        if self._may_have_lost:
            self._recover()
            return
        now = self.now()
        next_free_at = self.slots.next_free_at()
        wanted: tuple[int, ...] = ()
        if self.is_next:
            wanted = self.core.wanted(now, self.slots.free, next_free_at)
        if wanted and (not self._may_wait or now - self._empty_at > EMPTY_FOR):
            self._look(wanted)
            return
        if wanted:
            self._wait_for_tasks(wanted)
            return
        if self._refills:
            self._refills = 0
            self._begin_batches()
            self._fetch()
            return
        self._wait()

    def _recover(self) -> None:
        model, server = self._server.model, self._server

        def recovered(claimed: list[Claimed]) -> None:
            self._may_have_lost = bool(claimed)
            self._audit.counts["recovered"] += len(claimed)
            if claimed:
                self._add(claimed)
                self._begin_batches()
            self._fetch()

        held = self.core.held_ids()
        server.exchange(
            self, lambda: model.recover(server.now, self.id, held), recovered, self._fetch_again
        )

    def _look(self, wanted: Sequence[int]) -> None:
        model, server = self._server.model, self._server

        def fetch() -> list[Claimed]:
            if self._is_stopping:
                return []
            claimed = model.fetch(server.now, self.id, wanted)
            self._audit.fetched(self, model, [one.task for one in claimed])
            return claimed

        def looked(claimed: list[Claimed]) -> None:
            self._is_dry = False
            if not claimed and self._may_wait:
                self._wait_for_tasks(wanted)
            else:
                self._fetched(claimed, len(claimed) >= max(wanted[-1], 1))

        server.exchange(self, fetch, looked, self._fetch_again, may_repeat=False)

    @property
    def _may_wait(self) -> bool:
        return not self._refills and not self.core.is_full

    def _wait_for_tasks(self, wanted: Sequence[int]) -> None:
        count = min(max(wanted[-1] // len(wanted), 1), _MOST_AWAITED)
        model, server = self._server.model, self._server

        def read() -> list[Claimed] | None:
            if self._is_stopping or not model.has_waiting:
                return None
            return model.read(server.now, self.id, count)

        def received(claimed: list[Claimed] | None) -> None:
            self._is_dry = False
            found = claimed or []
            is_cut = len(found) >= count
            if not is_cut and self is self.queues[-1]:
                self._empty_at = self.now()
            self._fetched(found, False, is_cut=is_cut)

        self._run_dry()
        server.read(self, read, received, self._fetch_again)

    def _fetched(self, claimed: list[Claimed], is_all: bool, *, is_cut: bool = False) -> None:
        """`is_all`: as many as were wanted. `is_cut`: more may be there."""
        self._pause = _RETRY_AFTER
        has_dropped = self._add(claimed)
        is_cut = is_cut or (has_dropped and is_all)
        if is_cut and self._refills < _MOST_REFILLS:
            self._refills += 1
            self._fetch()
            return
        if claimed or self._refills:
            self._refills = 0
            self._begin_batches()
        if self.core.is_full:
            self._wait()
        else:
            self._fetch()

    def _wait(self) -> None:
        self._is_fetching = False
        self._is_dry = False
        now, next_free_at = self.now(), self.slots.next_free_at()
        if next_free_at is not None and next_free_at - now > FETCH_AHEAD:
            self.after(next_free_at - now - FETCH_AHEAD + 1e-6, self._wake)

    def _fetch_again(self, _: Unavailable) -> None:
        self._may_have_lost = True
        self._refills = 0
        self._run_dry()
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
        while self.slots.free and self.is_next:
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
