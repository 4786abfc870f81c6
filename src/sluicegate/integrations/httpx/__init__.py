"""httpx transports: within limits (`rate_limit.py`), over several servers (`balance.py`)."""

try:
    import httpx as _httpx  # noqa: F401  checked here, once for all files of this folder
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        "sluicegate.integrations.httpx needs httpx: pip install httpx", name=_missing.name
    ) from _missing

from sluicegate.integrations.httpx.balance import AsyncBalancedTransport, BalancedTransport
from sluicegate.integrations.httpx.rate_limit import (
    AsyncRateLimitTransport,
    AsyncWaitingLimiter,
    RateLimitTransport,
    WaitingLimiter,
)
from sluicegate.integrations.httpx.request_balancer import NoServersAvailable
from sluicegate.integrations.retry_budget import RetryBudget

__all__ = [
    "AsyncBalancedTransport",
    "AsyncRateLimitTransport",
    "AsyncWaitingLimiter",
    "BalancedTransport",
    "NoServersAvailable",
    "RateLimitTransport",
    "RetryBudget",
    "WaitingLimiter",
]
