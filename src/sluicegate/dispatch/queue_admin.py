"""`QueueAdmin`: looks at a queue from outside, and does what an operator does to it."""

import asyncio
from time import monotonic
from typing import Any, NamedTuple, Self

from sluicegate._validate import check_positive, check_whole
from sluicegate.dispatch.keys import GROUP, PRIORITIES, QueueKeys
from sluicegate.dispatch.scripts import QueueScripts
from sluicegate.dispatch.wire import Request, decode_request
from sluicegate.errors import ProtocolError
from sluicegate.redis_client import AsyncRedisPool, ErrorReply, pack

__all__ = ["LOOK_EVERY", "DeadRequest", "QueueAdmin", "QueueStatus", "read_status"]

LOOK_EVERY = 0.2  # seconds between two looks at a queue that is to become empty

_ADDED = (b"reason", b"stream", b"id")  # fields that the dead list puts before a request's own


class QueueStatus(NamedTuple):
    """`waiting` and `running` are by priority.

    `running` are requests that a worker has taken, some of which may still wait there. `rate` is
    how many requests per second the workers can run: None without workers, and before their first
    batches.
    """

    waiting: dict[int, int]
    running: dict[int, int]
    workers: list[str]
    rate: float | None
    dead: int
    is_draining: bool

    @property
    def length(self) -> int:
        """How many requests are in the queue: those that wait and those that run."""
        return sum(self.waiting.values()) + sum(self.running.values())


class DeadRequest(NamedTuple):
    """A request that was given up; `request` is an error if it cannot be read.

    `fields` are those of its entry in the queue, as bytes.
    """

    id: str
    reason: str
    priority: int
    request: Request | ProtocolError
    fields: list[tuple[bytes, bytes]]


async def read_status(pool: AsyncRedisPool, keys: QueueKeys, timeout: float) -> QueueStatus:
    """The state of a queue, in one exchange with Redis."""
    commands = [pack("XLEN", key) for key in keys.tasks]
    commands += [pack("XPENDING", key, GROUP) for key in keys.tasks]
    commands += [
        pack("TIME"),
        pack("ZRANGE", keys.workers, 0, -1, "WITHSCORES"),
        pack("GET", keys.rate),
        pack("XLEN", keys.dead),
        pack("EXISTS", keys.draining),
    ]
    replies = await _exchange(pool, keys, commands, timeout)
    count = len(keys.tasks)
    lengths, pendings = replies[:count], replies[count : 2 * count]
    running = [0 if isinstance(one, ErrorReply) else int(one[0]) for one in pendings]
    time, workers, rate, dead, draining = replies[2 * count :]
    now = int(time[0]) * 1000
    alive = [
        name.decode(errors="replace")
        for name, until in zip(workers[::2], workers[1::2], strict=True)
        if float(until) > now
    ]
    return QueueStatus(
        waiting={
            priority: length - run
            for priority, length, run in zip(PRIORITIES, lengths, running, strict=True)
        },
        running=dict(zip(PRIORITIES, running, strict=True)),
        workers=sorted(alive),
        rate=_number(rate) if alive else None,
        dead=dead,
        is_draining=bool(draining),
    )


def _number(text: bytes | None) -> float | None:
    """None for what is no number: any program can write the key."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


class QueueAdmin:
    """One queue. `timeout`: seconds for one exchange with Redis."""

    def __init__(
        self, url: str, queue: str, *, timeout: float = 2.0, prefix: str = "sluicegate:"
    ) -> None:
        self._keys = QueueKeys(queue, prefix)
        self._timeout = check_positive("timeout", timeout)
        self._pool = AsyncRedisPool(url, timeout)
        self._scripts = QueueScripts(self._pool, self._keys, timeout)

    async def status(self) -> QueueStatus:
        return await read_status(self._pool, self._keys, self._timeout)

    async def exists(self) -> bool:
        """Whether a worker has ever served it: its streams stay when the last worker leaves."""
        replies = await self._exchange([pack("EXISTS", key) for key in self._keys.tasks])
        return any(replies)

    async def drain(self, seconds: float) -> None:
        """Refuse new requests for this long; those in the queue are finished.

        It returns at once: `wait_until_empty` waits.
        """
        milliseconds = round(check_positive("seconds", seconds) * 1000)
        await self._exchange([pack("SET", self._keys.draining, 1, "PX", max(milliseconds, 1))])

    async def wait_until_empty(self, timeout: float) -> bool:
        """Whether the queue has become empty within `timeout` seconds."""
        deadline = monotonic() + check_positive("timeout", timeout)
        while (await self.status()).length:
            if monotonic() >= deadline:
                return False
            await asyncio.sleep(LOOK_EVERY)
        return True

    async def resume(self) -> None:
        """Accept requests again."""
        await self._exchange([pack("DEL", self._keys.draining)])

    async def dead(self, most: int = 100) -> list[DeadRequest]:
        """The oldest requests of the dead list."""
        check_whole("most", most, 1)
        (entries,) = await self._exchange(
            [pack("XRANGE", self._keys.dead, "-", "+", "COUNT", most)]
        )
        return [self._read_dead(id, fields) for id, fields in entries]

    async def retry(self, most: int = 100) -> int:
        """Put the oldest requests of the dead list back into the queue; how many.

        Nobody may wait for their responses any more.
        """
        return await self._scripts.retry(check_whole("most", most, 1))

    async def close(self) -> None:
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _read_dead(self, id: bytes, fields: list[bytes]) -> DeadRequest:
        added: dict[bytes, bytes] = {}
        own: list[tuple[bytes, bytes]] = []
        for field, value in zip(fields[::2], fields[1::2], strict=True):
            if field in _ADDED and field not in added:
                added[field] = value
            else:
                own.append((field, value))
        stream = added.get(b"stream", b"")
        places = [place for place, key in enumerate(self._keys.tasks) if key == stream]
        try:
            request: Request | ProtocolError = decode_request(dict(own).get(b"request", b""))
        except ProtocolError as error:
            request = error
        return DeadRequest(
            id=added.get(b"id", id).decode(errors="replace"),
            reason=added.get(b"reason", b"").decode(errors="replace"),
            priority=PRIORITIES[places[0]] if places else 0,
            request=request,
            fields=own,
        )

    async def _exchange(self, commands: list[bytes]) -> list[Any]:
        return await _exchange(self._pool, self._keys, commands, self._timeout)

    def __repr__(self) -> str:
        return f"QueueAdmin({self._keys.queue!r}, address={self._pool.address!r})"


async def _exchange(
    pool: AsyncRedisPool, keys: QueueKeys, commands: list[bytes], timeout: float
) -> list[Any]:
    deadline = monotonic() + timeout
    replies = await pool.pipeline(keys.dead, commands, deadline)
    for reply in replies:
        if isinstance(reply, ErrorReply) and reply.code not in ("NOGROUP", "ERR"):
            raise reply
    return replies
