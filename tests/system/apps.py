"""The applications under test: the smallest that answer, behind one limit for all their workers.

What the limit is kept in comes from the environment, for each worker imports this anew.
"""

import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from headgate import AsyncRedisKeyed, Keyed, RedisKeyed, SharedKeyed
from headgate.integrations import Rule, asgi, wsgi

LIMIT = os.environ["TEST_LIMIT"]
PATIENCE = 5.0  # seconds for Redis: on a busy machine, none may decide without it
STORE, WHERE = os.environ["TEST_STORE"].split(" ", 1)


def rule(limiter: Any) -> Rule:
    return Rule(limiter, key=lambda request: "all", exempt=lambda request: request.path == "/ready")


async def answer(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[Any]],
    send: Callable[[Any], Awaitable[None]],
) -> None:
    if scope["type"] == "lifespan":
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})
        return
    headers = [(b"content-length", b"2"), (b"x-worker", str(os.getpid()).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


def answer_sync(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Length", "2"), ("X-Worker", str(os.getpid()))])
    return [b"ok"]


def asgi_app() -> Any:
    limiters: dict[str, Callable[[], Any]] = {
        "shared": lambda: SharedKeyed(WHERE, LIMIT),
        "redis": lambda: AsyncRedisKeyed(WHERE, LIMIT, timeout=PATIENCE),
        "none": lambda: Keyed(LIMIT),
    }
    return asgi.RateLimitMiddleware(answer, [rule(limiters[STORE]())])


def wsgi_app() -> Any:
    limiters: dict[str, Callable[[], Any]] = {
        "shared": lambda: SharedKeyed(WHERE, LIMIT),
        "redis": lambda: RedisKeyed(WHERE, LIMIT, timeout=PATIENCE),
    }
    return wsgi.RateLimitMiddleware(answer_sync, [rule(limiters[STORE]())])
