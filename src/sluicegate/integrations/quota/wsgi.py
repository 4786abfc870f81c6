"""A node's quota in front of a WSGI application.

    app.wsgi_app = QuotaWSGIMiddleware(app.wsgi_app, node, service="front", user="x-user")

- A request that finds no credit waits for the leader's answer, in its thread.
- `environ["sluicegate.quota"]` is the request's `Meter`; `sluicegate.integrations.quota.add` finds
  it, too, in the thread of the request, while the application runs and while its answer is made.
- Bytes are counted as they pass: read from `wsgi.input`, and of the pieces of the answer. So a
  server's `file_wrapper` is taken piece by piece, too.
- Booked when the answer is closed, as every server does whatever became of it, or when the
  application raises. An answer that is a plain list has ended when it is returned, and goes on
  untouched.
"""

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any, Unpack

from sluicegate.integrations.http.request import EnvironRequest
from sluicegate.integrations.quota.metering import (
    METER_KEY,
    Meter,
    QuotaGate,
    QuotaOptions,
    current_meter,
)
from sluicegate.integrations.wsgi import App, Environ, StartResponse, Write
from sluicegate.quota import Node, Throttled

__all__ = ["QuotaWSGIMiddleware"]


class QuotaWSGIMiddleware:
    """Puts a node in front of a WSGI application; the options are `QuotaGate`'s arguments."""

    def __init__(self, app: App, node: Node, **options: Unpack[QuotaOptions]) -> None:
        self._app = app
        self._gate = QuotaGate(node, **options)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        request = EnvironRequest(environ)
        try:
            meter = self._gate.begin(request)
        except Throttled as throttled:
            refusal = self._gate.refusal(throttled, request.method)
            status = HTTPStatus(refusal.status)
            start_response(f"{status.value} {status.phrase}", refusal.fields)
            return [refusal.body]
        environ[METER_KEY] = meter
        if self._gate.counts_traffic:
            if "wsgi.input" in environ:
                environ["wsgi.input"] = _CountedInput(environ["wsgi.input"], meter)
            start_response = _counting_write(start_response, meter)
        token = current_meter.set(meter)
        try:
            pieces = self._app(environ, start_response)
        except BaseException:
            meter.finish()
            raise
        finally:
            current_meter.reset(token)
        if type(pieces) is list:
            meter.down += sum(map(len, pieces))
            meter.finish()
            return pieces
        return _CountedPieces(pieces, meter)

    def __repr__(self) -> str:
        return f"QuotaWSGIMiddleware({self._app!r})"


def _counting_write(start_response: StartResponse, meter: Meter) -> StartResponse:
    def start(*arguments: Any) -> Write:
        write = start_response(*arguments)

        def counted_write(data: bytes) -> object:
            meter.down += len(data)
            return write(data)

        return counted_write

    return start


class _CountedInput:
    """The body of a request; all that PEP 3333 asks of it, and what else the server's own has."""

    __slots__ = ("_input", "_meter")

    def __init__(self, wsgi_input: Any, meter: Meter) -> None:
        self._input = wsgi_input
        self._meter = meter

    def read(self, *size: int) -> bytes:
        return self._counted(self._input.read(*size))

    def readline(self, *size: int) -> bytes:
        return self._counted(self._input.readline(*size))

    def readlines(self, *hint: int) -> list[bytes]:
        lines: list[bytes] = self._input.readlines(*hint)
        self._meter.up += sum(map(len, lines))
        return lines

    def readinto(self, buffer: Any) -> int:
        count: int = self._input.readinto(buffer)
        self._meter.up += count or 0
        return count

    def __iter__(self) -> Iterator[bytes]:
        for line in self._input:
            yield self._counted(line)

    def _counted(self, data: bytes) -> bytes:
        self._meter.up += len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._input, name)


class _CountedPieces:
    """The pieces of an answer. The application runs on while they are asked for."""

    __slots__ = ("_iterator", "_meter", "_pieces")

    def __init__(self, pieces: Iterable[bytes], meter: Meter) -> None:
        self._pieces = pieces
        self._iterator: Iterator[bytes] | None = None
        self._meter = meter

    def __iter__(self) -> "_CountedPieces":
        return self

    def __next__(self) -> bytes:
        token = current_meter.set(self._meter)
        try:
            if self._iterator is None:
                self._iterator = iter(self._pieces)
            piece = next(self._iterator)
        finally:
            current_meter.reset(token)
        self._meter.down += len(piece)
        return piece

    def close(self) -> None:
        token = current_meter.set(self._meter)
        try:
            close = getattr(self._pieces, "close", None)
            if close is not None:
                close()
        finally:
            current_meter.reset(token)
            self._meter.finish()

    def __del__(self) -> None:
        self._meter.finish()  # of a server that does not close what it has read
