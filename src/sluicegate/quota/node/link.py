"""`Link`: the connection from a node to one central, made again whenever it ends.

    send(message)   from the same event loop; never waits
    run()           connects, sends, receives, backs off, for ever

What is sent waits in an outbox of one report and a few asks. A report stands for all before it,
so of several that wait only the newest is sent, and one that never goes out is lost without
loss; an ask that is older than a slot was made again since. So a central that is away, or does
not read, costs no memory and holds up nobody.

A cut cable is noticed by pings that are not answered. What the central says at the end decides
how soon to try again: a refusal that no try will change (denied, replaced by another process of
the same name, a frame it cannot read) waits the longest, at once; "overloaded" and all else
doubles. So does whatever fails in here, or in `receive`: a link goes on until it is cancelled.
Each kind of failure is logged once, until a connection holds. The end of one that was logged is
a warning too: who sees the one must not wait for the other in vain.
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
from sluicegate.quota.messages import Ack, Ask, Quota, Report
from sluicegate.quota.node.backoff import HEALTHY, Backoff
from sluicegate.quota.node.status import CentralStanding
from sluicegate.quota.wire import SUBPROTOCOL, Bounds, NodeWire

__all__ = ["Link", "LinkOptions"]

OPEN_TIMEOUT = 5.0
PING_INTERVAL = 2.0
PING_TIMEOUT = 4.0
CLOSE_TIMEOUT = 1.0
MOST_ASKS = 64

DENIED, BAD_FRAME, TOO_BIG, REPLACED = 1008, 1007, 1009, 4001
FAILED = 1011
FOR_GOOD = (DENIED, BAD_FRAME, TOO_BIG, REPLACED)

_BOUNDS = Bounds()

log = logging.getLogger("sluicegate.quota.node")


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """What all links of a node have in common."""

    token: str | None
    slot_seconds: float
    tls: ssl.SSLContext | None
    bounds: Bounds = _BOUNDS


class _Refused(Exception):
    """The central will not have us, and asking again soon would not help."""


class _Connect(connect):
    """Follows no redirect: the token is for the central that was named, and nobody else."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


class Link:
    """One central. `receive(central, message)` is told what it says; `now` is the node's clock."""

    def __init__(
        self,
        central: str,
        options: LinkOptions,
        *,
        now: Callable[[], float],
        receive: Callable[[str, Ack | Quota], None],
        backoff: Backoff | None = None,
    ) -> None:
        self.central = central
        self.standing = CentralStanding(central)
        self._options = options
        self._now = now
        self._receive = receive
        self._backoff = backoff or Backoff()
        self._report: Report | None = None
        self._asks: deque[Ask] = deque(maxlen=MOST_ASKS)
        self._has_mail = asyncio.Event()
        self._told: str | None = None  # the failure that was logged last
        self._is_end_due = False  # and its end was not

    def send(self, message: Report | Ask) -> None:
        """Put a message into the outbox."""
        if isinstance(message, Ask):
            self._asks.append(message)
        else:
            self._report = message
        self._has_mail.set()

    async def run(self) -> None:
        """Stay connected, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            is_refused = False
            fault: Exception | None = None
            self.standing.connected_at = None
            try:
                await self._connection()
                problem = "the connection ended"
            except _Refused as refused:
                problem, is_refused = str(refused), True
            except (OSError, WebSocketException, ProtocolError) as error:
                problem = f"{type(error).__name__}: {error}"
            except Exception as error:  # noqa: BLE001 (a fault of ours: told below, with its trace)
                # Without its link the node would never report again.
                problem, fault = f"{type(error).__name__}: {error}", error
            was_connected = self.standing.connected_at is not None
            lasted = loop.time() - began if was_connected else 0.0
            self.standing.failed(problem)
            if lasted >= HEALTHY:
                self._told = None
            if problem != self._told:
                self._told = problem
                self._is_end_due = True
                level = logging.ERROR if is_refused or fault else logging.WARNING
                log.log(level, "central %s: %s", self.central, problem, exc_info=fault)
            await asyncio.sleep(self._backoff.failed(lasted=lasted, is_refused=is_refused))

    async def _connection(self) -> None:
        options = self._options
        headers = {"Sluicegate-Slot-Seconds": repr(float(options.slot_seconds))}
        if options.token is not None:
            headers["Authorization"] = f"Bearer {options.token}"
        opening = _Connect(
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
                await self._talk(connection)
        except InvalidStatus as error:
            if error.response.status_code in (401, 403):
                raise _Refused(f"denied: HTTP status {error.response.status_code}") from None
            raise

    async def _talk(self, connection: ClientConnection) -> None:
        if connection.subprotocol != SUBPROTOCOL:
            raise _Refused(f"it does not speak {SUBPROTOCOL}: is it a central?")
        wire = NodeWire(bounds=self._options.bounds)
        self.standing.connected(self._now())
        is_answered = False
        sending = asyncio.create_task(self._send_mail(connection, wire))
        try:
            while True:
                frame = await connection.recv()
                self.standing.frames_received += 1
                self.standing.bytes_received += len(frame)
                message = wire.read(frame)
                if isinstance(message, Ack):
                    self.standing.acknowledged = message.sequence
                self._receive(self.central, message)
                if not is_answered:  # one that denies us ends the connection without an answer
                    is_answered = True
                    self._tell_connected()
        except ProtocolError as error:
            await connection.close(BAD_FRAME, _cut(f"bad frame: {error}"))
            raise
        except ConnectionClosed as closed:
            said = closed.rcvd
            if said is not None:
                problem = said.reason or "no reason given"
                if said.code in FOR_GOOD:
                    raise _Refused(f"{problem} (code {said.code})") from None
                raise ConnectionError(f"{problem} (code {said.code})") from None
            raise
        except Exception:
            await connection.close(FAILED, "the node cannot make use of it")
            raise
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def _tell_connected(self) -> None:
        level = logging.WARNING if self._is_end_due else logging.INFO
        self._is_end_due = False
        log.log(level, "central %s: connected", self.central)

    async def _send_mail(self, connection: ClientConnection, wire: NodeWire) -> None:
        if self._report is not None:
            self._has_mail.set()
        try:
            while True:
                await self._has_mail.wait()
                self._has_mail.clear()
                report, self._report = self._report, None
                if report is not None:
                    # It may have waited for the connection: the clock is set by when it went out.
                    await self._write(connection, wire, report._replace(sent=self._now()))
                while self._asks:
                    ask = self._asks.popleft()
                    now = self._now()
                    if now - ask.sent <= self._options.slot_seconds:
                        await self._write(connection, wire, ask._replace(sent=now))
        except ConnectionClosed:
            pass  # who receives is told why
        except Exception:
            log.exception("central %s: a message cannot be sent", self.central)
            await connection.close(FAILED, "a message cannot be sent")

    async def _write(
        self, connection: ClientConnection, wire: NodeWire, message: Report | Ask
    ) -> None:
        frame = wire.write(message)
        await connection.send(frame)
        self.standing.frames_sent += 1
        self.standing.bytes_sent += len(frame)

    def __repr__(self) -> str:
        return f"Link({self.standing!r})"


def _cut(text: str) -> str:
    """A close reason: at most 120 bytes."""
    return text.encode()[:120].decode(errors="ignore")
