"""`Link`: the connection from a node to one central, made again whenever it ends.

    send(message)   from the same event loop; never waits
    run()           connects, sends, receives, backs off, for ever

Messages wait in a send queue of one report and a few asks. A report stands for all before it, so
of several that wait only the newest is sent, and one that is never sent loses nothing. An ask does
not: each has other users, so all are sent, in their order. They keep the time at which they were
made: their totals are of then, and the report before them may have newer ones. One that is older
than a slot is dropped; its users have asked again since, and the totals in it are in the report. So
a central that is disconnected, or does not read, costs no memory and delays nothing else.

A connection that ends is told at once (`disconnected`): the node need not wait for the central's
silence. A cut cable is noticed by pings that are not answered. The central's close code decides how
soon to connect again: a permanent failure (denied, replaced by another process of the same name, a
frame it cannot read) has the longest delay, at once; "overloaded" and all else doubles it. So does
any failure in here, or in `receive`: a link goes on until it is cancelled. Each kind of failure is
logged once, until a connection holds. If a failure was logged, its recovery is logged at WARNING
as well, so that both are visible at the same level.
"""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

try:
    from websockets.asyncio.client import ClientConnection, connect
    from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
    from websockets.typing import Subprotocol
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        "a node needs websockets to talk to centrals: pip install 'sluicegate[node]'",
        name=_missing.name,
    ) from _missing

from sluicegate.errors import ProtocolError
from sluicegate.quota.backoff import HEALTHY, Backoff
from sluicegate.quota.messages import Ack, Ask, Quota, Report
from sluicegate.quota.node.status import ConnectionStatus
from sluicegate.quota.wire import SUBPROTOCOL, Bounds, NodeWire

__all__ = ["Link", "LinkOptions"]

OPEN_TIMEOUT = 5.0
PING_INTERVAL = 2.0
PING_TIMEOUT = 4.0
CLOSE_TIMEOUT = 1.0
MAX_QUEUED_ASKS = 64

DENIED, BAD_FRAME, TOO_BIG, REPLACED = 1008, 1007, 1009, 4001
FAILED = 1011
PERMANENT_CODES = (DENIED, BAD_FRAME, TOO_BIG, REPLACED)

_BOUNDS = Bounds()

log = logging.getLogger("sluicegate.quota.node")


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """What all links of a node have in common."""

    token: str | None
    slot_seconds: float
    tls: ssl.SSLContext | None
    bounds: Bounds = _BOUNDS


class _PermanentFailure(Exception):
    """The central rejects this node, and connecting again soon would not help."""


