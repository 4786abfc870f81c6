"""What a limit adds to a request, beside the extensions people use today.

The applications are called in this process as a server would call them, without a
server: a scope or environ, and a view that answers a few bytes. Everything is allowed.
The cost of a limiter is the time with it less the time without it, each the best of many
rounds in turns. Peers are given memory as their store and their fastest way in.
"""

import asyncio
import gc
import io
import time
from collections.abc import Awaitable, Callable
from typing import Any

import flask_limiter
import pyrate_limiter
import slowapi
import slowapi.middleware
import slowapi.util
from fastapi import Depends, FastAPI
from fastapi_limiter.depends import RateLimiter as FastAPILimiter
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from benchmarks.harness import ROUNDS, Row
from sluicegate.integrations import Rule, by_address
from sluicegate.integrations.asgi import RateLimitMiddleware
from sluicegate.integrations.fastapi import limit
from sluicegate.integrations.flask import RateLimit
from sluicegate.integrations.wsgi import RateLimitMiddleware as WSGIMiddleware

NOTES = (
    "Microseconds of thread time that are added to a request: with less without, each the "
    f"best of {3 * ROUNDS} rounds in turns."
)
HUGE = 10**9
LIMIT = f"{HUGE}/second"
REQUESTS = 300  # in a round
GOAL = 5.0  # microseconds

Scope = dict[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]


def rows() -> list[Row]:
    return [*asgi(), *fastapi(), *flask()]


def asgi() -> list[Row]:
    def starlette(**options: Any) -> Starlette:
        app = Starlette(routes=[Route("/api/items", _hello)])
        if options:
            app.add_middleware(RateLimitMiddleware, **options)
        return app

    proxies = by_address(["10.0.0.0/8"])
    routed = [Rule(LIMIT, path="/api/*", methods=["GET"], key=proxies)]
    times = asyncio.run(
        _in_turns(
            bare=starlette(),
            plain=starlette(rules=[Rule(LIMIT)]),
            routed=starlette(rules=routed),
            told=starlette(rules=[Rule(LIMIT)], headers=True),
            slowapi=_slowapi_peer(starlette()),
        )
    )
    what = "ASGI middleware in front of Starlette"
    peer = "slowapi"
    return [
        _row(what, times, "plain", peer, GOAL),
        _row(f"{what}, by path, method and proxies", times, "routed", peer, GOAL),
        _row(f"{what}, with fields on every answer", times, "told", peer, None),
    ]


def fastapi() -> list[Row]:
    rate = pyrate_limiter.Rate(HUGE, pyrate_limiter.Duration.SECOND)
    peer = pyrate_limiter.Limiter(pyrate_limiter.StateBucket([rate]))

    def app(*dependencies: Any) -> FastAPI:
        app = FastAPI()

        @app.get("/api/items", dependencies=[Depends(each) for each in dependencies])
        async def items() -> str:
            return "hello"

        return app

    times = asyncio.run(
        _in_turns(
            bare=app(),
            plain=app(limit(LIMIT)),
            **{"fastapi-limiter": app(FastAPILimiter(limiter=peer))},
        )
    )
    return [_row("FastAPI dependency", times, "plain", "fastapi-limiter", None)]


def flask() -> list[Row]:
    def app() -> Flask:
        app = Flask("benchmark")

        @app.get("/api/items")
        def items() -> str:
            return "hello"

        return app

    wrapped, extended, peer = app(), app(), app()
    wrapped.wsgi_app = WSGIMiddleware(wrapped.wsgi_app, [Rule(LIMIT)])  # type: ignore[method-assign]
    RateLimit(extended, rules=[Rule(LIMIT)])
    flask_limiter.Limiter(
        lambda: "203.0.113.7", app=peer, default_limits=[LIMIT], storage_uri="memory://"
    )
    apps = {"bare": app(), "wsgi": wrapped, "extension": extended, "Flask-Limiter": peer}
    best = dict.fromkeys(apps, float("inf"))
    for _ in range(3 * ROUNDS):
        for name, one in apps.items():
            best[name] = min(best[name], _wsgi_round(one))
    return [
        _row("WSGI middleware in front of Flask", best, "wsgi", "Flask-Limiter", None),
        _row("Flask extension", best, "extension", "Flask-Limiter", None),
    ]


async def _hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


def _slowapi_peer(app: Starlette) -> Starlette:
    app.state.limiter = slowapi.Limiter(
        key_func=slowapi.util.get_remote_address, default_limits=[LIMIT]
    )
    app.add_middleware(slowapi.middleware.SlowAPIASGIMiddleware)
    return app


async def _in_turns(**apps: App) -> dict[str, float]:
    """Microseconds per request of each application, the best of its rounds."""
    best = dict.fromkeys(apps, float("inf"))
    for _ in range(3 * ROUNDS):
        for name, app in apps.items():
            best[name] = min(best[name], await _asgi_round(app))
    return best


async def _asgi_round(app: App) -> float:
    statuses = []

    async def receive() -> Scope:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    gc.disable()
    start = time.thread_time_ns()
    for _ in range(REQUESTS):
        await app(_scope(), receive, send)
    took = time.thread_time_ns() - start
    gc.enable()
    assert statuses == [200] * REQUESTS
    return took / REQUESTS / 1e3


def _scope() -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/api/items",
        "raw_path": b"/api/items",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"api.example"), (b"user-agent", b"bench"), (b"accept", b"*/*")],
        "client": ("203.0.113.7", 40000),
        "server": ("api.example", 80),
        "state": {},
    }


def _wsgi_round(app: Flask) -> float:
    statuses = []

    def start_response(status: str, headers: Any, exc_info: Any = None) -> Any:
        statuses.append(status)

    gc.disable()
    start = time.thread_time_ns()
    for _ in range(REQUESTS):
        answer = app(_environ(), start_response)
        for _ in answer:
            pass
        answer.close()  # type: ignore[attr-defined]
    took = time.thread_time_ns() - start
    gc.enable()
    assert statuses == ["200 OK"] * REQUESTS
    return took / REQUESTS / 1e3


def _environ() -> dict[str, Any]:
    return {
        "REQUEST_METHOD": "GET",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/api/items",
        "QUERY_STRING": "",
        "SERVER_NAME": "api.example",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "203.0.113.7",
        "HTTP_HOST": "api.example",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }


def _row(what: str, times: dict[str, float], ours: str, peer: str, most: float | None) -> Row:
    added, theirs = times[ours] - times["bare"], times[peer] - times["bare"]
    ratio = theirs / added
    return Row(
        what,
        f"{added:.1f} µs",
        f"{theirs:.1f} µs ({peer})",
        ratio,
        f"{ratio:.1f} x faster",
        "" if most is None else f"<= {most:g} µs",
        None if most is None else added <= most,
    )
