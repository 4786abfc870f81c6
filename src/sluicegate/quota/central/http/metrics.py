"""`CentralMetrics`: the counters of a central, and their Prometheus format.

The server calls the small methods as things happen (on its loop: there is no lock), and
`record_slot` once a slot. Everything else (connections, cells, limits) is read by `render` at each
scrape. The Prometheus registry is created for each scrape, so that two centrals in one process do
not see each other.

- overshoot: for each user with a limit and with traffic in a slot, what all nodes together let
  through, divided by what the limit gives in a slot, minus 1. 0 is exactly the limit. A burst from
  saved tokens is above it and is no fault; without bursts anything above 0 is. At most
  `_MAX_BUCKETS_PER_SLOT` buckets are examined in a slot; of a larger ledger a different part each
  time.
- quota age: slots since a live node that is connected was last sent a quota. 1 is normal.

All names begin with sluicegate_central_. Times are seconds.
"""

import importlib.metadata
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sluicegate.quota.central.http.histogram import Histogram
from sluicegate.quota.central.net.connection import CLASSIC, V1
from sluicegate.quota.ledger._queries import bucket_count, count_overshoots

if TYPE_CHECKING:
    from sluicegate.quota.central.net.registry import ConnectionRegistry

__all__ = ["CONTENT_TYPE", "CentralMetrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX = "sluicegate_central_"
_OVERSHOOT = (-0.5, -0.2, -0.1, -0.05, -0.02, -0.01, 0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_AGE = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
_SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
_MAX_BUCKETS_PER_SLOT = 200_000
_MAX_LABELS = 32  # of one kind: input from the network must not create labels without bound


class CentralMetrics:
    """The counters of one central."""

    def __init__(self) -> None:
        self._frames: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()
        self._bad_frames = 0
        self._answers = Histogram(_SECONDS)
        self._assignments = Histogram(_SECONDS)
        self._overshoot = Histogram(_OVERSHOOT)
        self._ages = Histogram(_AGE)
        self._state_seconds = Histogram(_SECONDS)
        self._state_bytes = 0
        self._state_errors = 0
        self._state_written_at: float | None = None  # wall; None: there is no state file
        self._slot: int | None = None  # the last one that was recorded
        self._next_bucket = 0

    def __repr__(self) -> str:
        return f"CentralMetrics(frames={self._frames.total()}, refusals={dict(self._refusals)})"

    # What happened

    def frame(self, kind: str, size: int) -> None:
        """A frame was received or sent; `kind` is report, ask, ack, quota, ..."""
        kind = _label(self._frames, kind)
        self._frames[kind] += 1
        self._bytes[kind] += size

    def refused(self, reason: str) -> None:
        """A connection was refused or closed. The label is the reason up to its colon."""
        self._refusals[_label(self._refusals, reason.partition(":")[0].strip())] += 1

    def bad_frame(self) -> None:
        self._bad_frames += 1

    def answered(self, seconds: float) -> None:
        """A frame was answered, `seconds` after it was received."""
        self._answers.observe(seconds)

    def assigned(self, seconds: float) -> None:
        """An assignment took `seconds`."""
        self._assignments.observe(seconds)

    def state_file_opened(self) -> None:
        """There is a state file; until it is written its age counts from now."""
        self._state_written_at = time.time()

    def state_failed(self) -> None:
        """The state file could not be written."""
        self._state_errors += 1

    def state_written(self, seconds: float, size: int) -> None:
        self._state_seconds.observe(seconds)
        self._state_bytes = size
        self._state_written_at = time.time()

    def record_slot(self, registry: "ConnectionRegistry", slot: int) -> None:
        """`slot` is over and its reports are in: to be called after the assignment that follows."""
        now = registry.now()
        slot = min(slot, registry.state.slot(now) - 1)
        if self._slot is not None and slot == self._slot:
            return
        self._slot = slot
        for age in _quota_ages(registry, now):
            self._ages.observe(age)
        self._record_overshoot(registry, slot)

    def _record_overshoot(self, registry: "ConnectionRegistry", slot: int) -> None:
        service_ledgers = list(registry.state.ledger.service_ledgers.values())
        everything = sum(bucket_count(service_ledger) for service_ledger in service_ledgers)
        skipped = self._next_bucket if everything > _MAX_BUCKETS_PER_SLOT else 0
        left = _MAX_BUCKETS_PER_SLOT
        for service_ledger in service_ledgers:
            in_service = bucket_count(service_ledger)
            if skipped < in_service and left > 0:
                self._overshoot.add(
                    count_overshoots(service_ledger, slot, _OVERSHOOT, skipped, left)
                )
                left -= min(left, in_service - skipped)
            skipped = max(0, skipped - in_service)
        end = self._next_bucket + _MAX_BUCKETS_PER_SLOT
        self._next_bucket = end if end < everything else 0

    # What Prometheus reads

    def render(self, registry: "ConnectionRegistry") -> bytes:
        collectors = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=collectors)
        collectors.register(_CentralCollector(self, registry))
        return generate_latest(collectors)

    def families(self, registry: "ConnectionRegistry") -> Iterator[Metric]:
        """All metrics, with their current values."""
        yield from self._of_central(registry)
        yield from self._of_frames()
        yield from self._of_limits(registry)
        if self._state_written_at is not None:
            age = max(0.0, time.time() - self._state_written_at)
            yield _gauge("state_age_seconds", "age of the state file, or time since the start", age)
            yield _counter(
                "state_write_errors", "failed writes of the state file", self._state_errors
            )
            yield _gauge("state_bytes", "size of the state file", self._state_bytes)
            yield self._state_seconds.family(
                f"{_PREFIX}state_write_seconds", "time to write the state file"
            )

    def _of_central(self, registry: "ConnectionRegistry") -> Iterator[Metric]:
        state, now = registry.state, registry.now()
        ledger = state.ledger
        info = GaugeMetricFamily(
            f"{_PREFIX}info", "name and version of the central", labels=["name", "version"]
        )
        info.add_metric([registry.name, importlib.metadata.version("sluicegate")], 1)
        yield info
        yield _gauge("leads", "1 if active, 0 if standby", state.leads)
        yield _gauge("epoch", "epoch of the leadership", state.epoch)
        led = GaugeMetricFamily(
            f"{_PREFIX}leads_service",
            "1 if it leads the service, 0 if another central does, by what it knows",
            labels=["service"],
        )
        for service in ledger.services:
            led.add_metric([service], state.leads_service(service))
        yield led
        warm = registry.warm_up.is_warm(now)
        yield _gauge("warm", "1 if it knows enough of the fleet to take over without a seam", warm)
        yield _counter("elections", "how often it became active", registry.leadership.wins)
        peers = [peer for peer in registry.leadership.peers if peer.is_connected is not None]
        yield _gauge("peers", "other members of the election", len(peers))
        connected = sum(bool(peer.is_connected) for peer in peers)
        yield _gauge("peers_connected", "members to which there is a connection", connected)
        yield _gauge("slot", "current slot", state.slot(now))
        yield _gauge("start_time_seconds", "start time (Unix time)", registry.started)
        connections = GaugeMetricFamily(
            f"{_PREFIX}connections", "open connections of nodes", labels=["kind"]
        )
        kinds = Counter(each.kind for each in registry.connections())
        for kind, count in sorted(({V1: 0, CLASSIC: 0} | kinds).items()):  # report a 0, too
            connections.add_metric([kind], count)
        yield connections
        live = len(ledger.live_nodes(state.slot(now)))
        yield _gauge("nodes_live", "nodes that report", live)
        yield _gauge("cells", "user and resource pairs per node in the ledger", ledger.cells)
        yield self._assignments.family(f"{_PREFIX}assignment_seconds", "time of an assignment")
        yield self._overshoot.family(
            f"{_PREFIX}overshoot",
            "consumed / limit - 1 of each limited user with traffic in a slot",
            has_sum=False,  # it may fall, which no counter may
        )
        ages = _quota_ages(registry, now)
        yield _gauge(
            "quota_age_max_slots", "age of the oldest quota in use", max(ages, default=0.0)
        )
        yield self._ages.family(
            f"{_PREFIX}quota_age_slots", "slots since a live node was last sent a quota"
        )
        yield _counters("service_errors", "errors in a service", "service", ledger.errors)

    def _of_frames(self) -> Iterator[Metric]:
        reports = sum(count for kind, count in self._frames.items() if kind.endswith("report"))
        yield _counter("reports", "reports of nodes", reports)
        yield _counters("frames", "frames in and out", "kind", self._frames)
        yield _counters("frame_bytes", "bytes of frames in and out", "kind", self._bytes)
        yield _counter("bad_frames", "malformed frames", self._bad_frames)
        yield _counters("refusals", "connections refused or closed", "reason", self._refusals)
        yield self._answers.family(f"{_PREFIX}answer_seconds", "time from a frame to its answer")

    def _of_limits(self, registry: "ConnectionRegistry") -> Iterator[Metric]:
        limits_sync = registry.limits_sync
        yield _gauge("limits", "entries in force", len(limits_sync.entries))
        yield _gauge(
            "limits_complaints", "invalid entries of the limits source", len(limits_sync.complaints)
        )
        yield _gauge(
            "limits_failing",
            "1 if the limits source cannot be read and old limits are in force",
            limits_sync.error is not None,
        )
        yield _counter("limits_errors", "failed readings of the limits source", limits_sync.errors)
        if limits_sync.loaded_at is not None:
            yield _gauge(
                "limits_loaded_time_seconds",
                "time of the last good reading (Unix time)",
                limits_sync.loaded_at,
            )


class _CentralCollector(Collector):
    """Collects the metrics of one central for one scrape."""

    def __init__(self, metrics: CentralMetrics, registry: "ConnectionRegistry") -> None:
        self._metrics = metrics
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        return self._metrics.families(self._registry)


def _quota_ages(registry: "ConnectionRegistry", now: float) -> list[float]:
    """Slots since each live node that is connected was last sent a quota; a standby sends none."""
    if not registry.state.grants:
        return []
    ledger = registry.state.ledger
    slot = registry.state.slot(now)
    return [
        max(0.0, (now - each.quota_sent) / ledger.slot_seconds)
        for each in registry.connections()
        if each.quota_sent is not None and each.node is not None and ledger.is_live(each.node, slot)
    ]


def _label(seen: Counter[str], label: str) -> str:
    return label if label in seen or len(seen) < _MAX_LABELS else "other"


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value=value)


def _counters(name: str, text: str, label: str, values: "dict[str, int]") -> Metric:
    family = CounterMetricFamily(_PREFIX + name, text, labels=[label])
    for value, count in sorted(values.items()):
        family.add_metric([value], count)
    return family