class _ConnectWithoutRedirects(connect):
    """Follows no redirect: the token is for the configured central only."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


class Link:
    """One central. `receive(central, message)` gets its messages; `now` is the node's clock.

    `disconnected(central)` is called whenever a connection has ended.
    """

    def __init__(
        self,
        central: str,
        options: LinkOptions,
        *,
        now: Callable[[], float],
        receive: Callable[[str, Ack | Quota], None],
        disconnected: Callable[[str], None] = lambda _: None,
        backoff: Backoff | None = None,
    ) -> None:
        self.central = central
        self.status = ConnectionStatus(central)
        self._options = options
        self._now = now
        self._receive = receive
        self._disconnected = disconnected
        self._backoff = backoff or Backoff()
        self._queued_report: Report | None = None
        self._queued_asks: deque[Ask] = deque(maxlen=MAX_QUEUED_ASKS)
        self._has_queued = asyncio.Event()
        self._logged_problem: str | None = None  # the failure that was logged last
        self._is_recovery_unlogged = False  # the end of that failure was not logged yet

    def send(self, message: Report | Ask) -> None:
        """Put a message into the send queue."""
        if isinstance(message, Ask):
            self._queued_asks.append(message)
        else:
            self._queued_report = message
        self._has_queued.set()

    async def run(self) -> None:
        """Stay connected, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            is_permanent = False
            fault: Exception | None = None
            self.status.connected_at = None
            try:
                await self._connect_once()
                problem = "connection closed"
            except _PermanentFailure as failure:
                problem, is_permanent = str(failure), True
            except (OSError, WebSocketException, ProtocolError) as error:
                problem = f"{type(error).__name__}: {error}"
            except Exception as error:  # noqa: BLE001 (a bug: logged below, with its traceback)
                # Without its link the node would never report again.
                problem, fault = f"{type(error).__name__}: {error}", error
            was_connected = self.status.connected_at is not None
            lasted = loop.time() - began if was_connected else 0.0
            self.status.mark_failed(problem)
            if lasted >= HEALTHY:
                self._logged_problem = None
            if problem != self._logged_problem:
                self._logged_problem = problem
                self._is_recovery_unlogged = True
                level = logging.ERROR if is_permanent or fault else logging.WARNING
                log.log(
                    level,
                    "connection to central %s failed: %s",
                    self.central,
                    problem,
                    exc_info=fault,
                )
            await asyncio.sleep(self._backoff.next_delay(lasted=lasted, is_permanent=is_permanent))

    async def _connect_once(self) -> None:
        options = self._options
        headers = {"Sluicegate-Slot-Seconds": repr(float(options.slot_seconds))}
        if options.token is not None:
            headers["Authorization"] = f"Bearer {options.token}"
        opening = _ConnectWithoutRedirects(
            self.central,
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None,
            additional_headers=headers,
            proxy=None,
            open_timeout=OPEN_TIMEOUT,
            ping_interval=PING_INTERVAL,
            ping_timeout=PING_TIMEOUT,
            close_timeout=CLOSE_TIMEOUT,
            max_size=options.bounds.frame_bytes,
            ssl=options.tls if self.central.startswith("wss:") else None,
        )
        try:
            async with opening as connection:
                await self._exchange(connection)
        except InvalidStatus as error:
            if error.response.status_code in (401, 403):
                raise _PermanentFailure(
                    f"denied: HTTP status {error.response.status_code}"
                ) from None
            raise

    async def _exchange(self, connection: ClientConnection) -> None:
        if connection.subprotocol != SUBPROTOCOL:
            raise _PermanentFailure(
                f"server does not support the subprotocol {SUBPROTOCOL}: is it a central?"
            )
        wire = NodeWire(bounds=self._options.bounds)
        self.status.mark_connected(self._now())
        is_answered = False
        sending = asyncio.create_task(self._send_queued(connection, wire))
        try:
            while True:
                frame = await connection.recv()
                self.status.frames_received += 1
                self.status.bytes_received += len(frame)
                message = wire.read(frame)
                if isinstance(message, Ack):
                    self.status.acknowledged = message.sequence
                self._receive(self.central, message)
                if not is_answered:  # a central that denies the node closes without an answer
                    is_answered = True
                    self._log_connected()
        except ProtocolError as error:
            await connection.close(BAD_FRAME, _truncate(f"bad frame: {error}"))
            raise
        except ConnectionClosed as closed:
            said = closed.rcvd
            if said is not None:
                problem = said.reason or "no reason given"
                if said.code in PERMANENT_CODES:
                    raise _PermanentFailure(f"{problem} (code {said.code})") from None
                raise ConnectionError(f"{problem} (code {said.code})") from None
            raise
        except Exception:
            await connection.close(FAILED, "node failed to process a message")
            raise
        finally:
            self._disconnected(self.central)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def _log_connected(self) -> None:
        level = logging.WARNING if self._is_recovery_unlogged else logging.INFO
        self._is_recovery_unlogged = False
        log.log(level, "central connected: %s", self.central)

    async def _send_queued(self, connection: ClientConnection, wire: NodeWire) -> None:
        if self._queued_report is not None:
            self._has_queued.set()
        try:
            while True:
                await self._has_queued.wait()
                self._has_queued.clear()
                report, self._queued_report = self._queued_report, None
                if report is not None:
                    # It may have waited for the connection: `sent` must be the time it is sent.
                    await self._write(connection, wire, report._replace(sent=self._now()))
                while self._queued_asks:
                    ask = self._queued_asks.popleft()
                    if self._now() - ask.sent <= self._options.slot_seconds:
                        await self._write(connection, wire, ask)
        except ConnectionClosed:
            pass  # `_exchange` handles it
        except Exception:
            log.exception("sending to central %s failed", self.central)
            await connection.close(FAILED, "node failed to send a message")

    async def _write(
        self, connection: ClientConnection, wire: NodeWire, message: Report | Ask
    ) -> None:
        frame = wire.write(message)
        await connection.send(frame)
        self.status.frames_sent += 1
        self.status.bytes_sent += len(frame)

    def __repr__(self) -> str:
        return f"Link({self.status!r})"


def _truncate(text: str) -> str:
    """A close reason: at most 120 bytes."""
    return text.encode()[:120].decode(errors="ignore")
