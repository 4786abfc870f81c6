"""Limits where requests come in: ASGI, WSGI, FastAPI, Flask, Django; and where they go out: httpx.

A `Rule` says which requests, whose and how much; a key function says whose. They are the
same under every framework, and this package imports none. Each framework has a file of
its own, which does:

    headgate.integrations.asgi      RateLimitMiddleware
    headgate.integrations.wsgi      RateLimitMiddleware
    headgate.integrations.fastapi   limit(...), a dependency
    headgate.integrations.flask     RateLimit, an extension
    headgate.integrations.django    RateLimitMiddleware, limit(...) for views
    headgate.integrations.httpx     RateLimitTransport, AsyncRateLimitTransport

Inside, `gate.py` turns rules and a request into a verdict, `answers.py` turns a verdict
into header fields and a body, both without a framework; the rest are thin shells.
"""

from headgate.integrations.answers import problem
from headgate.integrations.gate import Outcome
from headgate.integrations.keys import by_address, by_header, by_user
from headgate.integrations.limiters import AsyncLimiter, Limiter
from headgate.integrations.requests import Request
from headgate.integrations.rules import Rule

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
