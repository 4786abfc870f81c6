"""A node's quota in front of web applications: whose, how much, what a refusal says."""

import asyncio
import io
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import flask
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as StarletteRequest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from sluicegate import ManualClock, Node, Throttled
from sluicegate.integrations.http.request import Request
from sluicegate.integrations.quota import QuotaASGIMiddleware, QuotaWSGIMiddleware, add
from sluicegate.integrations.quota.log_throttle import LogThrottle
from sluicegate.quota.node.core.reporter import Reporter
from tests.harness.answering_leader import AnsweringLeader, ClockWithEvents
from tests.harness.waits import PATIENCE

Totals = dict[str, dict[str, float]]


@pytest.fixture
def node(clock: ManualClock, tmp_path: Path) -> Iterator[Node]:
    """Without a central: each user has two requests per second, and other resources are free."""
    made = Node(
        "ws://127.0.0.1:9",
        node_id="web",
        services=["front"],
        shared=str(tmp_path / "web"),
        fallback={"requests": 2.0},
        clock=clock,
    )
    yield made
    made.close()


def consumed(node: Node) -> Totals:
    """What would be reported: of each user and resource."""
    [(_, report)] = Reporter(node._user_table, ["central"]).leave(node._user_table.now())
    return {
        user: {resource: line.consumed for resource, line in lines.items() if line.consumed}
        for user, lines in report.lines.get("front", {}).items()
    }


def held(node: Node) -> float:
    [(_, report)] = Reporter(node._user_table, ["central"]).leave(node._user_table.now())
    users = report.lines.get("front", {}).values()
    return sum(line.held for lines in users for line in lines.values())


# ASGI


async def hello(request: StarletteRequest) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def upload(request: StarletteRequest) -> PlainTextResponse:
    body = await request.body()
    request.scope["sluicegate.quota"].add("database_write", 2)
    return PlainTextResponse(str(len(body)))


async def stream(request: StarletteRequest) -> StreamingResponse:
    async def pieces() -> Any:
        for _ in range(3):
            add("database_read")
            yield b"12345"

    return StreamingResponse(pieces())


async def deep(request: StarletteRequest) -> PlainTextResponse:
    def in_a_thread() -> None:
        add("database_read", 3)

    await run_in_threadpool(in_a_thread)
    await asyncio.create_task(asyncio.to_thread(add, "database_read", 4))
    return PlainTextResponse("ok", background=BackgroundTask(add, "database_read", 5))


async def fail(request: StarletteRequest) -> PlainTextResponse:
    add("database_read", 6)
    raise RuntimeError("no")


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    try:
        while True:
            await socket.send_text(await socket.receive_text() + "ü")
    except WebSocketDisconnect:
        pass


def starlette(node: Node, **options: Any) -> TestClient:
    app = Starlette(
        routes=[
            Route("/", hello, methods=["GET", "HEAD"]),
            Route("/upload", upload, methods=["POST"]),
            Route("/stream", stream),
            Route("/deep", deep),
            Route("/fail", fail),
            WebSocketRoute("/echo", echo),
        ]
    )
    app.add_middleware(
        QuotaASGIMiddleware, **{"node": node, "service": "front", "user": "x-user"} | options
    )
    return TestClient(app, raise_server_exceptions=False, headers={"x-user": "ann"})


@pytest.mark.parametrize(
    ("method", "path", "body", "costs"),
    [
        ("GET", "/", None, {"requests": 1, "traffic_down": 5}),
        ("HEAD", "/", None, {"requests": 1}),
        (
            "POST",
            "/upload",
            b"x" * 100_000,
            {"requests": 1, "traffic_up": 100_000, "traffic_down": 6, "database_write": 2},
        ),
        ("GET", "/stream", None, {"requests": 1, "traffic_down": 15, "database_read": 3}),
        ("GET", "/deep", None, {"requests": 1, "traffic_down": 2, "database_read": 12}),
        ("GET", "/fail", None, {"requests": 1, "database_read": 6}),
        ("GET", "/nowhere", None, {"requests": 1, "traffic_down": 9}),
    ],
)
def test_what_a_request_costs_is_booked(
    node: Node, method: str, path: str, body: bytes | None, costs: dict[str, float]
) -> None:
    with starlette(node) as client:
        client.request(method, path, content=body)
    booked = consumed(node)["ann"]
    if method == "HEAD":  # a server sends no body; what the framework makes of it may differ
        booked.pop("traffic_down", None)
    assert booked == costs
    assert held(node) == 0.0


