"""`replay`: which policy would have had how many hits on a trace, at which capacity?

Each policy starts empty, is asked for each key in turn and stores what is missing, as a program
around a cache does. The row "optimal" is no policy: it is what a cache that knows the future would
reach (Belady's rule), so the gap to it is all that a better policy could gain.

Keys become numbers first, so the results are the same in every process, whatever the keys are.
"""

import os
from array import array
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from sluicegate._validate import check_whole
from sluicegate.cache._replay import count_hits, next_uses, optimal_hits
from sluicegate.cache.policies import POLICIES, make
from sluicegate.cache.trace import Trace

__all__ = ["DEFAULT_CAPACITIES", "OPTIMAL", "Replay", "TraceReplay", "policy_names", "replay"]

OPTIMAL = "optimal"
DEFAULT_CAPACITIES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5)  # parts of the distinct keys


class Replay(NamedTuple):
    """A trace through one cache."""

    policy: str
    capacity: int
    requests: int
    hits: int

    @property
    def hit_ratio(self) -> float:
        return self.hits / self.requests

    @property
    def miss_ratio(self) -> float:
        return 1.0 - self.hit_ratio


class TraceReplay:
    """A trace that is replayed many times."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._keys = list(range(trace.distinct))
        self._next_uses: array[int] | None = None

    def run(self, policy: str, capacity: int) -> Replay:
        trace = self.trace
        if policy == OPTIMAL:
            if self._next_uses is None:
                self._next_uses = next_uses(trace.numbers, trace.distinct)
            hits = optimal_hits(trace.numbers, self._next_uses, trace.distinct, capacity)
        else:
            hits = count_hits(make(policy, capacity), trace.numbers, self._keys)
        return Replay(policy, capacity, trace.requests, hits)

    def entries(self, capacities: Iterable[int | float]) -> list[int]:
        """Capacities in entries, in ascending order, each once. A float is a part of the keys."""
        found = set()
        for capacity in capacities:
            if isinstance(capacity, float):
                if not 0.0 < capacity < 1.0:
                    raise ValueError(
                        "a capacity must be an int, or a part of the distinct keys above 0.0 and "
                        f"below 1.0, got {capacity!r}"
                    )
                found.add(max(1, round(capacity * self.trace.distinct)))
            else:
                found.add(check_whole("a capacity", capacity, 1))
        if not found:
            raise ValueError("capacities must have at least one, got none")
        return sorted(found)


def policy_names(policies: Iterable[str] | None) -> list[str]:
    """Names as they are in `POLICIES`, or "optimal"; None: all of them."""
    known = [*POLICIES, OPTIMAL]
    if policies is None:
        return known
    if isinstance(policies, str):
        raise TypeError(f"policies must be several names, got {policies!r}")
    names = []
    for policy in policies:
        if not isinstance(policy, str):
            raise TypeError(f"a policy must be a name, got {policy!r}")
        name = policy.lower().replace("-", "").replace("_", "")
        if name not in known:
            raise ValueError(f"unknown policy {policy!r}: expected one of {', '.join(known)}")
        names.append(name)
    if not names:
        raise ValueError("policies must have at least one name, got none")
    return list(dict.fromkeys(names))


def replay(
    trace: str | os.PathLike[str] | Iterable[Hashable],
    policies: Iterable[str] | None = None,
    capacities: Iterable[int | float] = DEFAULT_CAPACITIES,
) -> list[Replay]:
    """The hits of all `policies` (and "optimal") on a trace, at all `capacities`.

    The trace is an iterable of keys, or a file (of `read_trace`, which see for tables). A
    capacity is a number of entries, or, as a float, a part of the distinct keys of the trace.
    The results are by policy, then by capacity.
    """
    names = policy_names(policies)
    capacities = list(capacities)
    runs = TraceReplay(Trace.load(trace))
    sizes = runs.entries(capacities)
    return [runs.run(name, size) for name in names for size in sizes]
