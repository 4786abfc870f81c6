"""The status of a node of a pacing cluster, as data and as Prometheus text."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sluicegate._prometheus import Rows, family
from sluicegate.pacing._counter import ClusterCounter
from sluicegate.pacing._limiter import ClusterLimiter

__all__ = ["ClusterStatus", "prometheus_text"]

Labels = dict[str, str]


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """What `Cluster.status()` returns. Times are seconds."""

    name: str
    node_id: str
    is_started: bool
    is_in_touch: bool  # the last sync was answered
    nodes: int  # that are live, this one included, as of the last answer
    since_answer: float  # seconds since the last answered sync; infinite if there was none
    syncs: int  # answered
    failures: int
    last_error: str | None
    counters: int
    limiters: int
    problems: tuple[str, ...]  # of the files of definitions


# Of each limiter: those that go-cluster-limiter reports.
_LIMITER_METRICS: tuple[tuple[str, str, Callable[[ClusterLimiter], float]], ...] = (
    (
        "pass_rate",
        "Part of this node's requests that has passed of late",
        lambda one: one.pass_rate,
    ),
    (
        "ideal_pass_rate",
        "Part of the cluster's requests that must pass to stay on the line",
        lambda one: one.ideal_pass_rate,
    ),
    ("reward_rate", "Rewards per pass", lambda one: one.reward_rate),
    ("target", "Rewards to reach in a period", lambda one: one.target),
    ("ideal_reward", "Rewards that should be reached by now", lambda one: one.ideal_reward()),
    ("lag_seconds", "Time by which the cluster is behind the line", lambda one: one.lag),
    ("score_cut", "Score above which requests pass", lambda one: one.score_cut),
    ("ended", "1 after the end of a limiter with begin and end", lambda one: one.is_over),
)

# Of each counter. "last" is the cluster's sum at the last answered sync.
_COUNTER_METRICS: tuple[tuple[str, str, Callable[[ClusterCounter], float]], ...] = (
    ("local_sum", "Sum on this node in this period", lambda one: one.local()),
    ("local_count", "Calls on this node in this period", lambda one: one.local_count),
    ("estimated_sum", "The cluster's sum in this period, estimated", lambda one: one.value()),
    (
        "estimated_count",
        "The cluster's calls in this period, estimated",
        lambda one: one.cluster_count,
    ),
    ("last_sum", "The cluster's sum at the last answered sync", lambda one: _last(one, 2)),
    ("last_local_sum", "This node's sum at the last answered sync", lambda one: _last(one, 1)),
    ("share", "Part of the cluster's rate that is this node's", lambda one: one.share),
    ("per_second", "Rate of this node per second", lambda one: one.rate),
    ("cluster_per_second", "Rate of all nodes per second", lambda one: one.cluster_rate),
)
_KINDS = ("requests", "passes", "rewards")


def prometheus_text(
    status: ClusterStatus,
    counters: list[tuple[Labels, ClusterCounter]],
    limiters: list[tuple[Labels, ClusterLimiter]],
) -> str:
    """The status, and the counters and limiters with their labels, in the format of Prometheus."""
    me = {"cluster": status.name, "node": status.node_id}
    lines = list(_of_node(status, me))
    for name, help_text, read in _LIMITER_METRICS:
        values = [(me | labels, float(read(one))) for labels, one in limiters]
        # A limiter without scores has no cut.
        rows = [(labels, value) for labels, value in values if math.isfinite(value)]
        lines += _metric(f"limiter_{name}", "gauge", help_text, rows)
    for place, kind in enumerate(_KINDS):
        own = [(labels, (one.requests, one.passes, one.rewards)[place]) for labels, one in limiters]
        for name, help_text, value in _COUNTER_METRICS:
            rows = [(me | labels, float(value(one))) for labels, one in own]
            lines += _metric(
                f"limiter_{kind}_{name}",
                "gauge",
                f"Of {kind}: {help_text[0].lower()}{help_text[1:]}",
                rows,
            )
    for name, help_text, value in _COUNTER_METRICS:
        rows = [(me | labels, float(value(one))) for labels, one in counters]
        lines += _metric(f"counter_{name}", "gauge", help_text, rows)
    return "\n".join(lines) + "\n"


def _of_node(status: ClusterStatus, me: Labels) -> Iterator[str]:
    for name, kind, help_text, value in (
        ("started", "gauge", "1 if the thread that syncs runs", status.is_started),
        ("in_touch", "gauge", "1 if the last sync was answered", status.is_in_touch),
        ("nodes", "gauge", "Live nodes of the cluster, this one included", status.nodes),
        (
            "since_answer_seconds",
            "gauge",
            "Time since the last answered sync",
            status.since_answer,
        ),
        ("syncs_total", "counter", "Syncs that the store has answered", status.syncs),
        ("sync_failures_total", "counter", "Syncs that failed", status.failures),
        (
            "definition_problems",
            "gauge",
            "Entries of definition files that cannot be used",
            len(status.problems),
        ),
    ):
        yield from _metric(name, kind, help_text, [(me, float(value))])


def _last(counter: ClusterCounter, place: int) -> float:
    history = counter.history
    return history[-1][place] if history else 0.0


def _metric(name: str, kind: str, help_text: str, rows: Rows) -> list[str]:
    return family(f"sluicegate_pacing_{name}", kind, help_text, rows)
