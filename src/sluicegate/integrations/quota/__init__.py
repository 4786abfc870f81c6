"""Quotas for web applications: the middlewares of a `Node`, and `add` for what it costs besides.

app = QuotaASGIMiddleware(app, node, service="front", user="x-user")
app = QuotaWSGIMiddleware(app, node, service="front", user="x-user")

add("database_read", 3)      anywhere in the application, while a request runs
"""

from sluicegate.integrations.quota.asgi import QuotaASGIMiddleware
from sluicegate.integrations.quota.metering import (
    Meter,
    QuotaBody,
    UserFunction,
    add,
    throttled_problem,
)
from sluicegate.integrations.quota.wsgi import QuotaWSGIMiddleware

__all__ = [
    "Meter",
    "QuotaASGIMiddleware",
    "QuotaBody",
    "QuotaWSGIMiddleware",
    "UserFunction",
    "add",
    "throttled_problem",
]
