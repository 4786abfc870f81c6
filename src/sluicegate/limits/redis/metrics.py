"""`RedisMetrics`: how a limiter over Redis is doing, at one moment."""

from dataclasses import dataclass

__all__ = ["RedisMetrics"]


@dataclass(frozen=True, slots=True)
class RedisMetrics:
    """Counts are since the limiter was made; seconds are seconds.

    - `state`: "redis" (it is asked), "local" (it is away; `on_error` decides) or
      "probing" (as local, and one call is looking whether it is back).
    - `calls`: decisions; `allowed` and `denied` of them.
    - `decided_locally`: of all decisions, those made without Redis: from leases, from a
      remembered denial, or because it was away.
    - `errors`: questions to Redis that failed; `last_error` says how the last one did.
    - `backoff`: seconds until Redis is asked again; 0 in the state "redis".
    - `nodes`: processes that are known to share the limit.
    - `leases`: keys with leased permits at hand; `lot`: the most that is taken at once.
      Both 0 in exact mode.
    """

    state: str
    calls: int
    allowed: int
    denied: int
    decided_locally: int
    errors: int
    last_error: str
    backoff: float
    nodes: int
    leases: int
    lot: float