def test_who_is_out_of_quota_is_told_as_the_limits_do_it(node: Node, clock: ManualClock) -> None:
    refused: list[tuple[str, str]] = []

    def note(request: Request, throttled: Throttled) -> None:
        refused.append((request.path, throttled.user))

    with starlette(node, on_refusal=note) as client:
        assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
        answer = client.get("/stream")
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["ratelimit"] == '"requests";r=0;t=1'
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json() == {
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "detail": "over the limit requests; try again in 1 s",
            "violated-policies": ["requests"],
        }
        head = client.head("/")
        assert (head.status_code, head.content) == (429, b"")
        assert client.get("/", headers={"x-user": "bob"}).status_code == 200
        clock.advance(1.0)
        assert client.get("/").status_code == 200
    assert refused == [("/", "ann"), ("/stream", "ann"), ("/", "ann")]
    assert consumed(node)["ann"]["requests"] == 3


def test_a_refusal_may_have_a_body_of_ones_own(node: Node) -> None:
    def body(throttled: Throttled) -> tuple[str, bytes]:
        return "text/plain", f"{throttled.user} is out of {throttled.resource}".encode()

    with starlette(node, body=body) as client:
        answer = [client.get("/") for _ in range(3)][-1]
    assert (answer.status_code, answer.text) == (429, "ann is out of requests")
    assert answer.headers["content-type"] == "text/plain"


def test_a_websocket_counts_its_messages_and_is_refused_at_its_handshake(node: Node) -> None:
    with starlette(node) as client:
        for _ in range(2):
            with client.websocket_connect("/echo", headers={"x-user": "ann"}) as socket:
                socket.send_text("äh")
                assert socket.receive_text() == "ähü"
        with (
            pytest.raises(WebSocketDenialResponse) as denied,
            client.websocket_connect("/echo", headers={"x-user": "ann"}),
        ):
            pass
    assert denied.value.status_code == 429
    assert consumed(node)["ann"] == {"requests": 2, "traffic_up": 6, "traffic_down": 10}


@pytest.mark.parametrize(
    ("user", "headers", "known_as"),
    [
        ("X-User", {"x-user": "bob"}, "bob"),
        ("x-user", {"x-user": ""}, "testclient"),
        ("x-user", {"x-user": "bü".encode()}, "bü"),
        ("x-user", {"x-user": b"b\xfc"}, "bü"),
        (lambda request: request.header("x-key").upper(), {"x-key": "k"}, "K"),
        (lambda request: "s\udc80", {}, "s?"),
    ],
)
def test_whose_a_request_is(node: Node, user: Any, headers: dict[str, Any], known_as: str) -> None:
    with starlette(node, user=user) as client:
        assert client.get("/", headers=headers).status_code == 200
    assert list(consumed(node)) == [known_as]


def test_a_long_name_is_known_by_its_digest(node: Node) -> None:
    with starlette(node) as client:
        assert client.get("/", headers={"x-user": "x" * 201}).status_code == 200
    [name] = consumed(node)
    assert name.startswith("blake2b:")
    assert len(name) <= 200


def test_one_without_a_name_is_not_limited_and_costs_nothing(node: Node) -> None:
    with starlette(node, user=lambda request: None) as client:
        assert [client.get("/deep").status_code for _ in range(5)] == [200] * 5
    assert consumed(node) == {}


def test_the_service_may_depend_on_the_request_and_resources_may_be_left_out(node: Node) -> None:
    with starlette(node, service=lambda request: "front", resources=["traffic_down"]) as client:
        client.post("/upload", content=b"abc")
    assert consumed(node) == {"ann": {"traffic_down": 1, "database_write": 2}}


