"""The middlewares that count requests in progress and report them."""

import asyncio
import io
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.util import FileWrapper

import httpx
import pytest

from sluicegate.balance import LeastActive
from sluicegate.integrations.httpx import AsyncBalancedTransport, BalancedTransport
from sluicegate.integrations.load_report import LoadReportMiddleware, WsgiLoadReportMiddleware
from sluicegate.integrations.server_load import LOAD_HEADER, reported_load
from tests.harness.waits import PATIENCE, wait_until

MakeScope = Callable[..., dict[str, Any]]


async def receive() -> dict[str, Any]:
    return {"type": "http.request"}


def loads_of(messages: list[Any]) -> list[float | None]:
    """The loads in the heads of responses."""
    return [
        reported_load(dict(message["headers"])[LOAD_HEADER.encode()].decode())
        for message in messages
        if message["type"] == "http.response.start"
    ]


def test_each_response_says_how_many_others_are_in_progress(make_scope: MakeScope) -> None:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def scenario() -> None:
        may_end = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": b"begin", "more_body": True})
            if scope["path"] == "/slow":
                await may_end.wait()
            await send({"type": "http.response.body", "body": b"end"})

        wrapped = LoadReportMiddleware(app)
        slow = [asyncio.create_task(wrapped(make_scope("/slow"), receive, send)) for _ in range(2)]
        await wait_until(lambda: len(messages) == 4)  # a head and a part of the body of both
        await wrapped(make_scope("/quick"), receive, send)
        may_end.set()
        await asyncio.gather(*slow)
        await wrapped(make_scope("/quick"), receive, send)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
    assert loads_of(messages) == [0.0, 1.0, 2.0, 0.0]
    bodies = [message for message in messages if message["type"] == "http.response.body"]
    assert [one["body"] for one in bodies[:2]] == [b"begin", b"begin"]  # not held back


def test_a_request_that_fails_or_is_cancelled_is_not_in_progress_any_more(
    make_scope: MakeScope,
) -> None:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/fail":
            raise LookupError(scope["path"])
        if scope["path"] == "/hang":
            await asyncio.Event().wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def scenario() -> None:
        wrapped = LoadReportMiddleware(app)
        with pytest.raises(LookupError):
            await wrapped(make_scope("/fail"), receive, send)
        hanging = asyncio.create_task(wrapped(make_scope("/hang"), receive, send))
        await asyncio.sleep(0)
        await wrapped(make_scope("/"), receive, send)
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        await wrapped(make_scope("/"), receive, send)

    asyncio.run(scenario())
    assert loads_of(messages) == [1.0, 0.0]


def test_websockets_and_lifespan_pass_untouched() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, receive, send))

    async def send(message: Any) -> None:
        raise AssertionError(message)

    scopes = [{"type": "websocket"}, {"type": "lifespan"}]
    for scope in scopes:
        asyncio.run(LoadReportMiddleware(app)(scope, receive, send))
    assert seen == [(scope, receive, send) for scope in scopes]


def test_a_report_of_the_application_stays(make_scope: MakeScope) -> None:
    own = (b"Endpoint-Load-Metrics", b"TEXT cpu_utilization=0.3")
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [own]})

    asyncio.run(LoadReportMiddleware(app)(make_scope("/"), receive, send))
    assert messages[0]["headers"] == [own]


class WsgiServer:
    """Calls a WSGI application and keeps what it answers, as a server does until the end."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.loads: list[float | None] = []

    def call(self, path: str = "/", **environ: Any) -> Iterable[bytes]:
        def start_response(status: str, headers: list[tuple[str, str]], *_: Any) -> Any:
            self.loads.append(reported_load(dict(headers).get(LOAD_HEADER)))
            return lambda data: None

        body: Iterable[bytes] = self._app({"PATH_INFO": path, **environ}, start_response)
        return body


def finish(body: Iterable[bytes]) -> bytes:
    content = b"".join(body)
    if hasattr(body, "close"):
        body.close()
    return content


def test_a_wsgi_request_is_in_progress_until_its_body_is_closed() -> None:
    closed: list[str] = []

    def stream(path: str) -> Iterator[bytes]:
        try:
            yield b"begin "
            yield b"end"
        finally:
            closed.append(path)

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        if environ["PATH_INFO"] == "/stream":
            return stream(environ["PATH_INFO"])
        return [b"whole"]

    server = WsgiServer(WsgiLoadReportMiddleware(app))
    first, second = server.call("/stream"), server.call("/stream")
    assert finish(server.call()) == finish(server.call()) == b"whole"
    assert finish(first) == b"begin end"
    finish(server.call())
    assert next(iter(second)) == b"begin "
    for _ in range(2):
        second.close()  # type: ignore[attr-defined]
    finish(server.call())
    assert server.loads == [0.0, 1.0, 2.0, 2.0, 1.0, 0.0]
    assert closed == ["/stream", "/stream"]


def test_lists_and_files_are_returned_untouched() -> None:
    bodies: list[Any] = [[b"list"], (b"tuple",), FileWrapper(io.BytesIO(b"file"))]

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [("Endpoint-Load-Metrics", "TEXT cpu_utilization=0.3")])
        return bodies[int(environ["PATH_INFO"])]

    middleware = WsgiLoadReportMiddleware(app)
    server = WsgiServer(middleware)
    for number, body in enumerate(bodies):
        assert server.call(str(number), **{"wsgi.file_wrapper": FileWrapper}) is body
    assert server.loads == [None, None, None]  # the application's own report stays
    assert repr(middleware).endswith("in_progress=0)")


def test_a_wsgi_application_that_raises_is_not_counted_any_more() -> None:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/fail":
            raise LookupError
        start_response("200 OK", [])
        return [b""]

    server = WsgiServer(WsgiLoadReportMiddleware(app))
    with pytest.raises(LookupError):
        server.call("/fail")
    finish(server.call())
    assert server.loads == [0.0]


def test_threads_of_a_wsgi_server_count_each_other() -> None:
    everyone_is_there = threading.Barrier(4)

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        everyone_is_there.wait(PATIENCE)
        start_response("200 OK", [])
        everyone_is_there.wait(PATIENCE)
        return [b""]

    middleware = WsgiLoadReportMiddleware(app)
    server = WsgiServer(middleware)
    threads = [threading.Thread(target=server.call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.loads == [3.0] * 4
    assert repr(middleware).endswith("in_progress=0)")


def test_what_a_server_reports_reaches_the_balancer_of_its_client() -> None:
    async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    def wsgi_app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return [b""]

    async def scenario(balancer: LeastActive) -> None:
        server = httpx.ASGITransport(LoadReportMiddleware(asgi_app))
        transport = AsyncBalancedTransport(balancer, server)
        async with httpx.AsyncClient(transport=transport) as client:
            await client.get("http://service/")

    balancer = LeastActive(["http://a"])
    asyncio.run(scenario(balancer))
    assert balancer.status()[0].load == 0.0  # without the request itself

    balancer = LeastActive(["http://a"])
    transport = BalancedTransport(balancer, httpx.WSGITransport(WsgiLoadReportMiddleware(wsgi_app)))
    with httpx.Client(transport=transport) as client:
        client.get("http://service/")
    assert balancer.status()[0].load == 0.0
