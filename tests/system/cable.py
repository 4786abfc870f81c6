"""`Cable`: a TCP proxy before a central, which a test can cut."""

import asyncio
import contextlib
import threading
from pathlib import Path

from sluicegate.demo.pauses import PauseLog, PauseMeter, Span
from tests.harness.waits import PATIENCE

__all__ = ["Cable"]


class Cable:
    """A TCP proxy. While it is cut, it forwards nothing and closes nothing.

    It runs in this process, in a thread, and is as late as that.
    """

    def __init__(self, central: str, pauses: Path) -> None:
        self._pauses = pauses
        self._meter = PauseMeter(pauses)
        self._meter.__enter__()
        self._host, _, self._port = central.removeprefix("http://").partition(":")
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._flows.set()
        self._stopped = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.clear)

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.set)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(PATIENCE)
        self._loop.close()
        self._meter.__exit__(None, None, None)

    def pauses(self) -> list[Span]:
        return PauseLog(self._pauses).read()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as connections:

            async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                connections.create_task(self._connection(reader, writer))

            server = await asyncio.start_server(connected, "127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self._ready.set()
            await self._stopped.wait()
            server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            try:
                await self._flows.wait()
                far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
            except OSError:
                return
            with contextlib.closing(far_writer):
                ways = [
                    asyncio.create_task(self._forward(reader, far_writer)),
                    asyncio.create_task(self._forward(far_reader, writer)),
                    asyncio.create_task(self._stopped.wait()),
                ]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
