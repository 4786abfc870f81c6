"""`QueueModel`: the scripts of `dispatch/lua` on plain dicts, with the time as an argument.

Its methods are those of `QueueScripts`, and the blocking reads of workers and clients. The tests
compare it with the scripts on a real Redis, so that what is proved with the model holds there.

Left out: idempotency keys and reply streams never expire, lengths are not trimmed, and the groups
exist from the beginning.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from sluicegate.dispatch.keys import PRIORITIES, RETURNED, TaskId
from sluicegate.dispatch.messages import (
    BUSY,
    DUPLICATE,
    NO_WORKERS,
    Cancelled,
    Claimed,
    Enqueued,
    Finishing,
    Heartbeat,
    Outgoing,
)

__all__ = ["Pending", "QueueModel"]


@dataclass(slots=True)
class Pending:
    """An entry that was delivered: to whom, how often, when, and when last renewed (ms)."""

    consumer: bytes
    delivered_at: int
    deliveries: int
    renewed_at: int


@dataclass(slots=True)
class TaskStream:
    """A stream and its group. Dicts are in the order of the ids."""

    waiting: dict[bytes, bytes] = field(default_factory=dict)
    delivered: dict[bytes, bytes] = field(default_factory=dict)
    pending: dict[bytes, Pending] = field(default_factory=dict)
    consumers: dict[bytes, int] = field(default_factory=dict)  # when each was last seen (ms)

    def __len__(self) -> int:
        return len(self.waiting) + len(self.delivered)

    def claimed(self, place: int, id: bytes) -> Claimed:
        """A pending entry as its new owner is given it."""
        return Claimed((place, id), self.pending[id].deliveries, (b"request", self.delivered[id]))

    def end(self, id: bytes) -> None:
        del self.pending[id]
        del self.delivered[id]


class QueueModel:
    """One queue. Times are in seconds, those of Redis."""

    def __init__(self) -> None:
        self.streams = [TaskStream() for _ in PRIORITIES]
        self.dead: list[tuple[str, int, bytes]] = []  # reason, stream, payload
        self.replies: dict[bytes, list[list[bytes]]] = {}  # for each client entries of responses
        self.control: dict[bytes, list[tuple[int, TaskId]]] = {}  # what each worker is told
        self.workers: dict[bytes, int] = {}  # until when each is alive (ms)
        self.leases: dict[bytes, int] = {}  # of each worker (ms)
        self.rates: dict[bytes, float] = {}
        self.rate: float | None = None
        self.once: set[bytes] = set()
        self.is_draining = False
        self._reaper_until = 0
        self._last_id = (0, 0)
        self._last_control = 0

    @property
    def length(self) -> int:
        return sum(map(len, self.streams))

    @property
    def has_waiting(self) -> bool:
        return any(stream.waiting for stream in self.streams)

    def enqueue(
        self,
        now: float,
        requests: Sequence[Outgoing],
        max_waiting: int,
        max_wait_seconds: float,
        once_seconds: float,  # unused: keys never expire here
    ) -> Enqueued:
        limit = max_waiting
        if max_wait_seconds > 0.0 and self.rate is not None:
            limit = min(limit, max(1, math.floor(self.rate * max_wait_seconds)))
        if self.is_draining:
            limit = 0
        has_workers = any(until > _ms(now) for until in self.workers.values())
        results: list[bytes | int] = []
        for stream, once, payload in requests:
            if not has_workers:
                results.append(NO_WORKERS)
            elif self.length >= limit:
                results.append(BUSY)
            elif once and once in self.once:
                results.append(DUPLICATE)
            else:
                if once:
                    self.once.add(once)
                results.append(self._append(now, stream, payload))
        return Enqueued(self.length, limit, results)

    def fetch(self, now: float, worker: bytes, wanted: Sequence[int]) -> list[Claimed]:
        taken: list[Claimed] = []
        for place, most in enumerate(wanted):
            if most > len(taken):
                taken += self._deliver(now, worker, place, most - len(taken))
        return taken

    def read(self, now: float, worker: bytes, count: int) -> list[Claimed]:
        """XREADGROUP: up to `count` of each stream."""
        return [
            one
            for place in range(len(self.streams))
            for one in self._deliver(now, worker, place, count)
        ]

    def finish(self, tasks: Sequence[Finishing]) -> list[int]:
        ended = []
        replies: dict[bytes, list[bytes]] = {}
        for (place, id), reply_to, response, reason in tasks:
            stream = self.streams[place]
            is_ours = id in stream.pending
            ended.append(int(is_ours))
            if not is_ours:
                continue
            if reason:
                self.dead.append((reason, place, stream.delivered[id]))
            stream.end(id)
            if reply_to:
                replies.setdefault(reply_to, []).append(response)
        for reply_to, responses in replies.items():
            self.replies.setdefault(reply_to, []).append(responses)
        return ended

    def cancel(self, now: float, tasks: Sequence[TaskId]) -> list[Cancelled]:
        results = []
        for place, id in tasks:
            stream = self.streams[place]
            pending = stream.pending.get(id)
            if pending is not None:
                stream.end(id)
                if pending.consumer == RETURNED:
                    results.append(Cancelled(1, 0.0))
                else:
                    had = (_ms(now) - pending.delivered_at) / 1000.0
                    results.append(Cancelled(2, had))
                    self.tell(pending.consumer, (place, id))
            elif stream.waiting.pop(id, None) is not None:
                results.append(Cancelled(1, 0.0))
            else:
                results.append(Cancelled(0, 0.0))
        return results

    def tell(self, worker: bytes, task: TaskId) -> None:
        """Tell a worker that a task was cancelled."""
        self._last_control += 1
        self.control.setdefault(worker, []).append((self._last_control, task))

    def told_after(self, worker: bytes, last: int) -> list[tuple[int, TaskId]]:
        """What a worker was told after the entry of this number."""
        entries = self.control.get(worker)
        if not entries or entries[-1][0] <= last:
            return []
        return [entry for entry in entries if entry[0] > last]

    def heartbeat(self, now: float, worker: bytes, lease: float, rate: float | None) -> Heartbeat:
        self.workers[worker] = _ms(now) + _duration(lease)
        self.leases[worker] = _duration(lease)
        if rate is not None:
            self.rates[worker] = float(f"{rate:.6g}")
        for dead in [one for one, until in self.workers.items() if until <= _ms(now)]:
            del self.workers[dead]
            self.rates.pop(dead, None)
        total = sum(self.rates.values())
        self.rate = float(f"{total:.6g}") if total > 0.0 else None
        return Heartbeat(now, len(self.workers))

    def reap(
        self, now: float, worker: bytes, lease: float, room: int, turn: float
    ) -> list[Claimed]:
        if _ms(now) < self._reaper_until:
            return []
        self._reaper_until = _ms(now) + _duration(turn)
        taken: list[Claimed] = []
        for place, stream in enumerate(self.streams):
            for id in sorted(stream.pending, key=_order):
                pending = stream.pending[id]
                if len(taken) < room and self.is_lapsed(now, pending, lease):
                    stream.consumers[worker] = pending.delivered_at = _ms(now)
                    pending.renewed_at = _ms(now)
                    pending.consumer = worker
                    pending.deliveries += 1
                    taken.append(stream.claimed(place, id))
            self._forget_dead(now, stream, lease)
        consumers = {name for stream in self.streams for name in stream.consumers}
        for name in self.leases.keys() - consumers - self.workers.keys():
            del self.leases[name]
        return taken

    def is_lapsed(self, now: float, pending: Pending, lease: float) -> bool:
        """`lease`: of a consumer that has told none."""
        owner_lease = self.leases.get(pending.consumer, _duration(lease))
        return _ms(now) - pending.renewed_at >= owner_lease

    def recover(self, now: float, worker: bytes, held: Iterable[TaskId]) -> list[Claimed]:
        known = set(held)
        found = []
        for place, stream in enumerate(self.streams):
            for id in sorted(stream.pending, key=_order):
                pending = stream.pending[id]
                if pending.consumer == worker and (place, id) not in known:
                    stream.consumers[worker] = pending.delivered_at = _ms(now)
                    pending.renewed_at = _ms(now)
                    found.append(stream.claimed(place, id))
        return found

    def renew(self, now: float, worker: bytes, lease: float, tasks: Sequence[TaskId]) -> list[int]:
        kept = []
        for place, id in tasks:
            pending = self.streams[place].pending.get(id)
            is_ours = pending is not None and pending.consumer == worker
            if pending is not None and is_ours:
                pending.renewed_at = self.streams[place].consumers[worker] = _ms(now)
            kept.append(int(is_ours))
        return kept

    def leave(self, now: float, worker: bytes, idle: float) -> int:
        count = 0
        for stream in self.streams:
            for pending in stream.pending.values():
                if pending.consumer == worker:
                    pending.consumer = RETURNED
                    pending.renewed_at = _ms(now) - _duration(idle)
                    pending.deliveries = max(pending.deliveries - 1, 0)
                    stream.consumers[RETURNED] = _ms(now)
                    count += 1
            stream.consumers.pop(worker, None)
        self.workers.pop(worker, None)
        self.leases.pop(worker, None)
        self.rates.pop(worker, None)
        self.control.pop(worker, None)
        return count

    def retry(self, now: float, most: int) -> int:
        retried, self.dead = self.dead[:most], self.dead[most:]
        for _, place, payload in retried:
            self._append(now, place, payload)
        return len(retried)

    def _deliver(self, now: float, worker: bytes, place: int, count: int) -> list[Claimed]:
        stream = self.streams[place]
        if stream.waiting:
            stream.consumers[worker] = _ms(now)
        taken = []
        for id in list(islice(stream.waiting, count)):
            stream.delivered[id] = stream.waiting.pop(id)
            stream.pending[id] = Pending(worker, _ms(now), 1, _ms(now))
            taken.append(stream.claimed(place, id))
        return taken

    def _append(self, now: float, stream: int, payload: bytes) -> bytes:
        last, sequence = self._last_id
        self._last_id = (_ms(now), 0) if _ms(now) > last else (last, sequence + 1)
        id = b"%d-%d" % self._last_id
        self.streams[stream].waiting[id] = payload
        return id

    def _forget_dead(self, now: float, stream: TaskStream, lease: float) -> None:
        busy = {pending.consumer for pending in stream.pending.values()}
        for name, seen_at in list(stream.consumers.items()):
            is_idle = _ms(now) - seen_at > _duration(lease)
            if is_idle and name not in busy and name != RETURNED and name not in self.workers:
                del stream.consumers[name]
                self.control.pop(name, None)

    def __repr__(self) -> str:
        pending = sum(len(stream.pending) for stream in self.streams)
        return f"QueueModel(length={self.length}, pending={pending}, workers={len(self.workers)})"


def _ms(now: float) -> int:
    return math.floor(now * 1000.0)


def _duration(seconds: float) -> int:
    return max(round(seconds * 1000), 1)


def _order(id: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = id.partition(b"-")
    return int(milliseconds), int(sequence)
