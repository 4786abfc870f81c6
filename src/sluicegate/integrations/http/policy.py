"""`Policy`: a named limiter, and its part of the RateLimit header fields.

The fields are those of draft-ietf-httpapi-ratelimit-headers-11, structured as RFC 9651
says, all numbers integers:

    RateLimit-Policy: "api";q=100;w=60      100 units in 60 seconds: does not change
    RateLimit: "api";r=50;t=30              50 are left; in 30 s all will be there again

- A policy with several limits is several items, each with its time in the name:
  "api-1s" and "api-3600s". `RateLimit` speaks of the one that decided.
- `w` cannot be a fraction, and `q` of 0 would say nothing: "10 per 100 ms" is written as
  100 in 1 s, "0.5/second" as 1 in 2 s. What is left is rounded down, times up.
- When nothing is left, `t` is the time until one unit is there: a client that waits that
  long may go on. After a refusal it is the time until the same request would pass, so
  that it never lies behind `Retry-After`.
"""

import math

from sluicegate.integrations.http.limiters import AnyLimiter
from sluicegate.limits import Decision, Limit

__all__ = ["Policy", "as_string"]

MAX_INTEGER = 999_999_999_999_999  # the largest integer of a structured field


class Policy:
    """`text` is the policy's part of RateLimit-Policy; `state` makes its part of RateLimit."""

    __slots__ = ("_is_bucket", "_names", "_only", "_quoted", "limiter", "name", "text")

    def __init__(self, name: str, limiter: AnyLimiter) -> None:
        self.name = name
        self.limiter = limiter
        self._is_bucket = getattr(limiter, "algorithm", "token_bucket") == "token_bucket"
        self._quoted = as_string(name)
        self._names = _names(name, limiter.limits)
        self._only = limiter.limits[0] if len(limiter.limits) == 1 else None
        self.text = ", ".join(_policy_item(item, limit) for limit, item in self._names.items())

    def item_name(self, limit: Limit | None) -> str:
        """The name of one of its limits, as a structured string; a key's own has the rule's."""
        # To hash a limit costs a microsecond, and nearly every policy has but one.
        if limit is self._only or limit is None:
            return self._quoted
        return self._names.get(limit, self._quoted)

    def policy_text(self, decision: Decision) -> str:
        """As `text`, or of the limit that this key has of its own."""
        limit = decision.limit
        if limit is self._only or limit is None or limit in self._names:
            return self.text
        return _policy_item(self._quoted, limit)

    def state(self, decision: Decision, can_pass: bool = True) -> str:
        """The policy's part of RateLimit; without a time where no waiting helps."""
        left = min(int(decision.remaining), MAX_INTEGER)
        name = self.item_name(decision.limit)
        return f"{name};r={left};t={self.seconds(decision)}" if can_pass else f"{name};r={left}"

    def seconds(self, decision: Decision) -> int:
        """Until the same request would pass, or one unit is there, or else all of them are."""
        if not decision.allowed:
            return max(1, whole_seconds(decision.retry_after))
        limit = decision.limit
        if decision.remaining < 1.0 and self._is_bucket and limit is not None:
            until_one = (1.0 - decision.remaining) / limit.rate
            return max(1, whole_seconds(min(until_one, decision.reset_after)))
        return whole_seconds(decision.reset_after)


def whole_seconds(seconds: float) -> int:
    """Rounded up; a few nanoseconds over a whole second are rounding, not time."""
    return math.ceil(seconds - 1e-6) if seconds < MAX_INTEGER else MAX_INTEGER


def as_string(text: str) -> str:
    """A string of a structured field; ValueError for what it cannot hold."""
    if not text or not all(" " <= character <= "~" for character in text):
        raise ValueError(f"name must be printable ASCII and not empty, got {text!r}")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _names(name: str, limits: tuple[Limit, ...]) -> dict[Limit, str]:
    if len(limits) == 1:
        return {limits[0]: as_string(name)}
    names: dict[Limit, str] = {}
    for limit in limits:
        item = as_string(f"{name}-{limit.per:.15g}s")
        if item in names.values():
            item = as_string(f"{name}-{limit.per:.15g}s-{len(names) + 1}")
        names[limit] = item
    return names


def _policy_item(name: str, limit: Limit) -> str:
    window = math.ceil(limit.per)
    if limit.rate * window < 1.0:
        window = math.ceil(1.0 / limit.rate)
    # From whole limits come whole numbers: only a stretched window is rounded.
    quota = limit.amount if window == limit.per else limit.rate * window + 1e-9
    return f"{name};q={min(math.floor(quota), MAX_INTEGER)};w={min(window, MAX_INTEGER)}"
