"""A central to talk to: the real state machine behind a small websocket server, in a thread."""

import asyncio
import threading
import time

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from sluicegate.quota import CentralState, Entry, Ledger
from sluicegate.quota.messages import Ack, Quota, Report
from sluicegate.quota.wire import SUBPROTOCOL, CentralWire
from tests.harness.servers import reserve_port
from tests.harness.waits import PATIENCE

__all__ = ["SmallCentral"]


class SmallCentral:
    """One central that leads; it can be gone at once, and come back having forgotten all."""

    def __init__(self, entries: list[Entry]) -> None:
        self.reports: list[Report] = []
        self._reserved = reserve_port()
        self.port: int = self._reserved.getsockname()[1]
        self.state: CentralState | None = None
        self._entries = entries
        self._thread: threading.Thread | None = None
        self._epoch = 0
        self._wires: dict[ServerConnection, CentralWire] = {}
        self._nodes: dict[str, ServerConnection] = {}

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        return len(self._wires)

    def consumed(self, service: str, user: str, resource: str) -> float:
        """What the newest reports have told, in all."""
        newest = {}
        for report in list(self.reports):
            line = report.lines.get(service, {}).get(user, {}).get(resource)
            if line is not None:
                newest[report.node, report.boot] = line.consumed
        return sum(newest.values())

    @property
    def is_up(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Listen; with an empty ledger, in a new epoch, on the port of before."""
        ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(ready,))
        self._thread.start()
        assert ready.wait(PATIENCE), f"it does not listen on port {self.port}"

    def pause(self, seconds: float) -> None:
        """Take connections and bytes, as the kernel does, but read none of them for a while."""
        self._loop.call_soon_threadsafe(time.sleep, seconds)

    def stop(self) -> None:
        """Be gone, as if killed: connections are cut without a word."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(PATIENCE)
        assert not self.is_up, "its thread does not end"
        self._loop.close()

    def close(self) -> None:
        """Stop for good, and give its port away."""
        if self.is_up:
            self.stop()
        self._reserved.close()

    def _run(self, ready: threading.Event) -> None:
        self._loop.run_until_complete(self._serve(ready))

    async def _serve(self, ready: threading.Event) -> None:
        self._stopped = asyncio.Event()
        now = time.monotonic()
        ledger = Ledger(self._entries)
        self.state = CentralState("small", ledger, now=now, wall=time.time())
        self._epoch += 1
        self.state.lead(now, self._epoch)
        async with serve(
            self._talk,
            "127.0.0.1",
            self.port,
            subprotocols=[SUBPROTOCOL],
            compression=None,
            close_timeout=0.1,
        ) as server:
            ticking = asyncio.create_task(self._tick())
            ready.set()
            await self._stopped.wait()
            ticking.cancel()
            for connection in list(self._wires):
                connection.transport.abort()
            server.close(close_connections=False)

    async def _tick(self) -> None:
        while True:
            now = time.monotonic()
            for node, quota in self.state.tick(now):
                await self._send(node, quota)
            await asyncio.sleep(0.01)

    async def _send(self, node: str, message: Ack | Quota) -> None:
        connection = self._nodes.get(node)
        if connection is not None:
            try:
                await connection.send(self._wires[connection].write(message))
            except (ConnectionClosed, KeyError):
                self._nodes.pop(node, None)

    async def _talk(self, connection: ServerConnection) -> None:
        wire = self._wires[connection] = CentralWire()
        try:
            async for frame in connection:
                message = wire.read(frame)
                self._nodes[message.node] = connection
                if isinstance(message, Report):
                    self.reports.append(message)
                for node, answer in self.state.receive(time.monotonic(), message):
                    await self._send(node, answer)
        except ConnectionClosed:
            pass
        finally:
            del self._wires[connection]
