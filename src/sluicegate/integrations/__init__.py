"""Limits where requests come in: ASGI, WSGI, FastAPI, Flask, Django; and where they go out: httpx.

A `Rule` says which requests, whose and how much; a key function says whose. They are the
same under every framework, and this package imports none. Each framework has a file of
its own, which does:

    sluicegate.integrations.asgi      RateLimitMiddleware
    sluicegate.integrations.wsgi      RateLimitMiddleware
    sluicegate.integrations.fastapi   limit(...), a dependency
    sluicegate.integrations.flask     RateLimit, an extension
    sluicegate.integrations.django    RateLimitMiddleware, limit(...) for views
    sluicegate.integrations.httpx     RateLimitTransport, AsyncRateLimitTransport

Requests that go out are also balanced over several servers, and a server tells its clients how
busy it is:

    sluicegate.integrations.httpx         BalancedTransport, AsyncBalancedTransport
    sluicegate.integrations.load_report   LoadReportMiddleware, WsgiLoadReportMiddleware

Inside, `gate.py` turns rules and a request into a verdict, `responses.py` turns a verdict
into header fields and a body, both without a framework; the rest are thin shells.
"""

from sluicegate.integrations.http.gate import Outcome
from sluicegate.integrations.http.keys import by_address, by_header, by_user
from sluicegate.integrations.http.limiters import AsyncLimiter, Limiter
from sluicegate.integrations.http.request import Request
from sluicegate.integrations.http.responses import problem
from sluicegate.integrations.http.rules import Rule

__all__ = [
    "AsyncLimiter",
    "Limiter",
    "Outcome",
    "Request",
    "Rule",
    "by_address",
    "by_header",
    "by_user",
    "problem",
]
