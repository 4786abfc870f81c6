"""The four users of `sluicegate demo`, and what must hold for each of them.

The traffic has no chance in it: the calls per second of a user at a node are a function of the
seconds since the traffic began. The workers of a node share them evenly.

Limits are requests per second. `burst_seconds` is how much of the limit may be saved up: one
second for those whose traffic is even, so that the limit can be seen in every second.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

__all__ = ["NODES", "RESOURCE", "SERVICE", "USERS", "WORKERS", "Goals", "User"]

SERVICE = "front"
RESOURCE = "requests"
NODES = 3
WORKERS = 2  # processes of a node

_PERIOD, _BURST_STARTS, _BURST_LASTS = 6.0, 3.2, 1.5  # seconds
_STAYS = ((0, 1.3), (1, 2.6), (2, 1.7), (1, 1.0), (0, 2.9), (2, 2.2), (0, 1.5), (1, 3.0), (2, 1.2))
_LEAVES = list(accumulate(seconds for _, seconds in _STAYS))


@dataclass(frozen=True, slots=True)
class Goals:
    """The most that is allowed of what `quota_record` measures.

    5 % and 2 % are the figures for real time. For two users 2 % from below would not be true,
    though nothing is lost to them for good: what was promised to a second in which the burst is
    over, or to a node which the hopper has left, is back in the bucket two slots later.

    `least_calm`: the calm seconds needed to measure `under` on a busy machine. Users whose traffic
    comes and goes need more: what passes in a second depends on the seconds before it.
    """

    over_second: float | None
    over_run: float | None
    under: float
    least_calm: int = 3


@dataclass(frozen=True, slots=True)
class User:
    """One user. `rate(node, t)`: his calls per second at a node, t seconds after the start."""

    name: str
    about: str
    limit: float
    burst_seconds: float
    rate: Callable[[int, float], float]
    goals: Goals
    saves: bool = False  # he is quiet for long enough to fill his bucket


def _everywhere(per_second: float) -> Callable[[int, float], float]:
    return lambda node, t: per_second / NODES


def _bursts(node: int, t: float) -> float:
    return 300.0 / NODES if 0 <= t % _PERIOD - _BURST_STARTS < _BURST_LASTS else 0.0


def _hops(node: int, t: float) -> float:
    place, _ = _STAYS[bisect_right(_LEAVES, t % _LEAVES[-1]) % len(_STAYS)]
    return 500.0 if place == node else 0.0


USERS = (
    User(
        "steady",
        "asks for 80 a second; while that is within his limit, he loses nothing",
        limit=100.0,
        burst_seconds=1.0,
        rate=_everywhere(80.0),
        goals=Goals(over_second=0.05, over_run=None, under=0.02),
    ),
    User(
        "greedy",
        "asks for 600 a second; what passes is his limit, in every second",
        limit=200.0,
        burst_seconds=1.0,
        rate=_everywhere(600.0),
        goals=Goals(over_second=0.05, over_run=None, under=0.02),
    ),
    User(
        "bursty",
        "is quiet, then asks for 450 within 1.5 s: what he has saved up helps him",
        limit=50.0,
        burst_seconds=10.0,
        rate=_bursts,
        goals=Goals(over_second=0.05, over_run=None, under=0.05, least_calm=13),
        saves=True,
    ),
    User(
        "hopper",
        "asks for 500 a second, at another node every 1 to 3 s",
        limit=100.0,
        burst_seconds=10.0,
        rate=_hops,
        goals=Goals(over_second=None, over_run=0.1, under=0.5, least_calm=13),
    ),
)
