"""`Histogram`: counts values by bucket; adding one takes a fraction of a microsecond.

prometheus_client's own takes a lock and a linear search for each value; these are filled on the
loop alone, and only read for Prometheus.
"""

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.samples import Sample

__all__ = ["Histogram"]


class Histogram:
    """Counts by increasing upper edges; the last count is of values above all of them."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: Sequence[float]) -> None:
        self.edges = tuple(edges)
        self.counts = [0] * (len(self.edges) + 1)
        self.total = 0.0

    def __repr__(self) -> str:
        return f"Histogram({dict(zip((*self.edges, 'more'), self.counts, strict=True))})"

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value

    def add(self, counts: Sequence[int]) -> None:
        """Add counts by the same edges from elsewhere; the sum of their values is unknown."""
        self.counts = [mine + more for mine, more in zip(self.counts, counts, strict=True)]

    def family(self, name: str, text: str, *, has_sum: bool = True) -> HistogramMetricFamily:
        """As a Prometheus metric: each bucket includes all below it."""
        below = 0
        buckets: list[tuple[str, float]] = []
        for edge, count in zip((*map(str, self.edges), "+Inf"), self.counts, strict=True):
            below += count
            buckets.append((edge, below))
        total = self.total if has_sum else None
        family = HistogramMetricFamily(name, text, buckets=buckets, sum_value=total)
        if not has_sum:
            family.samples.append(Sample(f"{name}_count", {}, below))
        return family
