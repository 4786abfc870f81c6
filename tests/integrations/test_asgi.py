"""The ASGI middleware, in front of bare applications and of the frameworks themselves."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from litestar import Litestar, get
from litestar.middleware import DefineMiddleware
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from sluicegate import Keyed, ManualClock
from sluicegate.integrations import Rule, by_address
from sluicegate.integrations.asgi import RateLimitMiddleware

MakeScope = Callable[..., dict[str, Any]]


def call(app: Any, scope: dict[str, Any], *received: dict[str, Any]) -> list[dict[str, Any]]:
    """Run an application for one scope; what it sent."""
    sent: list[dict[str, Any]] = []
    messages = iter(received)

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent


async def hello(request: StarletteRequest) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text("hello")
    await websocket.close()


def starlette_app(**options: Any) -> Starlette:
    async def numbers(request: StarletteRequest) -> StreamingResponse:
        async def lines() -> AsyncIterator[str]:
            for number in range(3):
                yield f"{number}\n"

        return StreamingResponse(lines())

    app = Starlette(
        routes=[
            Route("/", hello, methods=["GET", "POST"]),
            Route("/numbers", numbers),
            WebSocketRoute("/socket", socket),
        ]
    )
    app.add_middleware(RateLimitMiddleware, **options)
    return app


def test_a_refused_request_gets_429_and_is_told_why_and_until_when(clock: ManualClock) -> None:
    keyed = Keyed("2/minute", clock=clock)
    with TestClient(starlette_app(rules=[Rule(keyed, name="api")])) as client:
        assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
        refused = client.get("/")
        assert refused.headers["retry-after"] == "30"
        assert refused.headers["ratelimit-policy"] == '"api";q=2;w=60'
        assert refused.headers["ratelimit"] == '"api";r=0;t=30'
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["violated-policies"] == ["api"]
        assert client.head("/").content == b""
        clock.advance(30)
        passed = client.get("/")
        assert passed.text == "hello"
        assert "ratelimit" not in passed.headers


def test_answers_that_pass_carry_the_fields_when_asked(clock: ManualClock) -> None:
    rules = [Rule(Keyed("2/minute", clock=clock), name="api")]
    with TestClient(starlette_app(rules=rules, headers=True, x_headers=True)) as client:
        answer = client.get("/numbers")
        assert answer.text == "0\n1\n2\n"
        assert answer.headers["ratelimit-policy"] == '"api";q=2;w=60'
        assert answer.headers["ratelimit"] == '"api";r=1;t=30'
        assert answer.headers["x-ratelimit-remaining"] == "1"


def test_fields_of_the_application_are_not_doubled(clock: ManualClock) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"RateLimit", b'"inner";r=1'), (b"x-ratelimit-limit", b"7")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    wrapped = RateLimitMiddleware(
        app, [Rule(Keyed("2/minute", clock=clock), name="outer")], headers=True, x_headers=True
    )
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("1.1.1.1", 1)}
    sent = call(wrapped, scope)
    fields = [(name.lower(), value) for name, value in sent[0]["headers"]]
    assert [value for name, value in fields if name == b"ratelimit"] == [
        b'"inner";r=1',
        b'"outer";r=1;t=30',
    ]
    assert [value for name, value in fields if name == b"x-ratelimit-limit"] == [b"7"]


def test_without_fields_the_servers_own_send_is_handed_on(make_scope: MakeScope) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend([scope, receive, send])

    async def receive() -> Any: ...
    async def send(message: Any) -> None: ...

    scope = make_scope()
    asyncio.run(RateLimitMiddleware(app, [Rule("1/s")])(scope, receive, send))
    assert seen[0] is scope
    assert seen[1] is receive
    assert seen[2] is send


def test_lifespan_and_the_unknown_pass_untouched() -> None:
    kinds: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        kinds.append(scope["type"])

    wrapped = RateLimitMiddleware(app, [Rule("1/minute")], headers=True)
    for kind in ("lifespan", "lifespan", "next-thing"):
        call(wrapped, {"type": kind})
    assert kinds == ["lifespan", "lifespan", "next-thing"]


def test_a_websocket_is_refused_before_it_is_accepted(
    clock: ManualClock, make_scope: MakeScope
) -> None:
    app = starlette_app(rules=[Rule(Keyed("1/minute", clock=clock), path="/socket")])
    with TestClient(app) as client:
        with client.websocket_connect("/socket") as session:
            assert session.receive_text() == "hello"
        with pytest.raises(Exception) as refused, client.websocket_connect("/socket"):
            pass
        # The test client offers the extension, and turns the 429 into an exception.
        assert refused.value.status_code == 429  # type: ignore[attr-defined]
    scope = make_scope("/socket", client="testclient") | {"type": "websocket", "scheme": "ws"}
    del scope["method"]
    sent = call(app, scope, {"type": "websocket.connect"})
    assert sent == [{"type": "websocket.close", "code": 1013, "reason": "rate limited"}]
    sent = call(
        app, scope | {"extensions": {"websocket.http.response": {}}}, {"type": "websocket.connect"}
    )
    assert [message["type"] for message in sent] == [
        "websocket.http.response.start",
        "websocket.http.response.body",
    ]
    assert sent[0]["status"] == 429
    assert json.loads(sent[1]["body"])["status"] == 429


def test_an_accepted_websocket_carries_the_fields_too(clock: ManualClock) -> None:
    rules = [Rule(Keyed("5/minute", clock=clock), name="ws")]
    with (
        TestClient(starlette_app(rules=rules, headers=True)) as client,
        client.websocket_connect("/socket") as session,
    ):
        assert (b"ratelimit", b'"ws";r=4;t=12') in (session.extra_headers or [])


def test_limiters_of_coroutines_are_awaited(
    clock: ManualClock, make_async: Callable[[Keyed], Any]
) -> None:
    rules = [Rule(make_async(Keyed("2/minute", clock=clock)))]
    with TestClient(starlette_app(rules=rules)) as client:
        assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]


def test_a_blocking_limiter_is_refused_when_the_middleware_is_made(
    make_blocking: Callable[[Keyed], Any],
) -> None:
    with pytest.raises(TypeError, match="AsyncRedisKeyed"):
        RateLimitMiddleware(starlette_app, [Rule(make_blocking(Keyed("1/s")))])  # type: ignore[arg-type]


def test_an_error_in_a_key_function_is_the_applications_error() -> None:
    def key(request: object) -> str:
        raise LookupError("who is this?")

    app = starlette_app(rules=[Rule("1/s", key=key)])
    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.get("/").status_code == 500


def test_a_spoofed_header_buys_no_second_bucket(clock: ManualClock) -> None:
    key = by_address(["10.0.0.0/8"])
    rules = [Rule(Keyed("2/minute", clock=clock), key=key)]
    app = starlette_app(rules=rules)

    def statuses(peer: str, forwarded: str) -> list[int]:
        with TestClient(app, client=(peer, 1)) as client:
            headers = {"X-Forwarded-For": forwarded}
            return [client.get("/", headers=headers).status_code for _ in range(3)]

    assert statuses("203.0.113.7", "1.1.1.1") == [200, 200, 429]
    assert statuses("203.0.113.7", "1.1.1.2") == [429, 429, 429]
    assert statuses("10.0.0.1", "1.1.1.1, 198.51.100.9") == [200, 200, 429]
    assert statuses("10.0.0.2", "2.2.2.2, 198.51.100.9") == [429, 429, 429]
    assert statuses("10.0.0.2", "198.51.100.10") == [200, 200, 429]


VARIANTS = [
    "/api/items",
    "/api/items/",
    "//api/items",
    "/api//items",
    "/API/items",
    "/api%2Fitems",
    "/%61pi/items",
    "/api/items%2F",
    "/api/%2e/items",
    "/x/../api/items",
    "/api/items?x=1",
    "/api/items;x=1",
    "/api/items%00",
    "/api\\items",
]


def litestar_app(rules: list[Rule]) -> Any:
    @get("/api/items", sync_to_thread=False)
    def items() -> str:
        return "hello"

    middleware = DefineMiddleware(RateLimitMiddleware, rules=rules)
    # By default Litestar sets up the logging of the whole process, and so of other tests.
    return Litestar([items], middleware=[middleware], logging_config=None)


def mounted_app(rules: list[Rule]) -> Any:
    app = Starlette(routes=[Mount("/api", routes=[Route("/items", hello)])])
    app.add_middleware(RateLimitMiddleware, rules=rules)
    return app


@pytest.mark.parametrize("make_app", [mounted_app, litestar_app])
@pytest.mark.parametrize("pattern", ["/api/items", "/api/*", "/api/{what}"])
def test_no_spelling_of_a_path_reaches_the_view_and_not_the_rule(
    make_app: Callable[[list[Rule]], Any], pattern: str
) -> None:
    keyed = Keyed("1000/hour")
    app = make_app([Rule(keyed, path=pattern, key=lambda _: "all")])
    reached = 0
    for variant in VARIANTS:
        path, _, query = variant.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": httpx.URL("http://x" + "/").copy_with(raw_path=path.encode()).path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(b"host", b"x")],
            "client": ("203.0.113.7", 1),
            "server": ("x", 80),
        }
        before = keyed.check("all", 0).remaining
        sent = call(app, scope, {"type": "http.request", "body": b"", "more_body": False})
        was_counted = keyed.check("all", 0).remaining < before
        is_view = sent[0]["status"] == 200
        assert was_counted or not is_view, variant
        reached += is_view
    assert reached >= 3


def test_a_limit_counts_handshakes_and_not_messages(clock: ManualClock) -> None:
    async def chat(websocket: WebSocket) -> None:
        await websocket.accept()
        try:
            while True:
                await websocket.send_text(await websocket.receive_text())
        except WebSocketDisconnect:
            pass

    app = Starlette(routes=[WebSocketRoute("/chat", chat)])
    app.add_middleware(RateLimitMiddleware, rules=[Rule(Keyed("1/minute", clock=clock))])
    with TestClient(app) as client, client.websocket_connect("/chat") as session:
        for word in ("a", "b", "c"):
            session.send_text(word)
            assert session.receive_text() == word
