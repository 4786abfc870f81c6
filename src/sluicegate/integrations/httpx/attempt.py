"""`Attempt`: one request to one server, counted from the pick until its response is closed.

What is a failure of the server:

- An error of the connection, also while the body is read: it cannot be made, it breaks off, it
  takes longer than a time-out. But a mistake of the caller, a connection pool that is full and a
  cancelled task say nothing of the server.
- The statuses 502, 503 and 504, with or without `Retry-After`. Not 429, which a server that is well
  says to a client that asks too much, and not 500, which a single bad request can cause.
"""

from collections.abc import AsyncIterator, Iterator

import httpx

from sluicegate.balance import Call, Server

__all__ = ["AsyncCountedStream", "Attempt", "CountedStream", "is_failure"]

_FAILED_STATUSES = frozenset({502, 503, 504})
_NOT_OF_THE_SERVER = (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.PoolTimeout)


def is_failure(error: BaseException) -> bool:
    """Whether an error is a failure of the server; all others say nothing of it."""
    return isinstance(error, httpx.TransportError) and not isinstance(error, _NOT_OF_THE_SERVER)


class Attempt:
    """`end` is called once or more often; the first time counts."""

    __slots__ = ("_began", "_call", "_has_failed", "_latency")

    def __init__(self, call: Call, now: float) -> None:
        self._call = call
        self._began = now
        self._latency: float | None = None
        self._has_failed = False

    @property
    def server(self) -> Server:
        return self._call.server

    def answered(self, status: int, now: float) -> None:
        """The head of the response is there. Its body is not part of the latency."""
        self._latency = max(now - self._began, 0.0)
        self._has_failed = status in _FAILED_STATUSES
        if not self._has_failed:
            self._call.answered()

    def report(self, load: float) -> None:
        """The load of the server, by the head of its response."""
        self._call.report(load)

    def end(self) -> None:
        """The response is closed."""
        self._call.end(failed=self._has_failed, latency=self._latency)

    def end_by(self, error: BaseException) -> None:
        """It has ended by an error, before its head or in its body."""
        self._call.end(failed=True if is_failure(error) else None, latency=self._latency)


class CountedStream(httpx.SyncByteStream):
    """The body of a response, whose attempt ends when it is closed, or cannot be read."""

    def __init__(self, stream: httpx.SyncByteStream, attempt: Attempt) -> None:
        self._stream = stream
        self._attempt = attempt

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._stream
        except GeneratorExit:  # the caller does not want the rest
            raise
        except BaseException as error:
            self._attempt.end_by(error)
            raise

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            self._attempt.end()


class AsyncCountedStream(httpx.AsyncByteStream):
    """`CountedStream` for `AsyncBalancedTransport`."""

    def __init__(self, stream: httpx.AsyncByteStream, attempt: Attempt) -> None:
        self._stream = stream
        self._attempt = attempt

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._stream:
                yield chunk
        except GeneratorExit:  # the caller does not want the rest
            raise
        except BaseException as error:
            self._attempt.end_by(error)
            raise

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            self._attempt.end()
