"""What a central counts of itself, and how Prometheus reads it.

The server calls the small methods as things happen (on its loop: there is no lock), and
`slot_over` once a slot. Everything else (connections, cells, limits) is looked up when someone
asks, by `render`. The registry is made for each answer, so that two centrals in one process do
not see each other.

- overshoot: for each user with a limit and with traffic in a slot, what all nodes together let
  through, divided by what the limit gives in a slot, minus 1. 0 is the limit to the unit. A burst
  that was saved up is above it and is no fault; without bursts what is above is. At most
  `_LOOKED_AT` buckets are looked at in a slot, of a larger ledger another part each time.
- quota age: slots since a live node that is connected was last sent a quota. 1 is as it should be.

All names begin with sluicegate_central_. Times are seconds.
"""

import importlib.metadata
import time
from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sluicegate.quota.central.http.health import CentralView
from sluicegate.quota.central.http.histogram import Bins
from sluicegate.quota.central.net.connection import CLASSIC, V1
from sluicegate.quota.ledger._queries import count_overshoots, size

__all__ = ["CONTENT_TYPE", "CentralMetrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX = "sluicegate_central_"
_OVERSHOOT = (-0.5, -0.2, -0.1, -0.05, -0.02, -0.01, 0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_AGE = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
_SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
_LOOKED_AT = 200_000
_MOST_LABELS = 32  # of one kind: what comes from outside must not become labels without end


class CentralMetrics:
    """The counters of one central."""

    def __init__(self) -> None:
        self._frames: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()
        self._bad_frames = 0
        self._answers = Bins(_SECONDS)
        self._assignments = Bins(_SECONDS)
        self._overshoot = Bins(_OVERSHOOT)
        self._ages = Bins(_AGE)
        self._state_seconds = Bins(_SECONDS)
        self._state_bytes = 0
        self._state_errors = 0
        self._state_written_at: float | None = None  # wall; None: there is no state file
        self._slot: int | None = None  # the last one that was looked at
        self._next_bucket = 0

    def __repr__(self) -> str:
        return f"CentralMetrics(frames={self._frames.total()}, refusals={dict(self._refusals)})"

    # What happened

    def frame(self, kind: str, size: int) -> None:
        """A frame came in or went out; `kind` says which: report, ask, ack, quota, ..."""
        kind = _label(self._frames, kind)
        self._frames[kind] += 1
        self._bytes[kind] += size

    def refused(self, reason: str) -> None:
        """A connection was refused or closed. Of the reason, what is before a colon counts."""
        self._refusals[_label(self._refusals, reason.partition(":")[0].strip())] += 1

    def bad_frame(self) -> None:
        self._bad_frames += 1

    def answered(self, seconds: float) -> None:
        """A frame was answered, so long after it had come."""
        self._answers.observe(seconds)

    def assigned(self, seconds: float, cells: int) -> None:
        """An assignment took so long, over so many cells."""
        self._assignments.observe(seconds)

    def keeps_state(self) -> None:
        """There is a state file, which is as old as we are until it is written."""
        self._state_written_at = time.time()

    def state_failed(self) -> None:
        """It could not be written."""
        self._state_errors += 1

    def state_written(self, seconds: float, size: int) -> None:
        self._state_seconds.observe(seconds)
        self._state_bytes = size
        self._state_written_at = time.time()

    def slot_over(self, view: CentralView, slot: int) -> None:
        """`slot` is over and its reports are in: to be called after the assignment that follows."""
        now = view.now()
        slot = min(slot, view.state.slot(now) - 1)
        if self._slot is not None and slot == self._slot:
            return
        self._slot = slot
        for age in _quota_ages(view, now):
            self._ages.observe(age)
        self._look_at_overshoot(view, slot)

    def _look_at_overshoot(self, view: CentralView, slot: int) -> None:
        books = list(view.state.ledger.books.values())
        everything = sum(size(book) for book in books)
        skipped = self._next_bucket if everything > _LOOKED_AT else 0
        left = _LOOKED_AT
        for book in books:
            in_book = size(book)
            if skipped < in_book and left > 0:
                self._overshoot.add(count_overshoots(book, slot, _OVERSHOOT, skipped, left))
                left -= min(left, in_book - skipped)
            skipped = max(0, skipped - in_book)
        end = self._next_bucket + _LOOKED_AT
        self._next_bucket = end if end < everything else 0

    # What Prometheus reads

    def render(self, view: CentralView) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        registry.register(_Reading(self, view))
        return generate_latest(registry)

    def families(self, view: CentralView) -> Iterator[Metric]:
        """Everything there is to tell, as it is now."""
        yield from self._of_central(view)
        yield from self._of_frames()
        yield from self._of_limits(view)
        if self._state_written_at is not None:
            age = max(0.0, time.time() - self._state_written_at)
            yield _gauge("state_age_seconds", "since the state file was written, or the start", age)
            yield _counter(
                "state_write_errors", "how often it could not be written", self._state_errors
            )
            yield _gauge("state_bytes", "size of the state file", self._state_bytes)
            yield self._state_seconds.family(
                f"{_PREFIX}state_write_seconds", "how long it took to write the state file"
            )

    def _of_central(self, view: CentralView) -> Iterator[Metric]:
        state, now = view.state, view.now()
        ledger = state.ledger
        info = GaugeMetricFamily(
            f"{_PREFIX}info", "the name and the version of the central", labels=["name", "version"]
        )
        info.add_metric([view.name, importlib.metadata.version("sluicegate")], 1)
        yield info
        yield _gauge("leads", "1: it is the active one, 0: it stands by", state.leads)
        yield _gauge("epoch", "of the leadership", state.epoch)
        yield _gauge("slot", "the slot that it is now", state.slot(now))
        yield _gauge("start_time_seconds", "when it was started (Unix time)", view.started)
        connections = GaugeMetricFamily(
            f"{_PREFIX}connections", "open connections of nodes", labels=["kind"]
        )
        kinds = Counter(each.kind for each in view.connections())
        for kind, count in sorted(({V1: 0, CLASSIC: 0} | kinds).items()):  # a 0 is told too
            connections.add_metric([kind], count)
        yield connections
        live = len(ledger.live_nodes(state.slot(now)))
        yield _gauge("nodes_live", "nodes that report", live)
        yield _gauge("cells", "users and resources on nodes that the ledger knows", ledger.cells)
        yield self._assignments.family(
            f"{_PREFIX}assignment_seconds", "how long an assignment took"
        )
        yield self._overshoot.family(
            f"{_PREFIX}overshoot",
            "of each limited user with traffic in a slot: consumed / limit - 1",
            has_sum=False,  # it may fall, which no counter may
        )
        ages = _quota_ages(view, now)
        yield _gauge("quota_age_max_slots", "the oldest quota in use", max(ages, default=0.0))
        yield self._ages.family(
            f"{_PREFIX}quota_age_slots", "slots since a live node was last sent a quota"
        )
        yield _counters("service_errors", "errors in a service", "service", ledger.errors)

    def _of_frames(self) -> Iterator[Metric]:
        reports = sum(count for kind, count in self._frames.items() if kind.endswith("report"))
        yield _counter("reports", "reports of nodes", reports)
        yield _counters("frames", "frames in and out", "kind", self._frames)
        yield _counters("frame_bytes", "bytes of frames in and out", "kind", self._bytes)
        yield _counter("bad_frames", "frames that made no sense", self._bad_frames)
        yield _counters("refusals", "connections refused or closed", "reason", self._refusals)
        yield self._answers.family(f"{_PREFIX}answer_seconds", "from a frame to its answer")

    def _of_limits(self, view: CentralView) -> Iterator[Metric]:
        keeper = view.keeper
        yield _gauge("limits", "entries in force", len(keeper.entries))
        yield _gauge("limits_complaints", "entries that were left out", len(keeper.complaints))
        yield _gauge(
            "limits_failing",
            "1: the source cannot be read, old limits hold",
            keeper.error is not None,
        )
        yield _counter("limits_errors", "how often the source could not be read", keeper.errors)
        if keeper.loaded_at is not None:
            yield _gauge(
                "limits_loaded_time_seconds", "when they were read (Unix time)", keeper.loaded_at
            )


class _Reading(Collector):
    """One look at one central."""

    def __init__(self, metrics: CentralMetrics, view: CentralView) -> None:
        self._metrics = metrics
        self._view = view

    def collect(self) -> Iterator[Metric]:
        return self._metrics.families(self._view)


def _quota_ages(view: CentralView, now: float) -> list[float]:
    """Slots since each live node that is connected was last sent a quota."""
    ledger = view.state.ledger
    slot = view.state.slot(now)
    return [
        max(0.0, (now - each.quota_sent) / ledger.slot_seconds)
        for each in view.connections()
        if each.quota_sent is not None and each.node is not None and ledger.is_live(each.node, slot)
    ]


def _label(seen: Counter[str], label: str) -> str:
    return label if label in seen or len(seen) < _MOST_LABELS else "other"


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value=value)


def _counters(name: str, text: str, label: str, values: "dict[str, int]") -> Metric:
    family = CounterMetricFamily(_PREFIX + name, text, labels=[label])
    for value, count in sorted(values.items()):
        family.add_metric([value], count)
    return family
