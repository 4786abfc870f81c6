"""`Consumer`: what a worker exchanges with Redis about one queue.

Three loops: one fetches tasks as its `Fetcher` says; one listens to the control stream; and one,
driven by time, sends heartbeats, renews leases and takes over tasks whose lease has run out. Ends
of tasks go out together, one script for all that ended in one pass of the event loop, and are sent
again until Redis confirms them. Whatever fails is tried again: workers come back by themselves.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any

from sluicegate.dispatch.fetcher import Begin, Fetcher, Look, Pause, Read, Recover
from sluicegate.dispatch.keys import GROUP, QueueKeys, TaskId
from sluicegate.dispatch.messages import Claimed, Finishing
from sluicegate.dispatch.scripts import RETURNED_IDLE, TOO_LARGE, Begun, QueueScripts
from sluicegate.dispatch.server_clock import ServerClock
from sluicegate.dispatch.task import Ending, Task
from sluicegate.dispatch.wire import (
    FAILED,
    LARGEST_REQUEST,
    OK,
    InvalidRequest,
    Request,
    Response,
    decode_request,
    encode_response,
)
from sluicegate.dispatch.worker_core import WorkerCore
from sluicegate.errors import SluicegateError, describe, reason_of
from sluicegate.redis_client import AsyncRedisPool, BlockingReader, ErrorReply, pack

__all__ = ["Consumer", "Slots"]

_BLOCK = 2.0  # seconds for which a read waits in Redis
_RETRY_AFTER = 0.1  # seconds, doubled by each failure in a row up to
_LONGEST_RETRY = 2.0
_MOST_CONTROL = 1000  # cancellations of one read, and read before the stream is trimmed
_LOG_EVERY = 1.0  # seconds between two warnings of one kind
_LOG_OUTAGE_EVERY = 5.0
_MOST_ENDINGS = 512  # of one call, and at most
_MOST_BYTES = 4 * 1024 * 1024

log = logging.getLogger("sluicegate.dispatch")


class Slots:
    """How many batches may begin now, and when the next could: what a consumer asks its worker."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.ends: dict[object, float | None] = {}  # of the batches that run

    @property
    def free(self) -> int:
        return self.count - len(self.ends)

    def next_free_at(self) -> float | None:
        """None: not known. Only asked when none is free."""
        known = [end for end in self.ends.values() if end is not None]
        return min(known) if known else None


