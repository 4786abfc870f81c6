"""A node's quota in front of an ASGI application.

    app.add_middleware(QuotaASGIMiddleware, node=node, service="front", user="x-user")

- A request of http and the handshake of a websocket begin only if the node lets them; one that
  finds no credit waits for the leader's answer, while other requests go on. A refused one is
  answered as the limits' middleware does it: 429, or the websocket is not accepted.
- `scope["sluicegate.quota"]` is the request's `Meter`; `sluicegate.integrations.quota.add` finds
  it, too, in the task of the request and in threads and tasks it starts.
- Bytes are counted as they pass; nothing is held back. Of a file that the server sends by its
  path, they are the file's size.
- Booked when the application returns: also when it raises or is cancelled.
"""

import os
from typing import Unpack

from sluicegate.integrations.asgi import (
    App,
    Message,
    Receive,
    Scope,
    Send,
    reject_websocket,
    send_response,
)
from sluicegate.integrations.http.request import ScopeRequest
from sluicegate.integrations.quota.metering import (
    METER_KEY,
    Meter,
    QuotaGate,
    QuotaOptions,
    current_meter,
)
from sluicegate.quota import Node, Throttled

__all__ = ["QuotaASGIMiddleware"]


class QuotaASGIMiddleware:
    """Puts a node in front of an ASGI application; the options are `QuotaGate`'s arguments."""

    def __init__(self, app: App, node: Node, **options: Unpack[QuotaOptions]) -> None:
        self._app = app
        self._gate = QuotaGate(node, **options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind != "http" and kind != "websocket":
            await self._app(scope, receive, send)
            return
        request = ScopeRequest(scope)
        try:
            meter = await self._gate.begin_async(request)
        except Throttled as throttled:
            refusal = self._gate.refusal(throttled, request.method)
            if kind == "http":
                await send_response(refusal, send, "http.response")
            else:
                await reject_websocket(refusal, scope, receive, send)
            return
        scope[METER_KEY] = meter
        token = current_meter.set(meter)
        try:
            if self._gate.counts_traffic:
                count = _count_http if kind == "http" else _count_websocket
                receive, send = count(meter, receive, send)
            await self._app(scope, receive, send)
        finally:
            current_meter.reset(token)
            meter.finish()

    def __repr__(self) -> str:
        return f"QuotaASGIMiddleware({self._app!r})"


def _count_http(meter: Meter, receive: Receive, send: Send) -> tuple[Receive, Send]:
    async def counted_receive() -> Message:
        message = await receive()
        body = message.get("body")
        if body:
            meter.up += len(body)
        return message

    async def counted_send(message: Message) -> None:
        # Before it is sent: what is given to a client that has just gone was work, too.
        body = message.get("body")
        if body:
            meter.down += len(body)
        elif message["type"] == "http.response.pathsend":
            meter.down += os.stat(message["path"]).st_size
        await send(message)

    return counted_receive, counted_send


def _count_websocket(meter: Meter, receive: Receive, send: Send) -> tuple[Receive, Send]:
    async def counted_receive() -> Message:
        message = await receive()
        meter.up += _length(message)
        return message

    async def counted_send(message: Message) -> None:
        meter.down += _length(message)
        await send(message)

    return counted_receive, counted_send


def _length(message: Message) -> int:
    """Bytes of a websocket message."""
    data = message.get("bytes")
    if data:
        return len(data)
    text = message.get("text")
    if not text:
        return 0
    return len(text) if text.isascii() else len(text.encode())
