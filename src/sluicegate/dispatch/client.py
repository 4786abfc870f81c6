"""`Dispatcher`: calls to the workers of a queue, for asyncio.

Calls that begin in one pass of the event loop go to Redis in one script. All responses come over
one reply stream of this client, read with a blocking read from where it was left; so a connection
that was lost loses no response. A call that waits is a future, with no task and no timer of its
own. After a fork the child begins anew. After `close` only `async with` begins anew: a late call
would open connections that nobody closes.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Any, Self

from sluicegate._validate import check_between, check_positive, check_whole
from sluicegate.dispatch.client_core import Call, ClientCore, Outcome
from sluicegate.dispatch.errors import Busy, Duplicate, HandlerFailed, NoWorkers, TimedOut
from sluicegate.dispatch.keys import QueueKeys, check_priority
from sluicegate.dispatch.messages import Enqueued, Outgoing
from sluicegate.dispatch.metrics import client_text
from sluicegate.dispatch.read_count import ReadCount
from sluicegate.dispatch.scripts import Begun, QueueScripts
from sluicegate.dispatch.wire import (
    DEFAULT_MAX_PAYLOAD,
    LARGEST_REQUEST,
    LONGEST_TIMEOUT,
    MSGPACK,
    check_content_type,
    decode_response,
    encode_request,
)
from sluicegate.errors import ProtocolError, SluicegateError, Unavailable
from sluicegate.ids import Snowflake
from sluicegate.redis_client import MAX_REPLY_BYTES, AsyncRedisPool, BlockingReader, pack

__all__ = ["Dispatcher"]

_BLOCK = 5.0  # seconds for which a read waits in Redis
_MOST_REQUESTS = 256  # of one script, and at most
_MOST_BYTES = 4 * 1024 * 1024
_MOST_ENTRIES = 1000  # of the reply stream, of one read
_TRIM_EVERY = 1.0  # seconds between two trims of the reply stream
_RETRY_AFTER = 0.05
_LONGEST_RETRY = 1.0

_OUTCOMES: dict[type[Exception], str] = {
    Busy: "busy",
    Duplicate: "duplicate",
    HandlerFailed: "failed",
    NoWorkers: "no_workers",
    TimedOut: "timed_out",
}

log = logging.getLogger("sluicegate.dispatch")

_Call = Call["asyncio.Future[Any]"]


class Dispatcher:
    """A client of one queue.

    `max_waiting`: most requests in the queue, running ones included; `max_wait_seconds`: most
    seconds of work in it, by the rate that the workers measure. A call beyond either raises `Busy`.
    `timeout`: seconds for one exchange with Redis.
    """

    def __init__(
        self,
        url: str,
        queue: str,
        *,
        max_waiting: int = 1000,
        max_wait_seconds: float | None = None,
        content_type: str = MSGPACK,
        max_payload: int = DEFAULT_MAX_PAYLOAD,
        idempotency_seconds: float = 3600.0,
        timeout: float = 2.0,
        prefix: str = "sluicegate:",
    ) -> None:
        self._keys = QueueKeys(queue, prefix)
        self._limits = (
            check_whole("max_waiting", max_waiting, 1),
            0.0
            if max_wait_seconds is None
            else check_positive("max_wait_seconds", max_wait_seconds),
            check_positive("idempotency_seconds", idempotency_seconds),
        )
        self._content_type = check_content_type(content_type)
        self._max_payload = check_whole("max_payload", max_payload, 1)
        if max_payload > LARGEST_REQUEST:
            raise ValueError(
                f"max_payload must be at most {LARGEST_REQUEST}, which is what workers read, "
                f"got {max_payload!r}"
            )
        self._timeout = check_positive("timeout", timeout)
        self._pool = AsyncRedisPool(url, timeout)
        self._scripts = QueueScripts(self._pool, self._keys, timeout)
        self._ids = Snowflake()
        self._pid = 0
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading: asyncio.Task[None]
        self._orphans: list[asyncio.Task[None]] = []
        self.outcomes: Counter[str] = Counter()  # calls of this process that have ended

    @property
    def queue(self) -> str:
        return self._keys.queue

    async def call(
        self,
        data: Any,
        *,
        timeout: float,
        priority: int = 0,
        idempotency_key: str | None = None,
    ) -> Any:
        """The handler's result for `data`, within `timeout` seconds.

        Raises `Busy`, `NoWorkers`, `Duplicate`, `TimedOut`, `HandlerFailed` or `Unavailable`;
        `TypeError` and `ValueError` for data that cannot be sent. A call that is cancelled is not
        run if it has not begun.
        """
        return await self.submit(
            data, timeout=timeout, priority=priority, idempotency_key=idempotency_key
        )

    async def call_many(
        self,
        items: Iterable[Any],
        *,
        timeout: float,
        priority: int = 0,
        return_errors: bool = False,
    ) -> list[Any]:
        """The results for several items, in their order.

        The first error is raised and the other calls are cancelled; with `return_errors` errors
        stand in the list.
        """
        futures: list[asyncio.Future[Any]] = []
        try:
            for item in items:
                future = self.submit(item, timeout=timeout, priority=priority)
                futures.append(future)
            return await asyncio.gather(*futures, return_exceptions=return_errors)
        except BaseException:
            for future in futures:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # it is seen, so that nobody logs it
            raise

    def submit(
        self,
        data: Any,
        *,
        timeout: float,
        priority: int = 0,
        idempotency_key: str | None = None,
    ) -> "asyncio.Future[Any]":
        """As `call`, but the future of the result. To cancel it cancels the request."""
        if type(timeout) not in (int, float) or not 0.0 < timeout <= LONGEST_TIMEOUT:
            timeout = check_between("timeout", timeout, 1e-9, LONGEST_TIMEOUT)
        stream = check_priority(priority)
        self._open()
        once = b"" if idempotency_key is None else self._keys.once(idempotency_key)
        correlation_id = str(self._ids.next())
        payload = encode_request(self._content_type, self._reply_to, correlation_id, timeout, data)
        if len(payload) > self._max_payload:
            raise ValueError(
                f"data is too large: the request has {len(payload)} bytes, "
                f"the limit is {self._max_payload}"
            )
        assert self._loop is not None
        now = monotonic()
        future = _Result(self, self._loop)
        call = future.call = Call(
            correlation_id,
            Outgoing(stream, once, payload),
            idempotency_key or "",
            now,
            now + timeout,
            future,
        )
        self._core.add(call)
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(call)
        self._set_timer(call.deadline)
        return future

    def metrics(self) -> str:
        """The text for Prometheus: calls by outcome."""
        return client_text({self.queue: self.outcomes})

    async def close(self) -> None:
        """Cancel the calls that still wait, which raise `Unavailable`, and close the connections.

        It takes at most the time of one exchange with Redis; later calls raise `RuntimeError`.
        """
        is_open = self._loop is not None and self._pid == os.getpid()
        if self._is_closed or (is_open and self._loop is not asyncio.get_running_loop()):
            return
        self._is_closed = True
        if is_open:
            try:
                await self._close(monotonic() + self._timeout)
            finally:
                self._loop = None

    async def __aenter__(self) -> Self:
        if self._loop is None or self._pid != os.getpid():
            self._is_closed = False
        self._open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _open(self) -> None:
        """Begin in this process and on this loop, unless that is done."""
        if self._is_closed:
            raise RuntimeError(
                f"the Dispatcher of {self.queue!r} is closed; `async with` opens it again"
            )
        loop = asyncio.get_running_loop()
        if self._loop is loop and self._pid == os.getpid():
            return
        if self._loop is not None and self._pid == os.getpid() and not self._loop.is_closed():
            raise RuntimeError("a Dispatcher belongs to one event loop; make one for each")
        if self._loop is not None and self._pid:
            # In a forked child: the parent's tasks must not be collected, which warns of them.
            self._orphans += [self._reading, *self._tasks]
            self.outcomes.clear()  # the parent counts these
        self._pid = os.getpid()
        self._loop = loop
        self.name = f"{socket.gethostname()}-{self._pid}-{secrets.token_hex(4)}"
        self._replies = self._keys.replies(self.name.encode())
        self._reply_to = self._replies.decode()
        self._core: ClientCore[asyncio.Future[Any]] = ClientCore(self.queue)
        self._outbox: list[_Call] = []
        self._given_up: list[_Call] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending: set[asyncio.Future[Any]] = set()  # requests that Redis has not answered yet
        self._unavailable: Unavailable | None = None  # why responses cannot be read now
        self._reading = loop.create_task(self._read())

    async def _close(self, deadline: float) -> None:
        outcomes, cancel = self._core.close(Unavailable(f"the client of {self.queue!r} was closed"))
        self._complete(outcomes)
        if self._timer is not None:
            self._timer.cancel()
        self._given_up += cancel
        self._cancel_given_up()
        await self._finish_exchanges(deadline)
        for task in [self._reading, *self._tasks]:
            task.cancel()
        await asyncio.gather(self._reading, *self._tasks, return_exceptions=True)
        try:
            await self._pool.exchange(self._replies, pack("DEL", self._replies), 1, deadline)
        except SluicegateError as error:
            log.debug("reply stream is left to expire: %s", error)
        await self._pool.close()

    async def _finish_exchanges(self, deadline: float) -> None:
        """Wait for requests that are being sent, and for their cancellations."""
        while (pending := {*self._sending, *self._tasks}) and (left := deadline - monotonic()) > 0:
            await asyncio.wait(pending, timeout=left)

    def _flush(self) -> None:
        """Send the calls of this pass of the loop."""
        calls, self._outbox = self._outbox, []
        part: list[_Call] = []
        size = 0
        for call in calls:
            if call.waiter.done():
                self._core.failed([call], Unavailable("cancelled"))  # before it was sent
                continue
            part.append(call)
            size += len(call.outgoing.payload)
            if len(part) >= _MOST_REQUESTS or size > _MOST_BYTES:
                self._begin_send(part)
                part, size = [], 0
        if part:
            self._begin_send(part)

    def _begin_send(self, calls: list[_Call]) -> None:
        begun = self._scripts.begin_enqueue([call.outgoing for call in calls], *self._limits)
        if begun is None:
            self._start(self._send(calls))
        else:
            self._sending.add(begun.future)
            begun.future.add_done_callback(lambda _: self._sent(calls, begun))

    def _sent(self, calls: list[_Call], begun: Begun[Enqueued]) -> None:
        self._sending.discard(begun.future)
        try:
            reply = begun.result()
        except SluicegateError as error:
            self._complete(self._core.failed(calls, _as_unavailable(error)))
            return
        if reply is None:
            self._start(self._send(calls))
        else:
            self._enqueued(calls, reply)

    async def _send(self, calls: list[_Call]) -> None:
        try:
            reply = await self._scripts.enqueue([call.outgoing for call in calls], *self._limits)
        except SluicegateError as error:
            self._complete(self._core.failed(calls, _as_unavailable(error)))
            return
        self._enqueued(calls, reply)

    def _enqueued(self, calls: list[_Call], reply: Enqueued) -> None:
        outcomes, cancel = self._core.enqueued(calls, reply)
        self._complete(outcomes)
        if cancel:
            self._start(self._cancel(cancel))

    async def _cancel(self, calls: Sequence[_Call]) -> None:
        for first in range(0, len(calls), _MOST_REQUESTS):
            part = list(calls[first : first + _MOST_REQUESTS])
            tasks = [call.task for call in part]
            try:
                reply = await self._scripts.cancel([task for task in tasks if task is not None])
            except SluicegateError as error:
                log.debug("could not cancel %d requests: %s", len(calls) - first, error)
                return
            self._complete(self._core.cancelled(monotonic(), part, reply))

    def _cancel_given_up(self) -> None:
        """Cancel what was given up in this pass of the loop."""
        calls, self._given_up = self._given_up, []
        if calls:
            self._start(self._cancel(calls))

    async def _read(self) -> None:
        """Read responses for ever; after a failure from where it was left."""
        # An entry has all responses of one call of a worker: the bytes at which it sends them, and
        # one more response.
        reader = BlockingReader(
            self._pool,
            self._replies,
            self._timeout,
            max_reply_bytes=max(MAX_REPLY_BYTES, 2 * _MOST_BYTES + 2 * self._max_payload),
        )
        entries = ReadCount(_MOST_ENTRIES)
        seen = b"0-0"
        trimmed_at = monotonic()
        pause = _RETRY_AFTER
        try:
            while True:
                count = entries.within(_MOST_ENTRIES)
                command = pack(
                    *("XREAD", "COUNT", count, "BLOCK", int(_BLOCK * 1000)),
                    *("STREAMS", self._replies, seen),
                )
                try:
                    reply = await reader.read(command, _BLOCK)
                except SluicegateError as error:
                    if isinstance(error, ProtocolError) and entries.shrink(count):
                        log.debug("queue %s: %s", self.queue, error)
                        continue
                    if isinstance(error, ProtocolError):
                        seen = await self._skip_reply(seen, error)
                    self._unavailable = _as_unavailable(error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_RETRY)
                    continue
                self._unavailable = None
                pause = _RETRY_AFTER
                entries.grow()
                if not reply:
                    continue
                for id, fields in reply[0][1]:
                    seen = id
                    self._receive(fields)
                if monotonic() - trimmed_at > _TRIM_EVERY:
                    trimmed_at = monotonic()
                    self._start(self._trim(seen))
        finally:
            await reader.close()

    async def _skip_reply(self, seen: bytes, error: ProtocolError) -> bytes:
        """The id of an entry that is too large to read: its calls time out, the others go on."""
        try:
            entry = await self._scripts.next_entry(self._replies, seen)
        except SluicegateError:
            return seen
        log.error("queue %s: responses are lost, in one entry: %s", self.queue, error)
        return entry or seen

    def _receive(self, fields: Sequence[bytes]) -> None:
        for payload in fields[1::2]:
            try:
                outcome = self._core.respond(decode_response(payload))
            except ProtocolError as error:
                log.warning("queue %s: %s", self.queue, error)
                continue
            except Exception:  # a response that no one thought of must not end the reader
                log.exception("queue %s: invalid response", self.queue)
                continue
            if outcome is not None:
                self._complete([outcome])

    async def _trim(self, seen: bytes) -> None:
        """Free the memory of responses that were read."""
        try:
            await self._pool.call("XTRIM", self._replies, "MINID", seen, key=self._replies)
        except SluicegateError as error:
            log.debug("could not trim the reply stream: %s", error)

    def _give_up(self, call: _Call) -> None:
        self.outcomes["cancelled"] += 1
        if self._core.give_up(call):
            if not self._given_up and self._loop is not None:
                self._loop.call_soon(self._cancel_given_up)
            self._given_up.append(call)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            if self._timer_at <= deadline:
                return
            self._timer.cancel()
        assert self._loop is not None
        self._timer_at = deadline
        self._timer = self._loop.call_later(max(deadline - monotonic(), 0.0), self._expire)

    def _expire(self) -> None:
        self._timer = None
        outcomes, cancel = self._core.expire(monotonic(), self._unavailable)
        self._complete(outcomes)
        if cancel:
            self._start(self._cancel(cancel))
        deadline = self._core.next_deadline()
        if deadline is not None:
            self._set_timer(deadline)

    def _start(self, coroutine: Any) -> None:
        assert self._loop is not None
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _complete(self, outcomes: Iterable[Outcome]) -> None:
        for future, result, error in outcomes:
            if future.done():
                continue
            if error is None:
                self.outcomes["answered"] += 1
                future.set_result(result)
            else:
                self.outcomes[_OUTCOMES.get(type(error), "unavailable")] += 1
                future.set_exception(error)

    def __repr__(self) -> str:
        return f"Dispatcher({self.queue!r}, address={self._pool.address!r})"


class _Result(asyncio.Future[Any]):
    """The future of a call. To cancel it cancels the request.

    A callback would do the same, and cost each call that is not cancelled a turn of the loop.
    """

    def __init__(self, dispatcher: Dispatcher, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._dispatcher = dispatcher
        self.call: _Call

    def cancel(self, msg: Any | None = None) -> bool:
        is_cancelled = super().cancel(msg)
        if is_cancelled:
            self._dispatcher._give_up(self.call)
        return is_cancelled


def _as_unavailable(error: SluicegateError) -> Unavailable:
    return Unavailable(str(error))
