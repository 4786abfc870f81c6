"""The ASGI middleware: Starlette, FastAPI, Litestar, Quart, and every other ASGI application.

    app.add_middleware(RateLimitMiddleware, rules=[Rule("100/minute")])     Starlette, FastAPI
    app = RateLimitMiddleware(app, rules=[Rule("100/minute")])              anywhere

- A request that passes is handed on with the server's own `receive` and `send`; only if
  answers that pass carry fields is `send` wrapped, and then it touches the start of the
  answer and nothing else. Streams stay streams.
- A websocket is refused before it is accepted: with a whole 429 where the server has the
  extension for it, and else by closing it, which servers answer with 403.
- Lifespan, and whatever else comes, passes untouched.
- A limiter that blocks its thread is refused when the middleware is made.
"""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from sluicegate.integrations.http.gate import Gate, OnRefusal, Verdict
from sluicegate.integrations.http.request import ScopeRequest
from sluicegate.integrations.http.responses import (
    TRY_AGAIN_LATER,
    Body,
    Field,
    RefusalResponse,
    ResponseBuilder,
    fields_to_add,
    problem,
)
from sluicegate.integrations.http.rules import Rule

__all__ = [
    "App",
    "Message",
    "RateLimitMiddleware",
    "Receive",
    "Scope",
    "Send",
    "reject_websocket",
    "send_response",
]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class RateLimitMiddleware:
    """Puts rules in front of an ASGI application.

    `headers`: answers that pass carry `RateLimit-Policy` and `RateLimit`, too. `x_headers`,
    `shadow_header`: see `responses.py`. `body(outcome)` makes the content type and the body
    of a refusal; `on_refusal(request, outcome)` is called for each, also for those in shadow.
    """

    def __init__(
        self,
        app: App,
        rules: Iterable[Rule],
        *,
        headers: bool = False,
        x_headers: bool = False,
        shadow_header: bool = False,
        body: Body = problem,
        on_refusal: OnRefusal | None = None,
    ) -> None:
        self._app = app
        self._gate = Gate(rules, in_event_loop=True, on_refusal=on_refusal)
        self._must_await = self._gate.must_await
        self._responses = ResponseBuilder(
            headers=headers, x_headers=x_headers, shadow_header=shadow_header, body=body
        )
        self._adds_headers = self._responses.adds_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind != "http" and kind != "websocket":
            await self._app(scope, receive, send)
            return
        request = ScopeRequest(scope)
        gate = self._gate
        verdict = await gate.decide_async(request) if self._must_await else gate.decide(request)
        if verdict.refused is not None:
            refusal = self._responses.refusal(verdict, request.method)
            if kind == "http":
                await send_response(refusal, send, "http.response")
            else:
                await reject_websocket(refusal, scope, receive, send)
            return
        if self._adds_headers:
            send = _with_fields(self._responses, verdict, send)
        await self._app(scope, receive, send)

    def __repr__(self) -> str:
        return f"RateLimitMiddleware({self._app!r}, rules={list(self._gate.rules)})"


def _with_fields(responses: ResponseBuilder, verdict: Verdict, send: Send) -> Send:
    async def send_with_fields(message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start" or kind == "websocket.accept":
            # Now, and not before: a limit further in may have refused, and all is given back.
            fields = responses.fields(verdict)
            there = list(message.get("headers") or ())
            message = {**message, "headers": there + _raw(_added(fields, there))}
        await send(message)

    return send_with_fields


def _added(fields: list[Field], there: list[tuple[bytes, bytes]]) -> list[Field]:
    """The fields that go beside what the application has set."""
    for name, _ in there:
        if b"ratelimit" in name.lower():
            break
    else:
        return fields

    def present(wanted: str) -> str | None:
        lines = [value for name, value in there if name.lower() == wanted.encode()]
        return b", ".join(lines).decode("latin-1") if lines else None

    return fields_to_add(fields, present)


async def send_response(refusal: RefusalResponse, send: Send, kind: str) -> None:
    """Send a whole response; `kind` is what its messages are called."""
    headers = _raw(refusal.fields)
    await send({"type": f"{kind}.start", "status": refusal.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": refusal.body})


async def reject_websocket(
    refusal: RefusalResponse, scope: Scope, receive: Receive, send: Send
) -> None:
    """Refuse a websocket before it is accepted."""
    await receive()  # websocket.connect, which the protocol wants answered
    if "websocket.http.response" in (scope.get("extensions") or {}):
        await send_response(refusal, send, "websocket.http.response")
    else:
        await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": "rate limited"})


def _raw(fields: Iterable[Field]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in fields]
