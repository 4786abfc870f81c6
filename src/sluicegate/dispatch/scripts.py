"""The scripts of `lua/` as functions: arguments packed, replies read.

A script is called by its hash, and sent whole when Redis does not know it (any more). All keys of a
call have the queue's hash tag. A call that was carried out and whose reply was lost may be repeated
for every script but `enqueue`, which would add its requests twice, and `fetch`, of whose first
tasks nobody would know until `recover` finds them.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Generic, TypeVar

from sluicegate.dispatch.keys import GROUP, RETURNED, QueueKeys, TaskId
from sluicegate.dispatch.messages import (
    Cancelled,
    Claimed,
    Enqueued,
    Finishing,
    Heartbeat,
    Outgoing,
)
from sluicegate.dispatch.wire import LARGEST_REQUEST
from sluicegate.errors import ProtocolError
from sluicegate.redis_client import AsyncRedisPool, ErrorReply, pack

__all__ = ["RETURNED_IDLE", "TOO_LARGE", "Begun", "QueueScripts"]

TOO_LARGE = b"too large"  # in place of a request's field; its value is the number of bytes
CONTROL_SECONDS = 60.0  # how long a control stream outlives what was last said in it
MAX_CONTROL = 100_000  # entries of a control stream that its worker has not read
REPLY_SECONDS = 60.0  # how long a reply stream outlives its last reply
MAX_REPLIES = 10_000  # entries of a reply stream that its client has not read
MAX_DEAD = 10_000  # entries of the dead list
RETURNED_IDLE = 7 * 86400.0  # how long returned tasks seem idle: beyond the lease of any worker
QUEUE_SECONDS = 3600.0  # how long a queue remembers its workers after the last heartbeat

_LUA = Path(__file__).parent / "lua"
_Word = bytes | str | int | float
_Reply = TypeVar("_Reply")


class _Script:
    def __init__(self, name: str) -> None:
        self.name = name
        self.text = (_LUA / f"{name}.lua").read_bytes()
        self.hash = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


_SCRIPTS = {
    name: _Script(name)
    for name in (
        *("enqueue", "fetch", "recover", "finish", "cancel"),
        *("heartbeat", "reap", "renew", "leave", "retry", "next_entry"),
    )
}


class Begun(Generic[_Reply]):
    """A call that was sent and whose reply is to come."""

    def __init__(self, future: "asyncio.Future[list[Any]]", read: Callable[[Any], _Reply]) -> None:
        self.future = future
        self._read = read

    def result(self) -> _Reply | None:
        """The reply, once the future is done; None if Redis has not carried the call out.

        That is so when it did not know the script, or does not hold all of the keys: the call is
        to be awaited instead.
        """
        (reply,) = self.future.result()
        if isinstance(reply, ErrorReply):
            if reply.code == "NOSCRIPT" or reply.is_of_moving_slot:
                return None
            raise reply
        return self._read(reply)


class QueueScripts:
    """The scripts of one queue. `timeout`: seconds for one call."""

    def __init__(self, pool: AsyncRedisPool, keys: QueueKeys, timeout: float) -> None:
        self._pool = pool
        self._keys = keys
        self._timeout = timeout
        self._streams = len(keys.tasks)

    async def enqueue(
        self,
        requests: Sequence[Outgoing],
        max_waiting: int,
        max_wait_seconds: float,
        once_seconds: float,
    ) -> Enqueued:
        keys, words = self._enqueue_words(requests, max_waiting, max_wait_seconds, once_seconds)
        reply = await self._call("enqueue", keys, words, may_repeat=False)
        return _read_enqueued(reply, len(requests))

    def begin_enqueue(
        self,
        requests: Sequence[Outgoing],
        max_waiting: int,
        max_wait_seconds: float,
        once_seconds: float,
    ) -> "Begun[Enqueued] | None":
        """`enqueue` without a task; None if it must be awaited."""
        keys, words = self._enqueue_words(requests, max_waiting, max_wait_seconds, once_seconds)
        count = len(requests)
        return self._begin("enqueue", keys, words, lambda reply: _read_enqueued(reply, count))

    async def fetch(self, worker: bytes, wanted: Sequence[int]) -> list[Claimed]:
        """Tasks that wait, the most urgent first.

        `wanted` has for each stream how many to take of it and the more urgent ones.
        """
        words: list[_Word] = [GROUP, worker, *wanted]
        reply = await self._call("fetch", self._keys.tasks, words, may_repeat=False)
        return [Claimed((stream - 1, id), 1, fields) for stream, id, fields in reply]

    async def recover(self, worker: bytes, held: Iterable[TaskId]) -> list[Claimed]:
        """Tasks that were delivered to a worker and are not among those that it holds."""
        words: list[_Word] = [self._streams, GROUP, worker, LARGEST_REQUEST, TOO_LARGE]
        words += _task_words(held)
        return _read_claimed(await self._call("recover", self._keys.tasks, words))

    async def finish(self, tasks: Sequence[Finishing]) -> list[int]:
        """For each task whether this call has ended it."""
        keys, words = self._finish_words(tasks)
        return _read_flags("finish", await self._call("finish", keys, words), len(tasks))

    def begin_finish(self, tasks: Sequence[Finishing]) -> "Begun[list[int]] | None":
        """`finish` without a task; None if it must be awaited."""
        keys, words = self._finish_words(tasks)
        count = len(tasks)
        return self._begin("finish", keys, words, lambda reply: _read_flags("finish", reply, count))

    async def cancel(self, tasks: Sequence[TaskId]) -> list[Cancelled]:
        words: list[_Word] = [self._streams, GROUP, self._keys.control_start]
        words += [_ms(CONTROL_SECONDS), MAX_CONTROL, RETURNED, self._keys.taken_start]
        words += _task_words(tasks)
        reply = await self._call("cancel", self._keys.tasks, words)
        numbers = _read_flags("cancel", reply, 2 * len(tasks))
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        return [Cancelled(where, had / 1000.0) for where, had in pairs]

    async def heartbeat(self, worker: bytes, lease: float, rate: float | None) -> Heartbeat:
        """The worker counts as alive for its lease."""
        keys = [self._keys.workers, self._keys.rates, self._keys.rate, self._keys.leases]
        words: list[_Word] = [worker, _ms(lease), "" if rate is None else f"{rate:.6g}"]
        words.append(_ms(max(QUEUE_SECONDS, lease)))
        seconds, micros, workers = _read_flags(
            "heartbeat", await self._call("heartbeat", keys, words), 3
        )
        return Heartbeat(seconds + micros / 1e6, workers)

    async def reap(self, worker: bytes, lease: float, room: int, turn: float) -> list[Claimed]:
        """Tasks of others whose leases have run out; none while it is another worker's turn."""
        keys = [*self._keys.tasks, self._keys.reaper, self._keys.workers, self._keys.leases]
        words: list[_Word] = [self._streams, GROUP, worker, _ms(lease), room, _ms(turn)]
        words += [self._keys.control_start, RETURNED, self._keys.taken_start]
        words += [LARGEST_REQUEST, TOO_LARGE]
        return _read_claimed(await self._call("reap", keys, words))

    async def renew(self, worker: bytes, lease: float, tasks: Sequence[TaskId]) -> list[int]:
        """For each task whether it still is the worker's."""
        words: list[_Word] = [self._streams, GROUP, worker]
        words += [self._keys.taken_start, _ms(2 * lease), *_task_words(tasks)]
        reply = await self._call("renew", self._keys.tasks, words)
        return _read_flags("renew", reply, len(tasks))

    async def leave(self, worker: bytes, idle: float) -> int:
        """How many tasks were given back."""
        keys = [*self._keys.tasks, self._keys.workers, self._keys.rates, self._keys.leases]
        words: list[_Word] = [self._streams, GROUP, worker, RETURNED, _ms(idle)]
        words.append(self._keys.control(worker))
        return int(await self._call("leave", keys, words))

    async def retry(self, most: int) -> int:
        """Put requests of the dead list back into the queue; how many."""
        keys = [*self._keys.tasks, self._keys.dead]
        return int(await self._call("retry", keys, [self._streams, most]))

    async def next_entry(self, stream: bytes, after: bytes) -> bytes | None:
        """The id of the entry of a stream that follows another; None if there is none."""
        entry: bytes | None = await self._call("next_entry", [stream], [after])
        return entry

    async def create_groups(self) -> None:
        """Create the streams of tasks and their consumer groups, where they are missing."""
        commands = [
            pack("XGROUP", "CREATE", key, GROUP, "0", "MKSTREAM") for key in self._keys.tasks
        ]
        deadline = monotonic() + self._timeout
        for reply in await self._pool.pipeline(self._keys.dead, commands, deadline):
            if isinstance(reply, ErrorReply) and reply.code != "BUSYGROUP":
                raise reply

    def _enqueue_words(
        self,
        requests: Sequence[Outgoing],
        max_waiting: int,
        max_wait_seconds: float,
        once_seconds: float,
    ) -> tuple[list[bytes], list[_Word]]:
        keys = [*self._keys.tasks, self._keys.workers, self._keys.rate, self._keys.draining]
        words: list[_Word] = [self._streams, max_waiting, max_wait_seconds, _ms(once_seconds)]
        for stream, once, payload in requests:
            if once:
                keys.append(once)
            words += (stream + 1, len(keys) if once else 0, payload)
        return keys, words

    def _finish_words(self, tasks: Sequence[Finishing]) -> tuple[list[bytes], list[_Word]]:
        keys = [*self._keys.tasks, self._keys.dead]
        words: list[_Word] = [
            *(self._streams, GROUP, _ms(REPLY_SECONDS), MAX_REPLIES, MAX_DEAD),
        ]
        places: dict[bytes, int] = {b"": 0}
        for (stream, id), reply_to, response, reason in tasks:
            place = places.get(reply_to)
            if place is None:
                keys.append(reply_to)
                place = places[reply_to] = len(keys)
            words += (stream + 1, id, place, response, reason)
        return keys, words

    def _begin(
        self,
        name: str,
        keys: Sequence[bytes],
        words: Sequence[_Word],
        read: Callable[[Any], _Reply],
    ) -> "Begun[_Reply] | None":
        payload = pack("EVALSHA", _SCRIPTS[name].hash, len(keys), *keys, *words)
        future = self._pool.begin(keys[0], payload, 1, monotonic() + self._timeout)
        return None if future is None else Begun(future, read)

    async def _call(
        self,
        name: str,
        keys: Sequence[bytes],
        words: Sequence[_Word],
        *,
        may_repeat: bool = True,
    ) -> Any:
        script = _SCRIPTS[name]
        deadline = monotonic() + self._timeout
        payload = pack("EVALSHA", script.hash, len(keys), *keys, *words)
        (reply,) = await self._pool.exchange(keys[0], payload, 1, deadline, may_repeat=may_repeat)
        if isinstance(reply, ErrorReply) and reply.code == "NOSCRIPT":
            payload = pack("EVAL", script.text, len(keys), *keys, *words)
            (reply,) = await self._pool.exchange(
                keys[0], payload, 1, deadline, may_repeat=may_repeat
            )
        if isinstance(reply, ErrorReply):
            raise reply
        return reply


def _read_enqueued(reply: Any, count: int) -> Enqueued:
    if not isinstance(reply, list) or len(reply) != count + 2:
        raise _invalid("enqueue", reply)
    return Enqueued(reply[0], reply[1], reply[2:])


def _read_flags(name: str, reply: object, count: int) -> list[int]:
    if (
        isinstance(reply, list)
        and len(reply) == count
        and all(isinstance(one, int) for one in reply)
    ):
        return reply
    raise _invalid(name, reply)


def _read_claimed(reply: Any) -> list[Claimed]:
    return [
        Claimed((stream - 1, id), deliveries, fields) for stream, id, deliveries, fields in reply
    ]


def _task_words(tasks: Iterable[TaskId]) -> list[_Word]:
    words: list[_Word] = []
    for stream, id in tasks:
        words += (stream + 1, id)
    return words


def _ms(seconds: float) -> int:
    return max(round(seconds * 1000), 1)


def _invalid(name: str, reply: object) -> ProtocolError:
    return ProtocolError(f"invalid reply from Redis to the script {name}: {reply!r:.200}")