class Consumer:
    def __init__(
        self,
        pool: AsyncRedisPool,
        keys: QueueKeys,
        worker: bytes,
        core: WorkerCore,
        slots: Slots,
        on_tasks: Callable[[], None],
        *,
        timeout: float,
        max_payload: int,
        previous: "Consumer | None" = None,
    ) -> None:
        self.keys = keys
        self.core = core
        self.clock = ServerClock()
        self._pool = pool
        self._worker = worker
        self._slots = slots
        self._on_tasks = on_tasks
        self._max_payload = max_payload
        self._scripts = QueueScripts(pool, keys, timeout)
        self.fetcher: Fetcher = Fetcher(core, None if previous is None else previous.fetcher)
        self._reader = BlockingReader(pool, keys.tasks[0], timeout)
        self._listener = BlockingReader(pool, keys.tasks[0], timeout)
        self._places = {key: place for place, key in enumerate(keys.tasks)}
        self._beat_every = min(core.lease / 4, 1.0)
        self._wakened = asyncio.Event()
        self._is_stopping = False
        self._loops: list[asyncio.Task[None]] = []
        self._outbox: list[Ending] = []
        self._unconfirmed: set[asyncio.Future[Any]] = set()
        self._sending: set[asyncio.Task[None]] = set()  # of what failed at first
        self._control_seen = b"0-0"
        self._failures = 0  # of the handler, not logged yet
        self._log_failures_at = 0.0
        self._dead = 0  # requests for the dead list, not logged yet
        self._log_dead_at = 0.0
        self._log_outage_at = 0.0
        self._is_outage_logged = False
        self._replies_start = keys.replies_start.decode()

    def now(self) -> float:
        """The time of Redis."""
        return self.clock.now(monotonic())

    async def start(self) -> None:
        """Register the worker. Raises `Unavailable` if Redis does not answer."""
        await self._scripts.create_groups()
        await self._beat()
        for loop in (self._fetch, self._listen, self._keep_alive):
            self._loops.append(asyncio.create_task(self._go_on(loop)))

    def wake(self) -> None:
        """A batch has begun or ended: look again how many tasks are wanted."""
        self._wakened.set()

    def finish(self, endings: Sequence[Ending], *, at_once: bool = False) -> None:
        """Answer tasks and take them out of the queue, by the end of this pass of the loop."""
        if not endings:
            return
        self._log_dead([ending for ending in endings if ending.reason])
        if not self._outbox and not at_once:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox += endings
        if at_once:
            self._flush()

    def _log_dead(self, endings: Sequence[Ending]) -> None:
        now = monotonic()
        for ending in endings:
            self._dead += 1
            if now < self._log_dead_at:
                continue
            self._log_dead_at = now + _LOG_EVERY
            more = f" (and {self._dead - 1} before it)" if self._dead > 1 else ""
            self._dead = 0
            id = ending.task.id[1].decode()
            log.warning(
                "queue %s: request %s goes to the dead list: %s%s",
                *(self.keys.queue, id, ending.reason, more),
            )

    def handler_failed(self, count: int, trace: str) -> None:
        """The handler has failed `count` tasks of a batch: log it, but not each time."""
        now = monotonic()
        self._failures += count
        if now >= self._log_failures_at:
            self._log_failures_at = now + _LOG_EVERY
            failures, self._failures = self._failures, 0
            log.warning(
                "queue %s: the handler failed %d requests\n%s", self.keys.queue, failures, trace
            )

    async def stop_fetching(self) -> None:
        """Fetch no more; batches that run may still be finished."""
        self._is_stopping = True
        for loop in self._loops[:2]:
            loop.cancel()
        await asyncio.gather(*self._loops[:2], return_exceptions=True)
        await self._reader.close()
        await self._listener.close()
        self.core.release()

    async def leave(self, timeout: float) -> int:
        """Send what is left to send, give back what did not run, and forget the worker.

        Returns how many sets of answers Redis has not confirmed.
        """
        if not self._loops:
            return 0  # it could not start, and has taken nothing
        self._flush()
        for _ in range(2):  # what fails at first is sent again
            if sending := [*self._unconfirmed, *self._sending]:
                await asyncio.wait(sending, timeout=timeout)
                await asyncio.sleep(0)
        unconfirmed = len(self._unconfirmed) + len(self._sending)
        for task in [*self._sending, *self._loops]:
            task.cancel()
        await asyncio.gather(*self._sending, *self._loops, return_exceptions=True)
        try:
            await self._scripts.leave(self._worker, max(2 * self.core.lease, RETURNED_IDLE))
        except SluicegateError as error:
            # Redis is away: the lease runs out, and the reaper does the same.
            log.warning("queue %s: could not give back tasks: %s", self.keys.queue, error)
        return unconfirmed

    async def _go_on(self, loop: Callable[[], Any]) -> None:
        """Run one of the loops for ever."""
        pause = _RETRY_AFTER
        while True:
            began = monotonic()
            try:
                await loop()
            except ErrorReply as error:
                if error.code != "NOGROUP":
                    self._log_outage(error)
            except (SluicegateError, OSError) as error:
                self._log_outage(error)
            except Exception:
                log.exception("queue %s: a loop of the worker failed, going on", self.keys.queue)
            if loop == self._fetch:
                self.fetcher.failed()
                self._on_tasks()  # what was fetched before does not wait for the next fetch
            longest = min(_LONGEST_RETRY, self.core.lease / 4)  # leases are kept meanwhile
            pause = _RETRY_AFTER if monotonic() - began > 5.0 else min(2 * pause, longest)
            await asyncio.sleep(pause)
            try:
                await self._scripts.create_groups()  # Redis may have come back empty
            except SluicegateError as error:
                log.debug("queue %s: %s", self.keys.queue, error)

    def _log_outage(self, error: Exception) -> None:
        """All loops, and answers that are on their way, fail of one cause: it is logged once."""
        now = monotonic()
        if now >= self._log_outage_at:
            self._log_outage_at = now + _LOG_OUTAGE_EVERY
            self._is_outage_logged = True
            log.warning("queue %s: %s, trying again", self.keys.queue, reason_of(error))

    async def _fetch(self) -> None:
        slots, fetcher = self._slots, self.fetcher
        while True:
            step = fetcher.step(self.now(), slots.free, slots.next_free_at())
            if isinstance(step, Pause):
                await self._pause(step)
                continue
            if isinstance(step, Begin):
                self._on_tasks()
                continue
            if isinstance(step, Read) and not fetcher.is_last:
                self._on_tasks()  # it is the turn of the queues behind this one
            claimed = await self._carry_out(step)
            dropped = self._add(claimed)
            if fetcher.fetched(self.now(), step, len(claimed), dropped):
                self._on_tasks()

    async def _carry_out(self, step: Recover | Look | Read) -> list[Claimed]:
        if isinstance(step, Recover):
            return await self._scripts.recover(self._worker, self.core.held_ids())
        if isinstance(step, Look):
            return await self._scripts.fetch(self._worker, step.wanted)
        words: list[bytes | str | int] = ["XREADGROUP", "GROUP", GROUP, self._worker]
        words += ["COUNT", step.most, "BLOCK", int(_BLOCK * 1000)]
        words += ["STREAMS", *self.keys.tasks, *[">"] * len(self.keys.tasks)]
        reply = await self._reader.read(pack(*words), _BLOCK)
        return [
            Claimed((self._places[key], id), 1, fields)
            for key, entries in reply or ()
            for id, fields in entries
        ]

    async def _pause(self, pause: Pause) -> None:
        self._wakened.clear()
        timer = None
        if pause.until is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(max(pause.until - self.now(), 0.0), self._wakened.set)
        try:
            await self._wakened.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _listen(self) -> None:
        key = self.keys.control(self._worker)
        read = 0  # since the stream was last trimmed
        while True:
            command = pack(
                *("XREAD", "COUNT", _MOST_CONTROL, "BLOCK", int(_BLOCK * 1000)),
                *("STREAMS", key, self._control_seen),
            )
            reply = await self._listener.read(command, _BLOCK)
            if not reply:
                continue
            cancelled: list[TaskId] = []
            for id, fields in reply[0][1]:
                self._control_seen = id
                cancelled += _read_control(fields)
            self.core.cancel(cancelled)
            self.wake()
            read += len(cancelled)
            if read >= _MOST_CONTROL:  # what is fewer expires by itself
                read = 0
                await self._pool.call("XTRIM", key, "MINID", self._control_seen, key=key)

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._beat_every)
            try:
                await self._beat()
            except Exception:  # whatever it fails of, leases are kept if they can be
                await self._renew()
                raise
            await self._renew()
            await self._reap()

    async def _beat(self) -> None:
        sent = monotonic()
        rate = self.core.rate(self._slots.count)
        beat = await self._scripts.heartbeat(self._worker, self.core.lease, rate)
        self.clock.observe(sent, beat.time, monotonic())
        if self._is_outage_logged:
            self._is_outage_logged = False
            log.warning("queue %s: Redis answers again", self.keys.queue)

    async def _renew(self) -> None:
        due = self.core.due_renewals(self.now())
        for first in range(0, len(due), _MOST_ENDINGS):
            part = due[first : first + _MOST_ENDINGS]
            ids = [task.id for task in part]
            kept = await self._scripts.renew(self._worker, self.core.lease, ids)
            lost = [task.id for task, is_ours in zip(part, kept, strict=True) if not is_ours]
            self.core.disown(lost)

    async def _reap(self) -> None:
        slots = self._slots
        room = self.core.reapable(self.now(), slots.free, slots.next_free_at())
        if not room:
            return
        claimed = await self._scripts.reap(self._worker, self.core.lease, room, self._beat_every)
        if claimed:
            log.info(
                "queue %s: took over %d requests that others had taken",
                *(self.keys.queue, len(claimed)),
            )
            self._add(claimed)
            self._on_tasks()

    def _add(self, claimed: Iterable[Claimed]) -> bool:
        """Give tasks to the core; whether some ended at once."""
        now = self.now()
        tasks = [Task(one.task, one.deliveries, self._decode(one.fields)) for one in claimed]
        begins_at = now if self._slots.free else (self._slots.next_free_at() or now)
        endings = self.core.add(now, tasks, begins_at)
        self.finish(endings)
        return bool(endings)

    def _flush(self) -> None:
        endings, self._outbox = self._outbox, []
        batch: list[tuple[Ending, Finishing]] = []
        size = 0
        for ending in endings:
            finishing, failure = self._encode(ending)
            if failure:
                self.handler_failed(1, failure)
                ending = ending._replace(status=FAILED)
            size += len(finishing.response)
            batch.append((ending, finishing))
            if size > _MOST_BYTES or len(batch) >= _MOST_ENDINGS:
                self._send(batch)
                batch, size = [], 0
        if batch:
            self._send(batch)

    def _send(self, batch: list[tuple[Ending, Finishing]]) -> None:
        begun = self._scripts.begin_finish([finishing for _, finishing in batch])
        if begun is None:
            self._send_again(batch)
        else:
            self._unconfirmed.add(begun.future)
            begun.future.add_done_callback(lambda _: self._sent(batch, begun))

    def _sent(self, batch: list[tuple[Ending, Finishing]], begun: Begun[list[int]]) -> None:
        self._unconfirmed.discard(begun.future)
        try:
            ended = begun.result()
        except SluicegateError:
            ended = None
        if ended is None:
            self._send_again(batch)
        else:
            self._confirm(batch, ended)

    def _confirm(self, batch: list[tuple[Ending, Finishing]], ended: list[int]) -> None:
        counts = self.core.stats.tasks
        for (ending, _), is_ours in zip(batch, ended, strict=True):
            if not is_ours:
                counts["disowned"] += 1
            elif ending.by_handler:
                counts["answered" if ending.status == OK else "failed"] += 1
        self.core.confirm(ending.task for ending, _ in batch)

    def _send_again(self, batch: list[tuple[Ending, Finishing]]) -> None:
        task = asyncio.create_task(self._send_until_confirmed(batch))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_until_confirmed(self, batch: list[tuple[Ending, Finishing]]) -> None:
        pause = _RETRY_AFTER
        while True:
            try:
                ended = await self._scripts.finish([finishing for _, finishing in batch])
                break
            except SluicegateError as error:
                if isinstance(error, ErrorReply) and error.code == "NOGROUP":
                    ended = [0] * len(batch)  # Redis has lost the queue, and these tasks
                    break
                self._log_outage(error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_RETRY)
        self._confirm(batch, ended)

    def _encode(self, ending: Ending) -> tuple[Finishing, str]:
        """As it is sent, and why its data could not be, if so."""
        task, status, data, reason, _ = ending
        request = task.request if isinstance(task.request, Request) else task.request.sender
        reply_to = b"" if request is None else request.reply_to.encode(errors="replace")
        if request is None or not reply_to.startswith(self.keys.replies_start):
            return Finishing(task.id, b"", b"", reason), ""
        correlation_id = request.correlation_id
        content_type = request.content_type
        try:
            response = encode_response(content_type, Response(correlation_id, status, data))
            if len(response) <= self._max_payload:
                return Finishing(task.id, reply_to, response, reason), ""
            error = f"the result has {len(response)} bytes, the limit is {self._max_payload}"
        except Exception as failure:  # noqa: BLE001  an object may fail to encode in its own way
            error = f"the result cannot be encoded: {describe(failure)}"
        failed = Response(correlation_id, FAILED, {"error": error})
        try:
            response = encode_response(content_type, failed)
            return Finishing(task.id, reply_to, response, reason), error
        except Exception as failure:  # noqa: BLE001  the request's own id cannot be encoded
            reason = reason or f"invalid request: correlation_id: {describe(failure)}"
            return Finishing(task.id, b"", b"", reason), reason

    def _decode(self, fields: Sequence[bytes]) -> Request | InvalidRequest:
        try:
            if len(fields) != 2 or fields[0] not in (b"request", TOO_LARGE):
                raise InvalidRequest("expected one field, request")
            if fields[0] == TOO_LARGE:
                size = fields[1].decode()
                raise InvalidRequest(f"it has {size} bytes, the limit is {LARGEST_REQUEST}")
            request = decode_request(fields[1])
            if not request.reply_to.startswith(self._replies_start):
                # Another key would be in another slot of a cluster, or overwritten.
                raise InvalidRequest(
                    f"reply_to must begin with {self._replies_start}, got {request.reply_to!r:.200}"
                )
            return request
        except InvalidRequest as error:
            return error


def _read_control(fields: Sequence[bytes]) -> list[TaskId]:
    """The tasks that an entry of the control stream cancels."""
    found: list[TaskId] = []
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        stream, _, id = value.partition(b" ")
        if name == b"cancel" and stream.isdigit():
            found.append((int(stream) - 1, id))
    return found
