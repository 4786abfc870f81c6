"""The policies by name, for options and command lines."""

from collections.abc import Iterable
from typing import Any

from sluicegate.balance._balancer import Balancer
from sluicegate.balance._consistent_hash import ConsistentHash
from sluicegate.balance._least_loaded import LeastActive, LeastConnections, PeakEwma
from sluicegate.balance._round_robin import RoundRobin
from sluicegate.balance._weighted_random import WeightedRandom
from sluicegate.balance.server import Server

__all__ = ["POLICIES", "make"]

POLICIES: dict[str, type[Balancer]] = {
    "weighted_random": WeightedRandom,
    "round_robin": RoundRobin,
    "consistent_hash": ConsistentHash,
    "least_active": LeastActive,
    "least_connections": LeastConnections,
    "peak_ewma": PeakEwma,
}
_BY_LETTERS = {name.replace("_", ""): policy for name, policy in POLICIES.items()}


def make(name: str, servers: Iterable[Server | str] = (), **options: Any) -> Balancer:
    """A balancer by the name of its policy: "least_active", "LeastActive" or "least-active"."""
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, got {name!r}")
    policy = _BY_LETTERS.get(name.lower().replace("_", "").replace("-", ""))
    if policy is None:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {name!r}")
    return policy(servers, **options)
