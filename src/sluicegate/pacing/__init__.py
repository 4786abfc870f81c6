"""A cluster limiter with no coordinator: counters that sync through a store, paced to a target."""

from typing import TYPE_CHECKING

from sluicegate._lazy import lazy_exports

if TYPE_CHECKING:
    from sluicegate.pacing._counter import ClusterCounter
    from sluicegate.pacing._limiter import ClusterLimiter
    from sluicegate.pacing.cluster import Cluster

__all__ = ["Cluster", "ClusterCounter", "ClusterLimiter"]

__getattr__ = lazy_exports(
    globals(),
    {
        "sluicegate.pacing._counter": ["ClusterCounter"],
        "sluicegate.pacing._limiter": ["ClusterLimiter"],
        "sluicegate.pacing.cluster": ["Cluster"],
    },
)
