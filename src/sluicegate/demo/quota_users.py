"""The four users of `sluicegate demo`: their traffic, their limits and what must hold for each.

The traffic is deterministic (`Traffic`). Limits are requests per second. `burst_seconds` is how
much of the limit may be saved up: one second for those whose traffic is even, so that the limit can
be seen in every second.
"""

from dataclasses import dataclass

from sluicegate.demo.traffic import Traffic

__all__ = ["NODES", "USERS", "WORKERS", "Goals", "User"]

NODES = 3
WORKERS = 2  # processes of a node

_BURST, _BURST_PERIOD = (3.2, 4.7), 6.0  # seconds
# The node at which the hopper is, and for how many seconds.
_STAYS = ((0, 1.3), (1, 2.6), (2, 1.7), (1, 1.0), (0, 2.9), (2, 2.2), (0, 1.5), (1, 3.0), (2, 1.2))


@dataclass(frozen=True, slots=True)
class Goals:
    """The most that is allowed of what `verdict` measures.

    5 % and 2 % are the figures for real time. For two users 2 % from below would not be true,
    though nothing is lost to them for good: what was promised to a second in which the burst is
    over, or to a node which the hopper has left, is back in the bucket two slots later.

    `min_calm_seconds`: how many are needed to measure `under` on a busy machine. Users whose
    traffic comes and goes need more: what passes in a second depends on the seconds before it.
    """

    over_second: float | None
    over_run: float | None
    under: float
    min_calm_seconds: int = 3


@dataclass(frozen=True, slots=True)
class User:
    """One user. `traffic` is what it sends to each node."""

    name: str
    about: str
    limit: float
    burst_seconds: float
    traffic: tuple[Traffic, ...]
    goals: Goals
    saves: bool = False  # it is quiet for long enough to fill its bucket


def _everywhere(user: str, per_second: float) -> tuple[Traffic, ...]:
    return (Traffic(user, per_second / NODES),) * NODES


def _bursts(user: str, per_second: float) -> tuple[Traffic, ...]:
    return (Traffic(user, per_second / NODES, (_BURST,), _BURST_PERIOD),) * NODES


def _hops(user: str, per_second: float) -> tuple[Traffic, ...]:
    spans: list[list[tuple[float, float]]] = [[] for _ in range(NODES)]
    now = 0.0
    for node, seconds in _STAYS:
        spans[node].append((now, now + seconds))
        now += seconds
    return tuple(Traffic(user, per_second, of_node, period=now) for of_node in spans)


USERS = (
    User(
        "steady",
        "asks for 80 a second; while that is within its limit, it loses nothing",
        limit=100.0,
        burst_seconds=1.0,
        traffic=_everywhere("steady", 80.0),
        goals=Goals(over_second=0.05, over_run=None, under=0.02),
    ),
    User(
        "greedy",
        "asks for 600 a second; what passes is its limit, in every second",
        limit=200.0,
        burst_seconds=1.0,
        traffic=_everywhere("greedy", 600.0),
        goals=Goals(over_second=0.05, over_run=None, under=0.02),
    ),
    User(
        "bursty",
        "is quiet, then asks for 450 within 1.5 s: what it has saved up helps",
        limit=50.0,
        burst_seconds=10.0,
        traffic=_bursts("bursty", 300.0),
        goals=Goals(over_second=0.05, over_run=None, under=0.05, min_calm_seconds=13),
        saves=True,
    ),
    User(
        "hopper",
        "asks for 500 a second, at another node every 1 to 3 s",
        limit=100.0,
        burst_seconds=10.0,
        traffic=_hops("hopper", 500.0),
        goals=Goals(over_second=None, over_run=0.1, under=0.5, min_calm_seconds=13),
    ),
)
