"""Which of several servers to pick: policies, health, and load that servers report."""

from typing import TYPE_CHECKING

from sluicegate._lazy import lazy_exports

if TYPE_CHECKING:
    from sluicegate.balance._balancer import Balancer, Call
    from sluicegate.balance._consistent_hash import ConsistentHash
    from sluicegate.balance._least_loaded import LeastActive, LeastConnections, PeakEwma
    from sluicegate.balance._round_robin import RoundRobin
    from sluicegate.balance._weighted_random import WeightedRandom
    from sluicegate.balance.health_checks import HealthChecks
    from sluicegate.balance.policies import POLICIES, make
    from sluicegate.balance.server import Health, NoServers, Server, ServerStatus

__all__ = [
    "POLICIES",
    "Balancer",
    "Call",
    "ConsistentHash",
    "Health",
    "HealthChecks",
    "LeastActive",
    "LeastConnections",
    "NoServers",
    "PeakEwma",
    "RoundRobin",
    "Server",
    "ServerStatus",
    "WeightedRandom",
    "make",
]

__getattr__ = lazy_exports(
    globals(),
    {
        "sluicegate.balance._balancer": ["Balancer", "Call"],
        "sluicegate.balance._consistent_hash": ["ConsistentHash"],
        "sluicegate.balance._least_loaded": ["LeastActive", "LeastConnections", "PeakEwma"],
        "sluicegate.balance._round_robin": ["RoundRobin"],
        "sluicegate.balance._weighted_random": ["WeightedRandom"],
        "sluicegate.balance.health_checks": ["HealthChecks"],
        "sluicegate.balance.policies": ["POLICIES", "make"],
        "sluicegate.balance.server": ["Health", "NoServers", "Server", "ServerStatus"],
    },
)
