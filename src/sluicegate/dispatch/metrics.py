"""The metrics of a worker and of a client, as Prometheus text: functions of what they counted.

Metrics that begin with `sluicegate_dispatch_queue_` are those of a whole queue, the same at all of
its workers: take their maximum over the workers, not their sum. Redis is asked for them at each
scrape; while it does not answer, they are left out and `sluicegate_dispatch_redis_up` is 0. The
others are totals of one process.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from sluicegate._prometheus import Rows, family, histogram
from sluicegate.dispatch.stats import Histogram, WorkerStats

if TYPE_CHECKING:
    from sluicegate.dispatch.queue_admin import QueueStatus

__all__ = ["client_text", "worker_text"]

_PREFIX = "sluicegate_dispatch_"
_DROPS = ("late", "hopeless", "cancelled", "buried")
_TASKS = (
    ("answered_total", "Requests that the handler has answered", "answered"),
    ("failed_total", "Requests that the handler has failed", "failed"),
    ("redelivered_total", "Requests that another worker had before", "redelivered"),
    ("disowned_total", "Requests that ended elsewhere before they ended here", "disowned"),
)
_HISTOGRAMS: tuple[tuple[str, str, Callable[[WorkerStats], Histogram]], ...] = (
    ("batch_size", "Requests per batch", lambda stats: stats.batch_sizes),
    (
        "wait_seconds",
        "Time from the call to the begin of its batch",
        lambda stats: stats.wait_seconds,
    ),
    ("run_seconds", "Time that a batch takes", lambda stats: stats.run_seconds),
)


def worker_text(
    stats: Mapping[str, WorkerStats],
    held: Mapping[str, int],
    statuses: "Mapping[str, QueueStatus] | None",
) -> str:
    """The metrics of a worker by queue: what it has done and holds, and the state of the queues.

    `statuses` is None if Redis has not answered.
    """
    lines = _family("redis_up", "gauge", "1 if Redis answers", [({}, statuses is not None)])
    if statuses is not None:
        lines += _queue_lines(statuses)
    lines += _family(
        "held", "gauge", "Requests that this worker has taken and not ended", _by_queue(held)
    )
    for name, help_text, task in _TASKS:
        counts = {queue: one.tasks[task] for queue, one in stats.items()}
        lines += _family(name, "counter", help_text, _by_queue(counts))
    lines += _family(
        "dropped_total",
        "counter",
        "Requests that were not run",
        [
            ({"queue": queue, "reason": reason}, one.tasks[reason])
            for queue, one in stats.items()
            for reason in _DROPS
        ],
    )
    for name, help_text, read in _HISTOGRAMS:
        found = [(queue, read(one)) for queue, one in stats.items()]
        lines += histogram(
            _PREFIX + name,
            help_text,
            [({"queue": queue}, one.bounds, one.counts, one.sum) for queue, one in found],
        )
    return "\n".join(lines) + "\n"


def client_text(outcomes: Mapping[str, Mapping[str, int]]) -> str:
    """The metrics of clients: calls by queue and outcome, as `Dispatcher.outcomes` has them."""
    rows = [
        ({"queue": queue, "outcome": outcome}, count)
        for queue, counts in outcomes.items()
        for outcome, count in counts.items()
    ]
    lines = _family("calls_total", "counter", "Calls that have ended, by outcome", rows)
    return "\n".join(lines) + "\n"


def _queue_lines(statuses: "Mapping[str, QueueStatus]") -> list[str]:
    lines: list[str] = []
    for name, help_text, counts in (
        (
            "queue_waiting",
            "Requests that no worker has taken",
            {queue: one.waiting for queue, one in statuses.items()},
        ),
        (
            "queue_running",
            "Requests that a worker has taken",
            {queue: one.running for queue, one in statuses.items()},
        ),
    ):
        rows = [
            ({"queue": queue, "priority": str(priority)}, count)
            for queue, by_priority in counts.items()
            for priority, count in by_priority.items()
        ]
        lines += _family(name, "gauge", help_text, rows)
    for name, help_text, values in (
        (
            "queue_workers",
            "Workers that are alive",
            {queue: len(one.workers) for queue, one in statuses.items()},
        ),
        (
            "queue_rate",
            "Requests per second that the workers can run, as they measure it",
            {queue: one.rate for queue, one in statuses.items() if one.rate is not None},
        ),
        (
            "queue_dead",
            "Requests on the dead list",
            {queue: one.dead for queue, one in statuses.items()},
        ),
        (
            "queue_draining",
            "1 while new requests are refused",
            {queue: one.is_draining for queue, one in statuses.items()},
        ),
    ):
        lines += _family(name, "gauge", help_text, _by_queue(values))
    return lines


def _by_queue(values: Mapping[str, float]) -> Iterable[tuple[dict[str, str], float]]:
    return [({"queue": queue}, value) for queue, value in values.items()]


def _family(name: str, kind: str, help_text: str, rows: Rows) -> list[str]:
    return family(_PREFIX + name, kind, help_text, rows)