def test_what_a_request_is_expected_to_cost_is_what_is_asked_for(node: Node) -> None:
    with starlette(node, expect=lambda request: {"requests": 1.5}) as client:
        assert [client.get("/").status_code for _ in range(2)] == [200, 429]


def test_what_is_added_after_the_end_is_booked_at_once(node: Node) -> None:
    meters: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        meters.append(scope["sluicegate.quota"])

    middleware = QuotaASGIMiddleware(app, node, service="front", user=lambda request: "ann")
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": None}
    asyncio.run(middleware(scope, None, None))  # type: ignore[arg-type]
    meters[0].add("database_read", 2)
    meters[0].finish()
    assert consumed(node) == {"ann": {"requests": 1, "database_read": 2}}


def test_a_cancelled_request_is_booked(node: Node) -> None:
    async def story() -> None:
        began = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"123", "more_body": True})
            began.set()
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            pass

        middleware = QuotaASGIMiddleware(app, node, service="front", user=lambda request: "ann")
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": None}
        running = asyncio.create_task(middleware(scope, None, send))  # type: ignore[arg-type]
        await asyncio.wait_for(began.wait(), PATIENCE)
        assert held(node) == 1.0
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(story())
    assert consumed(node) == {"ann": {"requests": 1, "traffic_down": 3}}
    assert held(node) == 0.0


def test_a_file_that_the_server_sends_by_its_path_has_its_size(node: Node, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 77)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.pathsend", "path": str(tmp_path / "file")})

    async def send(message: Any) -> None:
        pass

    middleware = QuotaASGIMiddleware(app, node, service="front", user=lambda request: "ann")
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": None}
    asyncio.run(middleware(scope, None, send))  # type: ignore[arg-type]
    assert consumed(node)["ann"]["traffic_down"] == 77


