"""The applications under test: the smallest that answer, behind one limit for all their workers.

The path says what the limit is kept in. Where that is comes from the environment, for each worker
imports this anew.
"""

import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from sluicegate import AsyncRedisKeyed, Keyed, RedisKeyed, SharedKeyed
from sluicegate.integrations import Rule, asgi, wsgi

LIMIT = os.environ["TEST_LIMIT"]
MEMORY = os.environ["TEST_MEMORY"]
REDIS = os.environ["TEST_REDIS"]
PATIENCE = 30.0  # seconds for Redis: on a busy machine, none may decide without it


def rules(redis: Any) -> list[Rule]:
    limiters = {"/shared": SharedKeyed(MEMORY, LIMIT), "/redis": redis, "/own": Keyed(LIMIT)}
    return [Rule(one, path=path, key=lambda request: "all") for path, one in limiters.items()]


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
    redis = AsyncRedisKeyed(REDIS, LIMIT, timeout=PATIENCE)
    return asgi.RateLimitMiddleware(answer, rules(redis))


def wsgi_app() -> Any:
    redis = RedisKeyed(REDIS, LIMIT, timeout=PATIENCE)
    return wsgi.RateLimitMiddleware(answer_sync, rules(redis))
