"""What Prometheus reads of a central."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sluicegate.quota import Entry
from sluicegate.quota.central.http import metrics as metrics_module
from sluicegate.quota.central.http.histogram import Histogram
from sluicegate.quota.ledger._queries import bucket_count, busiest_users, count_overshoots, usage_of
from tests.harness.central_without_sockets import Connected, SocketlessCentral

LIMITS = [
    Entry("front", "*", rates={"requests": 10.0}),
    Entry("back", "*", rates={"reads": 100.0}),
    Entry("none", "*", rates={"reads": 0.0}),
]
PREFIX = "sluicegate_central_"


def told(central: SocketlessCentral) -> dict[str, float]:
    """name{labels} -> value, of our own metrics."""
    text = central.metrics.render(central).decode()
    return {
        sample.name.removeprefix(PREFIX)
        + "".join(
            f"{{{label}={value}}}" for label, value in sorted(sample.labels.items())
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(PREFIX)
    }


def test_what_happens_is_counted() -> None:
    central = SocketlessCentral(LIMITS)
    metrics = central.metrics
    for kind, size_ in (("report", 100), ("report", 50), ("classic_report", 7), ("quota", 900)):
        metrics.frame(kind, size_)
    metrics.refused("denied: wrong token")
    metrics.refused("denied: no token")
    metrics.refused("overloaded: too many connections")
    metrics.bad_frame()
    metrics.answered(0.0002)
    metrics.assigned(0.03)
    metrics.state_file_opened()
    assert told(central)["state_bytes"] == 0
    metrics.state_failed()
    metrics.state_written(0.2, 12_345)
    central.connected = [Connected("a"), Connected("b"), Connected(None, "classic")]
    values = told(central)
    assert values["reports_total"] == 3
    assert values["frames_total{kind=report}"] == 2
    assert values["frame_bytes_total{kind=report}"] == 150
    assert values["refusals_total{reason=denied}"] == 2
    assert values["refusals_total{reason=overloaded}"] == 1
    assert values["bad_frames_total"] == 1
    assert values["answer_seconds_bucket{le=0.0001}"] == 0
    assert values["answer_seconds_bucket{le=0.00025}"] == 1
    assert values["assignment_seconds_sum"] == pytest.approx(0.03)
    assert values["state_bytes"] == 12_345
    assert values["state_write_errors_total"] == 1
    assert 0 <= values["state_age_seconds"] < 60
    assert values["connections{kind=sluicegate.v1}"] == 2
    assert values["connections{kind=classic}"] == 1
    assert (values["leads"], values["epoch"], values["slot"]) == (1, 7, 100)
    assert values["limits"] == 3
    assert values["limits_failing"] == values["limits_errors_total"] == 0


def test_nobody_connected_is_told_as_nobody() -> None:
    values = told(SocketlessCentral(LIMITS))
    assert values["connections{kind=sluicegate.v1}"] == 0
    assert values["connections{kind=classic}"] == 0


def test_reasons_and_kinds_from_outside_are_bounded() -> None:
    central = SocketlessCentral(LIMITS)
    for i in range(1000):
        central.metrics.refused(f"reason {i}: text")
        central.metrics.frame(f"kind {i}", 1)
    values = told(central)
    assert values["refusals_total{reason=other}"] > 900
    assert sum(name.startswith("refusals_total") for name in values) < 40
    assert sum(name.startswith("frames_total") for name in values) < 40


def test_two_centrals_in_one_process_do_not_see_each_other() -> None:
    one, other = SocketlessCentral(LIMITS), SocketlessCentral(LIMITS)
    one.metrics.bad_frame()
    assert told(one)["bad_frames_total"] == 1
    assert told(other)["bad_frames_total"] == 0


def test_the_overshoot_is_that_of_all_nodes_together() -> None:
    central = SocketlessCentral(LIMITS)
    central.slot(
        {
            ("node-1", "front", "even", "requests"): (6.0, 0),
            ("node-2", "front", "even", "requests"): (4.0, 9),
            ("node-1", "front", "above", "requests"): (13.0, 0),
            ("node-1", "front", "below", "requests"): (7.0, 0),
            ("node-1", "front", "none", "requests"): (0.0, 3),
            ("node-1", "back", "far", "reads"): (1000.0, 0),
            ("node-1", "back", "free", "writes"): (1000.0, 0),
            ("node-1", "none", "never", "reads"): (1.0, 1),
        }
    )
    values = told(central)
    counts = {
        edge: values[f"overshoot_bucket{{le={edge}}}"]
        for edge in ("-0.5", "-0.2", "-0.01", "0.0", "0.2", "0.5", "2.0", "+Inf")
    }
    assert counts == {
        "-0.5": 1,  # none
        "-0.2": 2,  # below
        "-0.01": 2,
        "0.0": 3,  # even
        "0.2": 3,
        "0.5": 4,  # above
        "2.0": 4,
        "+Inf": 5,  # far
    }
    assert values["overshoot_count"] == 5
    assert "overshoot_sum" not in values


def test_a_slot_is_looked_at_once_and_not_before_it_is_over() -> None:
    central = SocketlessCentral(LIMITS)
    central.slot({("node-1", "front", "ann", "requests"): (10.0, 0)})
    assert told(central)["overshoot_count"] == 1
    for slot in (100, 101, 500):
        central.metrics.record_slot(central, slot)
    assert told(central)["overshoot_count"] == 1


def test_of_a_large_ledger_another_part_is_looked_at_in_each_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics_module, "_MAX_BUCKETS_PER_SLOT", 40)
    central = SocketlessCentral(LIMITS)
    users = {("node-1", "front", f"user-{i}", "requests"): (10.0, 0) for i in range(60)}
    reads = {("node-1", "back", f"user-{i}", "reads"): (10.0, 0) for i in range(40)}
    looked = []
    for _ in range(6):
        central.slot(users | reads)
        looked.append(told(central)["overshoot_count"])
    assert looked == [40, 80, 100, 140, 180, 200]


def test_the_age_of_quotas_in_use_is_that_of_live_nodes() -> None:
    central = SocketlessCentral(LIMITS)
    central.connected = [Connected("node-1"), Connected("node-2"), Connected("silent")]
    central.slot({})
    for connection, age in zip(central.connected, (0.4, 2.5, 100.0), strict=True):
        connection.quota_sent = central.now() - age
    central.connected[2].node = "never heard of"
    values = told(central)
    assert values["quota_age_max_slots"] == pytest.approx(2.5)
    assert values["nodes_live"] == 3
    central.metrics.record_slot(central, 99)
    values = told(central)
    assert values["quota_age_slots_bucket{le=0.5}"] == 1
    assert values["quota_age_slots_bucket{le=3.0}"] == 2
    assert values["quota_age_slots_count"] == 2
    central.state.follow(central.now())  # nodes have their quotas from another one now
    assert told(central)["quota_age_max_slots"] == 0


def test_a_histogram_counts_a_value_at_its_upper_edge() -> None:
    histogram = Histogram((0.0, 1.0))
    for value in (-1.0, 0.0, 0.5, 1.0, 1.5):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    histogram.add([1, 1, 1])
    assert histogram.counts == [3, 3, 2]
    assert repr(histogram) == "Histogram({0.0: 3, 1.0: 3, 'more': 2})"


def test_the_busiest_are_found_among_many() -> None:
    """However many resources each of them has."""
    central = SocketlessCentral([Entry("front", "*", rates={f"r{i}": 10.0 for i in range(8)})])
    traffic = {
        ("node-1", "front", f"user-{i}", f"r{j}"): (float(i + 1), 0)
        for i in range(50)
        for j in range(8)
    }
    central.slot(traffic)
    service_ledger = central.state.ledger.service_ledgers["front"]
    assert bucket_count(service_ledger) == 400
    ranked = busiest_users(service_ledger, 100, 1, 5)
    assert [user for _, user in ranked] == [f"user-{i}" for i in (49, 48, 47, 46, 45)]
    assert ranked[0][0] == pytest.approx(5.0)
    assert busiest_users(service_ledger, 100, 10, 1000)[-1][1] == "user-0"
    assert len(busiest_users(service_ledger, 100, 10, 1000)) == 50
    assert busiest_users(service_ledger, 50, 10, 5) == []
    assert usage_of(service_ledger, "user-3", 100, 10)["r0"] == (4.0, 0.0, 4.0, 0.0)
    assert usage_of(service_ledger, "nobody", 100, 10) == {}
    assert sum(count_overshoots(service_ledger, 100, [0.0], 0, 400)) == 400
    with pytest.raises(ValueError, match="at most 64 values, got 65"):
        count_overshoots(service_ledger, 100, [0.0] * 65, 0, 1)