def test_lifespan_passes_untouched(node: Node) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    middleware = QuotaASGIMiddleware(app, node, service="front", user="x-user")
    asyncio.run(middleware({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert seen == ["lifespan"]
    assert repr(middleware).startswith("QuotaASGIMiddleware(")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"service": "back"}, ValueError, r"one of the node's, \['front'\], got 'back'"),
        ({"resources": ["cpu"]}, ValueError, "resources must be a list of some of"),
        ({"resources": "requests"}, ValueError, "resources must be a list of some of"),
        ({"user": 7}, TypeError, "user must be a str or a function, got 7"),
        ({"user": "x user"}, ValueError, "a header name"),
        ({"wait": -1}, ValueError, "wait must be finite and not below 0, or None, got -1"),
        ({"wait": "1"}, TypeError, "wait must be a number of seconds, or None, got '1'"),
        ({"wait": True}, TypeError, "wait must be a number of seconds, or None, got True"),
    ],
)
def test_a_middleware_that_makes_no_sense_is_refused(
    node: Node, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        QuotaASGIMiddleware(
            print,
            node,
            **{"service": "front", "user": "x-user"} | options,  # type: ignore[arg-type]
        )


def test_a_node_that_cannot_count_turns_nobody_away_and_says_so_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    client = starlette(node)
    app = wsgi(node, lambda environ: [b"ok"])
    node.close()
    assert [client.get("/deep").status_code for _ in range(3)] == [200] * 3
    assert [call_wsgi(app)[0] for _ in range(3)] == ["200 OK"] * 3
    told = [one.getMessage() for one in caplog.records if one.name == "sluicegate.quota.node"]
    once = [
        "request admitted without a decision (0 more since the last message)",
        "cannot book a request (0 more since the last message)",
    ]
    assert told == once * 2, told  # a middleware each
    assert "the shared memory is closed" in caplog.text


def test_a_service_that_the_node_does_not_have_passes_uncounted(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    with starlette(node, service=lambda request: request.header("x-service")) as client:
        for number in range(20):
            answer = client.get("/", headers={"x-service": f"made-up-{number}"})
            assert answer.status_code == 200
        assert client.get("/", headers={"x-service": "front"}).status_code == 200
    assert consumed(node) == {"ann": {"requests": 1, "traffic_down": 5}}
    assert caplog.text.count("one of ['front'], got 'made-up-0'") == 1


def test_of_each_kind_of_trouble_one_a_minute_is_told(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    log_throttle = LogThrottle(clock.now)
    for seconds in (0, 1, 58, 1, 1):
        clock.advance(seconds)
        log_throttle.log("cannot be booked", ValueError("no"))
        log_throttle.log("cannot be booked", TypeError("no"))
    assert [one.getMessage() for one in caplog.records] == [
        *["cannot be booked (0 more since the last message)"] * 2,
        *["cannot be booked (2 more since the last message)"] * 2,
    ]


@pytest.mark.parametrize(
    ("resource", "amount", "error"),
    [
        ("", 1.0, ValueError),
        ("x" * 201, 1.0, ValueError),
        (7, 1.0, TypeError),
        ("reads", -1.0, ValueError),
        ("reads", float("nan"), ValueError),
        ("reads", float("inf"), ValueError),
    ],
)
def test_what_cannot_be_added_is_refused_where_it_is_added(
    node: Node, resource: Any, amount: float, error: type[Exception]
) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        with pytest.raises(error):
            add(resource, amount)
        start_response("200 OK", [])
        return []

    call_wsgi(QuotaWSGIMiddleware(app, node, service="front", user="x-user"))
    assert consumed(node) == {"ann": {"requests": 1}}


def expected_requests(request: Request) -> dict[str, float]:
    return {"requests": 1.5 if request.path == "/long" else 0.25}


def test_a_short_request_does_not_release_what_a_long_one_holds_under_wsgi(node: Node) -> None:
    holds = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        if environ["PATH_INFO"] == "/long":
            call_wsgi(middleware, PATH_INFO="/short")  # begins and ends meanwhile
            holds.append(held(node))
        start_response("200 OK", [])
        return []

    middleware = QuotaWSGIMiddleware(
        app, node, service="front", user="x-user", expect=expected_requests
    )
    call_wsgi(middleware, PATH_INFO="/long")
    assert holds == [1.5]
    assert held(node) == 0.0


def test_a_short_request_does_not_release_what_a_long_one_holds_under_asgi(node: Node) -> None:
    holds = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/long":
            await middleware({**scope, "path": "/short"}, receive, send)
            holds.append(held(node))

    middleware = QuotaASGIMiddleware(
        app, node, service="front", user=lambda request: "ann", expect=expected_requests
    )
    scope = {"type": "http", "method": "GET", "path": "/long", "headers": []}
    asyncio.run(middleware(scope, None, None))  # type: ignore[arg-type]
    assert holds == [1.5]
    assert held(node) == 0.0


def test_what_is_added_after_the_end_of_a_request_releases_nothing_of_others(node: Node) -> None:
    meters = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        meters.append(environ["sluicegate.quota"])
        start_response("200 OK", [])
        return []

    call_wsgi(QuotaWSGIMiddleware(app, node, service="front", user="x-user"))
    node.throttle("front", "ann", {"requests": 0.5})
    meters[0].add("requests", 0.25)
    assert held(node) == 0.5
    assert consumed(node) == {"ann": {"requests": 1.25}}


def test_outside_a_request_nothing_is_added() -> None:
    add("database_read", 3)


# Waiting for the leader's answer


@pytest.fixture
def events() -> ClockWithEvents:
    return ClockWithEvents(1000.0)


@pytest.fixture
def thin_node(events: ClockWithEvents, tmp_path: Path) -> Iterator[Node]:
    made = Node(
        "ws://c", node_id="web", services=["front"], shared=str(tmp_path / "thin"), clock=events
    )
    yield made
    made.close()


def call(kind: str, node: Node, **options: Any) -> int:
    """One request to an application behind the middleware; its status."""
    if kind == "asgi":
        return starlette(node, **options).get("/").status_code

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return [b"hello"]

    options = {"service": "front", "user": "x-user"} | options
    status, _, _ = call_wsgi(QuotaWSGIMiddleware(app, node, **options))
    return int(status.split()[0])


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
@pytest.mark.parametrize(
    ("delay", "options", "status", "waited"),
    [
        (0.02, {}, 200, (0.02, 0.03)),
        (0.02, {"wait": None}, 200, (0.02, 0.03)),
        (0.02, {"wait": 0.01}, 429, (0.01, 0.011)),
        (0.02, {"wait": 0}, 429, (0.0, 0.0)),
        (None, {}, 429, (0.07, 0.071)),
    ],
)
def test_a_request_without_credit_waits_for_the_leaders_answer(
    thin_node: Node,
    events: ClockWithEvents,
    kind: str,
    delay: float | None,
    options: dict[str, Any],
    status: int,
    waited: tuple[float, float],
) -> None:
    AnsweringLeader(thin_node, events, delay=delay).introduce("ann")
    began = events.now()
    assert call(kind, thin_node, **options) == status
    least, most = waited
    assert least <= round(events.now() - began, 6) <= most


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_who_is_over_the_limit_is_refused_at_once(
    thin_node: Node, events: ClockWithEvents, kind: str
) -> None:
    AnsweringLeader(thin_node, events, delay=0.01, empty_seconds=5.0).introduce("ann")
    assert call(kind, thin_node) == 429
    began = events.now()
    assert [call(kind, thin_node) for _ in range(20)] == [429] * 20
    assert events.now() == began


# WSGI


def call_wsgi(app: Any, body: bytes = b"", **environ: Any) -> tuple[str, dict[str, str], bytes]:
    """As a server does it; the status, the header fields, the body."""
    full: dict[str, Any] = {"HTTP_X_USER": "ann", "wsgi.input": io.BytesIO(body)}
    full["CONTENT_LENGTH"] = str(len(body))
    setup_testing_defaults(full)
    full |= environ
    started: list[tuple[str, dict[str, str]]] = []
    written: list[bytes] = []

    def start_response(
        status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], object]:
        started.append((status, dict(headers)))
        return written.append

    pieces = app(full, start_response)
    try:
        answered = b"".join(pieces)
    finally:
        if hasattr(pieces, "close"):
            pieces.close()
    return (*started[-1], b"".join(written) + answered)


class Pieces:
    """An answer that makes itself while it is sent, and counts its closings."""

    def __init__(self, fail_at: int = 99) -> None:
        self.closed = 0
        self._fail_at = fail_at

    def __iter__(self) -> Iterator[bytes]:
        for number in range(3):
            if number == self._fail_at:
                raise RuntimeError("no")
            add("database_read")
            yield b"12345"

    def close(self) -> None:
        self.closed += 1
        add("closing")


def wsgi(node: Node, answer: Callable[[Any], Iterable[bytes]]) -> QuotaWSGIMiddleware:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return answer(environ)

    return QuotaWSGIMiddleware(app, node, service="front", user="x-user")


def test_a_wsgi_application_is_metered_from_input_to_close(node: Node) -> None:
    pieces = Pieces()

    def answer(environ: Any) -> Iterable[bytes]:
        stream = environ["wsgi.input"]
        assert stream.read(2) == b"ab"
        assert stream.readline() == b"c\n"
        assert stream.readlines(1) == [b"de\n"]
        assert list(stream) == [b"f\n", b"g"]
        assert stream.readinto(bytearray(4)) == 0
        assert not stream.closed
        environ["sluicegate.quota"].add("database_write", 2)
        return pieces

    assert call_wsgi(wsgi(node, answer), b"abc\nde\nf\ng")[2] == b"12345" * 3
    assert pieces.closed == 1
    assert consumed(node)["ann"] == {
        "requests": 1,
        "traffic_up": 10,
        "traffic_down": 15,
        "database_write": 2,
        "database_read": 3,
        "closing": 1,
    }


def test_an_answer_that_is_a_list_goes_on_as_it_is(node: Node) -> None:
    pieces = [b"12", b"345"]
    middleware = wsgi(node, lambda environ: pieces)
    assert middleware({"HTTP_X_USER": "ann"}, lambda *_: lambda data: None) is pieces
    assert consumed(node)["ann"] == {"requests": 1, "traffic_down": 5}


def test_a_generator_that_is_closed_early_is_booked(node: Node) -> None:
    pieces = wsgi(node, lambda environ: Pieces())({"HTTP_X_USER": "ann"}, lambda *_: print)
    assert next(iter(pieces)) == b"12345"
    assert held(node) == 1.0
    pieces.close()  # type: ignore[attr-defined]
    assert consumed(node)["ann"] == {
        "requests": 1,
        "traffic_down": 5,
        "database_read": 1,
        "closing": 1,
    }
    assert held(node) == 0.0


def test_an_answer_that_nobody_closes_is_booked_when_it_is_forgotten(node: Node) -> None:
    pieces = wsgi(node, lambda environ: iter([b"12"]))({"HTTP_X_USER": "ann"}, lambda *_: print)
    assert list(pieces) == [b"12"]
    del pieces
    assert consumed(node)["ann"] == {"requests": 1, "traffic_down": 2}


def test_a_wsgi_application_that_fails_is_booked(node: Node) -> None:
    def fail(environ: Any) -> Iterable[bytes]:
        add("database_read", 2)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        call_wsgi(wsgi(node, fail))
    with pytest.raises(RuntimeError):
        call_wsgi(wsgi(node, lambda environ: Pieces(fail_at=1)))
    assert consumed(node)["ann"] == {
        "requests": 2,
        "traffic_down": 5,
        "database_read": 3,
        "closing": 1,
    }
    assert held(node) == 0.0


def test_what_is_written_in_the_old_way_counts(node: Node) -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])(b"123")
        return [b"45"]

    middleware = QuotaWSGIMiddleware(app, node, service="front", user="x-user")
    assert call_wsgi(middleware)[2] == b"12345"
    assert consumed(node)["ann"] == {"requests": 1, "traffic_down": 5}


