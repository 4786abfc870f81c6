"""`NginxClient`: asks the nginx of the demo whether a request is admitted, over HTTP.

Its connections are kept open, and one more is made while all others wait for an answer. A request
that finds no credit waits for 0.07 s, and for 0.3 s at most: of 450 requests a second up to 50 wait
at once, or 135. With only 32 connections requests waited 0.6 s for one. A request that is not
answered within TIMEOUT seconds is given up.
"""

import asyncio
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Self

__all__ = ["MAX_CONNECTIONS", "TIMEOUT", "NginxClient"]

MAX_CONNECTIONS = 200
TIMEOUT = 2.0  # seconds
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)

_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class NginxClient:
    """A client of the nginx at an address (HOST:PORT), from `with` to its end."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._idle: list[_Connection] = []
        self._free = asyncio.Semaphore(MAX_CONNECTIONS)

    async def ask(self, user: str, costs: Mapping[str, float]) -> bool | None:
        """Whether a request is admitted. False also if its connection is lost, or it has no answer.

        None: nothing listens at the address, so nobody was asked.
        """
        words = " ".join(f"{resource}={cost:g}" for resource, cost in costs.items())
        request = f"GET / HTTP/1.1\r\nHost: demo\r\nX-User: {user}\r\nX-Costs: {words}\r\n\r\n"
        try:
            async with asyncio.timeout(TIMEOUT), self._free:
                connection = await self._connect()
                try:
                    status = await _get(connection, request.encode())
                except BaseException:
                    connection[1].close()
                    raise
                self._idle.append(connection)
        except ConnectionRefusedError:
            return None
        except (OSError, EOFError, ValueError):  # a TimeoutError is an OSError
            return False
        return 200 <= status < 300

    async def _connect(self) -> _Connection:
        """The connection that was used last and is open still; a new one if there is none."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self._host, self._port)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for _, writer in self._idle:
            writer.close()


async def _get(connection: _Connection, request: bytes) -> int:
    """Send a request, and return the status of its answer."""
    reader, writer = connection
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    if length is not None:
        await reader.readexactly(int(length[1]))
    return int(head.split(maxsplit=2)[1])
