r"""FastAPI under quotas that hold for all servers together.

    pip install 'sluicegate[server]' fastapi uvicorn
    sluicegate central --limits examples/quota_limits.toml
    uvicorn examples.quota_fastapi:app --workers 4          in another terminal

Then, from a third one, five seconds of a user who may have five requests a second:

    for _ in $(seq 100); do curl -so /dev/null -w '%{http_code}\n' -H 'X-User: bob' \
        localhost:8000/; sleep 0.05; done | sort | uniq -c

      25 200      or some more: what he had not used when it began
      75 429

A second server with the same central (`NODE_ID=web-2`, port 8001) makes no difference to that.
Without a central the service goes on: each user has 10 requests a second on each server.

Each worker imports this file and has a `Node`; together they are one node of the central's, and
one of them talks to it. The lifespan starts and closes it. `/metrics` is left out of the quotas by
a user of None. A scrape of `/metrics` meets any of the workers, and only the one that reports
(`sluicegate_node_reporting` 1) has the times and connections: alert on `max_over_time` of some
minutes.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Response

from sluicegate import Node
from sluicegate.integrations import Request
from sluicegate.integrations.quota import QuotaASGIMiddleware, add

NOT_LIMITED = ("/health", "/metrics")

node = Node(
    os.environ.get("CENTRAL", "http://127.0.0.1:7411"),
    node_id=os.environ.get("NODE_ID", "web-1"),  # on each host another
    services=["front"],
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with node:
        yield


def user_of(request: Request) -> str | None:
    """Who asks. In front of this there is somebody who has checked X-User, and set it."""
    return None if request.path in NOT_LIMITED else request.header("x-user") or "nobody"


app = FastAPI(lifespan=lifespan)
app.add_middleware(QuotaASGIMiddleware, node=node, service="front", user=user_of)


@app.get("/")
async def index() -> dict[str, str]:
    add("database_read", 3)  # what only the application knows
    return {"hello": "world"}


@app.get("/health")
async def health() -> dict[str, bool]:
    return {"well": True}


@app.get("/metrics")
def metrics() -> Response:  # no coroutine: it may wait for the thread that reports
    return Response(node.metrics(), media_type="text/plain; version=0.0.4")
