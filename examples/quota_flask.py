r"""Flask under gunicorn, with quotas that hold for all servers together.

    pip install 'sluicegate[server]' flask gunicorn
    sluicegate central --limits examples/quota_limits.toml
    gunicorn --workers 4 --threads 2 --preload 'examples.quota_flask:create_app()'

Then, from a third terminal, five seconds of a user who may have five requests a second:

    for _ in $(seq 100); do curl -so /dev/null -w '%{http_code}\n' -H 'X-User: bob' \
        localhost:8000/; sleep 0.05; done | sort | uniq -c

      25 200      or some more: what he had not used when it began
      75 429

With or without `--preload`: a node that was started before a fork goes on in each child by itself,
and together the workers are one node of the central's. Nobody calls `close`: a worker that exits
closes it, and the last one says to the central that the node leaves.

`/metrics` is left out of the quotas by a user of None. A scrape meets any of the workers, and only
the one that reports (`sluicegate_node_reporting` 1) has the times and connections: alert on
`max_over_time` of some minutes.
"""

import os

from flask import Flask, Response

from sluicegate import Node
from sluicegate.integrations import Request
from sluicegate.integrations.quota import QuotaWSGIMiddleware, add

NOT_LIMITED = ("/health", "/metrics")


def user_of(request: Request) -> str | None:
    """Who asks. In front of this there is somebody who has checked X-User, and set it."""
    return None if request.path in NOT_LIMITED else request.header("x-user") or "nobody"


def create_app() -> Flask:
    node = Node(
        os.environ.get("CENTRAL", "http://127.0.0.1:7411"),
        node_id=os.environ.get("NODE_ID", "web-1"),  # on each host another
        services=["front"],
    )
    node.start()
    app = Flask(__name__)
    app.wsgi_app = QuotaWSGIMiddleware(  # type: ignore[method-assign]
        app.wsgi_app, node, service="front", user=user_of
    )

    @app.get("/")
    def index() -> str:
        add("database_read", 3)  # what only the application knows
        return "hello\n"

    @app.get("/health")
    def health() -> str:
        return "well\n"

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(node.metrics(), content_type="text/plain; version=0.0.4")

    return app
