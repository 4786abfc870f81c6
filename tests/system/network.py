"""`Network`: TCP proxies between the processes of a fleet, which a test can cut.

    url = network.connect("web-1", "a", "http://127.0.0.5:7411")    web-1 reaches a at this URL
    network.cut("a")                                                nobody reaches a, nor a others
    network.cut("a", "b", "c")                                      only b and c do not
    network.mend()

While two processes are cut off from each other nothing passes, and neither sees a close. What they
send meanwhile arrives when the cut is mended, as TCP sends it again after a partition: also what
was sent by one that has given up since. With `loses` it never arrives, and a connection that has
lost something is dead for good: a firewall has forgotten it. New connections are made when the cut
is mended.

All of it runs in one thread of this process, and is as late as that.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from sluicegate.demo.pauses import PauseLog, PauseMeter, Span
from tests.harness.waits import PATIENCE

__all__ = ["Network"]

_T = TypeVar("_T")


@dataclass(eq=False)
class _Cable:
    """The way between two processes, for connections that one of them opens."""

    ends: frozenset[str]
    host: str
    port: int
    flows: asyncio.Event = field(default_factory=asyncio.Event)
    loses: bool = False

    def is_between(self, one: str, others: tuple[str, ...]) -> bool:
        return any(self.ends == {one, other} for other in others) if others else one in self.ends


class _Connection:
    """One connection over a cable."""

    def __init__(self, cable: _Cable) -> None:
        self._cable = cable
        self._has_lost = False

    async def arrives(self) -> bool:
        """Whether what was sent now arrives; returns when it would."""
        if self._cable.loses and not self._cable.flows.is_set():
            self._has_lost = True
        if self._has_lost:
            return False
        await self._cable.flows.wait()
        return True

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the sender has closed it, and the receiver may know."""
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if await self.arrives():
                    writer.write(data)
                    await writer.drain()
        if not await self.arrives():
            await asyncio.get_running_loop().create_future()  # for ever


class Network:
    """Proxies, each from one process to another, by their names."""

    def __init__(self, pauses: Path) -> None:
        self._pauses = pauses
        self._meter = PauseMeter(pauses)
        self._meter.__enter__()
        self._cables: list[_Cable] = []
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def connect(self, source: str, target: str, url: str) -> str:
        """The URL at which `source` reaches `target`, which listens at `url`."""
        parts = urlsplit(url)
        assert parts.hostname is not None, url
        assert parts.port is not None, url
        cable = _Cable(frozenset((source, target)), parts.hostname, parts.port)
        return parts._replace(netloc=self._run(self._listen(cable))).geturl()

    def cut(self, one: str, *others: str, loses: bool = False) -> None:
        """Cut one process off from others, or from all."""
        self._run(self._cut(one, others, loses))

    def mend(self) -> None:
        """Connect all that was cut."""
        self._run(self._mend())

    def close(self) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
        self._meter.__exit__(None, None, None)

    def pauses(self) -> list[Span]:
        return PauseLog(self._pauses).read()

    def _run(self, done: Coroutine[None, None, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(done, self._loop).result(PATIENCE)

    async def _listen(self, cable: _Cable) -> str:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(_carry(cable, reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        cable.flows.set()
        self._cables.append(cable)
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        self._servers.append(server)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _cut(self, one: str, others: tuple[str, ...], loses: bool) -> None:
        cables = [cable for cable in self._cables if cable.is_between(one, others)]
        assert cables, f"nothing between {one} and {others}"
        for cable in cables:
            cable.loses = loses
            cable.flows.clear()

    async def _mend(self) -> None:
        for cable in self._cables:
            cable.flows.set()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)


async def _carry(cable: _Cable, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection, from its opening to its end."""
    with contextlib.closing(writer):
        await cable.flows.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection(cable.host, cable.port)
        except OSError:
            return
        with contextlib.closing(far_writer):
            connection = _Connection(cable)
            ways = [
                asyncio.create_task(connection.forward(reader, far_writer)),
                asyncio.create_task(connection.forward(far_reader, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
