"""The six users of `sluicegate demo`: their traffic, their limits and what must hold for each.

The traffic is deterministic (`Traffic`); its requests may wait for the central's answer, as those
of the middlewares do. `burst_seconds` is how much of the limits may be saved up: one second for
those whose traffic is even, so that the limit can be seen in every second.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluicegate.demo.traffic import RESOURCE, Traffic

__all__ = ["NODES", "USERS", "WORKERS", "Goals", "User"]

NODES = 3
WORKERS = 2  # processes of a node

# It ends with a second: in a part of one there would be a part of its refill.
_BURST, _BURST_PERIOD = (3.5, 5.0), 6.0  # seconds
# The node at which the hopper is, and for how many seconds.
_STAYS = ((0, 1.3), (1, 2.6), (2, 1.7), (1, 1.0), (0, 2.9), (2, 2.2), (0, 1.5), (1, 3.0), (2, 1.2))


@dataclass(frozen=True, slots=True)
class Goals:
    """The most that is allowed of what `verdict` measures.

    5 % and 2 % are the figures for real time. Users whose traffic comes and goes may lack a bit
    more: a node that they come to has to ask first, and so have all of them when a burst begins.
    Of a thin user there are too few requests to measure less than one of twenty.

    `min_calm_seconds`: how many are needed to measure `under` on a busy machine. Users whose
    traffic comes and goes need more: what passes in a second depends on the seconds before it.
    """

    over: float = 0.05
    under: float = 0.02
    min_calm_seconds: int = 3


@dataclass(frozen=True, slots=True)
class User:
    """One user. `traffic` is what it sends to each node; `limits`, what it may have per second."""

    name: str
    about: str
    limits: Mapping[str, float]
    burst_seconds: float
    traffic: tuple[Traffic, ...]
    goals: Goals = field(default_factory=Goals)
    saves: bool = False  # it is quiet for long enough to fill its bucket

    def requests_within(self, limits: Mapping[str, float]) -> float | None:
        """Requests per second that limits allow, by the scarcest resource; None: no limit."""
        costs = self.traffic[0].costs
        return min(
            (limits[resource] / cost for resource, cost in costs.items() if resource in limits),
            default=None,
        )

    @property
    def limit(self) -> float | None:
        """Requests per second, as the demo begins."""
        return self.requests_within(self.limits)


def _everywhere(user: str, per_second: float, **costs: float) -> tuple[Traffic, ...]:
    costs = costs or {RESOURCE: 1.0}
    return (Traffic(user, per_second / NODES, costs=costs, waits=True),) * NODES


def _bursts(user: str, per_second: float) -> tuple[Traffic, ...]:
    return (Traffic(user, per_second / NODES, (_BURST,), _BURST_PERIOD, waits=True),) * NODES


def _hops(user: str, per_second: float) -> tuple[Traffic, ...]:
    spans: list[list[tuple[float, float]]] = [[] for _ in range(NODES)]
    now = 0.0
    for node, seconds in _STAYS:
        spans[node].append((now, now + seconds))
        now += seconds
    return tuple(Traffic(user, per_second, of_node, now, waits=True) for of_node in spans)


USERS = (
    User(
        "steady",
        "asks for 80 a second; while that is within its limit, it loses nothing",
        limits={RESOURCE: 100.0},
        burst_seconds=1.0,
        traffic=_everywhere("steady", 80.0),
    ),
    User(
        "greedy",
        "asks for 600 a second; what passes is its limit, in every second",
        limits={RESOURCE: 200.0},
        burst_seconds=1.0,
        traffic=_everywhere("greedy", 600.0),
    ),
    User(
        "bursty",
        "is quiet, then asks for 450 within 1.5 s: what it has saved up passes",
        limits={RESOURCE: 50.0},
        burst_seconds=10.0,
        traffic=_bursts("bursty", 300.0),
        goals=Goals(under=0.05, min_calm_seconds=13),
        saves=True,
    ),
    User(
        "hopper",
        "asks for 500 a second, at another node every 1 to 3 s: it has its limit",
        limits={RESOURCE: 100.0},
        burst_seconds=10.0,
        traffic=_hops("hopper", 500.0),
        goals=Goals(under=0.05, min_calm_seconds=13),
    ),
    User(
        "thin",
        "asks for 3 in 2 s, half of its limit, now here, now there: none is refused",
        limits={RESOURCE: 3.0},
        burst_seconds=10.0,
        traffic=_everywhere("thin", 1.5),
        goals=Goals(under=0.05, min_calm_seconds=13),
    ),
    User(
        "dual",
        "asks for 300 a second of 8 tokens each; it may have 820 tokens a second, too",
        limits={RESOURCE: 100.0, "tokens": 820.0},
        burst_seconds=1.0,
        traffic=_everywhere("dual", 300.0, requests=1.0, tokens=8.0),
    ),
)