def test_a_wsgi_refusal_is_a_whole_answer(node: Node) -> None:
    middleware = wsgi(node, lambda environ: [b"hello"])
    answers = [call_wsgi(middleware) for _ in range(3)]
    assert [status for status, _, _ in answers] == ["200 OK", "200 OK", "429 Too Many Requests"]
    _, headers, body = answers[-1]
    assert headers["Retry-After"] == "1"
    assert headers["Content-Length"] == str(len(body))
    assert json.loads(body)["violated-policies"] == ["requests"]


def test_the_wsgi_middleware_keeps_to_the_protocol(node: Node) -> None:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        environ["wsgi.input"].read(3)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return iter([b"1", b"2"])

    middleware = QuotaWSGIMiddleware(validator(app), node, service="front", user="x-user")
    answers = [call_wsgi(validator(middleware), b"abc", QUERY_STRING="") for _ in range(3)]
    assert [body[:2] for _, _, body in answers] == [b"12", b"12", b'{"']


def test_flask_is_metered_in_all_its_threads(node: Node, clock: ManualClock) -> None:
    app = flask.Flask("shop")

    @app.post("/")
    def upload() -> Any:
        add("database_read", len(flask.request.data))

        def pieces() -> Iterator[bytes]:
            add("database_write")
            yield b"12345"

        return flask.Response(pieces())

    app.wsgi_app = QuotaWSGIMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, node, service="front", user="x-user"
    )

    def visit(user: str) -> None:
        for _ in range(2):
            app.test_client().post("/", data=b"abc", headers={"x-user": user}).get_data()

    threads = [threading.Thread(target=visit, args=(f"user-{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    each = {"requests": 2, "traffic_up": 6, "traffic_down": 10}
    each |= {"database_read": 6, "database_write": 2}
    assert consumed(node) == {f"user-{i}": each for i in range(8)}
