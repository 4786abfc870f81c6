"""The parts of a node without sockets: URLs, back-off, quota freshness, Prometheus text."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sluicegate.quota.backoff import Backoff
from sluicegate.quota.messages import Quota
from sluicegate.quota.node.core.quota_freshness import FreshnessTracker
from sluicegate.quota.node.status import (
    ConnectionStatus,
    EndNodeStatus,
    QuotaFreshness,
    prometheus_text,
)
from sluicegate.quota.urls import central_urls


@pytest.mark.parametrize(
    ("given", "urls"),
    [
        ("ws://127.0.0.1:7411", ("ws://127.0.0.1:7411/",)),
        ("http://central:7411/", ("ws://central:7411/",)),
        ("https://central/throttle", ("wss://central/throttle",)),
        ("wss://[::1]:7411", ("wss://[::1]:7411/",)),
        (["ws://a:1", "ws://b:2", "http://a:1"], ("ws://a:1/", "ws://b:2/")),
    ],
)
def test_centrals_are_urls(given: str | list[str], urls: tuple[str, ...]) -> None:
    assert central_urls(given) == urls


@pytest.mark.parametrize(
    "given",
    [
        "",
        "127.0.0.1:7411",
        "redis://x",
        "ws://",
        "ws://a:99999",
        "ws://me:secret@a",
        "ws://a?b",
        [],
    ],
)
def test_what_is_no_central_is_permanent_by_name(given: object) -> None:
    with pytest.raises(ValueError, match="central") as refused:
        central_urls(given)
    assert "secret" not in str(refused.value)


def test_a_url_must_be_text() -> None:
    with pytest.raises(TypeError, match=r"got 7411"):
        central_urls([7411])
    with pytest.raises(TypeError, match=r"centrals must be one or more URLs, got 7411"):
        central_urls(7411)  # type: ignore[arg-type]


def test_waits_double_to_the_longest_and_begin_anew_after_a_minute_of_health() -> None:
    backoff = Backoff(jitter=lambda: 1.0)
    waits = [backoff.next_delay() for _ in range(8)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0])
    assert backoff.next_delay(lasted=59.0) == 2.0
    assert backoff.next_delay(lasted=60.0) == 0.1
    assert backoff.next_delay() == 0.2


def test_a_refusal_waits_the_longest_at_once() -> None:
    backoff = Backoff(jitter=lambda: 1.0)
    assert backoff.next_delay(is_permanent=True) == 5.0
    assert backoff.next_delay() == 2.0


def test_waits_are_spread_over_their_second_half() -> None:
    chances = iter([0.0, 0.5])
    backoff = Backoff(jitter=lambda: next(chances))
    assert backoff.next_delay() == pytest.approx(0.05)
    assert backoff.next_delay() == pytest.approx(0.15)


def quota(slot: int, time: float, *, epoch: int = 1, whole: bool = True) -> Quota:
    return Quota("c", epoch, 1, slot, time, 1, whole, 0.05, {})


def test_a_quota_is_fresh_then_reused_then_safe_and_each_time_is_kept() -> None:
    # The node's clock is 1,000 behind the leader's; a slot is 1 s and the lease is 3 slots.
    freshness = FreshnessTracker(0.0, slot_seconds=1.0)
    story = []
    for now, told in [
        (0.4, None),
        (0.5, quota(1001, 1000.5)),  # for the slot from 1.0 to 2.0
        (1.5, quota(1002, 1001.5)),
        (2.9, None),
        (3.5, None),
        (5.9, None),
        (6.5, None),
        (7.5, quota(1008, 1007.5)),
        (7.6, quota(1001, 1000.5, epoch=0)),  # of a leader that is none any more
        (7.7, quota(1009, 1007.7, whole=False)),
        (9.5, None),
    ]:
        if told is not None:
            freshness.receive(now, told)
        state, seconds = freshness.state(now)
        story.append((now, state, round(seconds, 6)))
    assert story == [
        (0.4, "none", 0.4),
        (0.5, "fresh", 0.0),
        (1.5, "fresh", 1.0),
        (2.9, "fresh", 2.4),
        (3.5, "reused", 0.5),
        (5.9, "reused", 2.9),
        (6.5, "safe", 0.5),
        (7.5, "fresh", 0.0),
        (7.6, "fresh", 0.1),
        (7.7, "fresh", 0.2),
        (9.5, "reused", 0.5),
    ]
    totals = freshness.totals(9.5)
    assert totals == pytest.approx({"none": 0.5, "fresh": 4.0, "reused": 3.5, "safe": 1.5})


def test_prometheus_reads_the_metrics() -> None:
    central = ConnectionStatus("ws://a:1/", connected_at=3.0, connections=2, bytes_sent=77)
    status = EndNodeStatus(
        'web"1\\',
        is_started=True,
        is_reporting=True,
        reporter_pid=7,
        quota=QuotaFreshness(
            "reused", 1.5, {"none": 0.0, "fresh": 4.0, "reused": 1.5, "safe": 0.0}
        ),
        slot=5,
        epoch=3,
        quota_age=1,
        users={"front": {"fresh": 2, "newcomer": 1}},
        waits=9,
        waited_seconds=0.25,
        unacknowledged={"ws://a:1/": 4},
        centrals=(central,),
    )
    families = {one.name: one for one in text_string_to_metric_families(prometheus_text(status))}
    values = {
        (name, *(value for key, value in sample.labels.items() if key != "node")): sample.value
        for name, family in families.items()
        for sample in family.samples
    }
    assert {sample.labels["node"] for one in families.values() for sample in one.samples} == {
        'web"1\\'
    }
    assert values["sluicegate_node_reporting",] == 1
    assert values["sluicegate_node_quota_state", "reused"] == 1
    assert values["sluicegate_node_quota_state", "fresh"] == 0
    assert values["sluicegate_node_quota_state_seconds", "fresh"] == 4.0
    assert values["sluicegate_node_users", "front", "newcomer"] == 1
    assert values["sluicegate_node_waits",] == 9
    assert values["sluicegate_node_waited_seconds",] == 0.25
    assert values["sluicegate_node_connected", "ws://a:1/"] == 1
    assert values["sluicegate_node_connections", "ws://a:1/"] == 2
    assert values["sluicegate_node_bytes_sent", "ws://a:1/"] == 77
    assert values["sluicegate_node_unacknowledged_lines", "ws://a:1/"] == 4


def test_a_worker_that_does_not_report_says_so() -> None:
    text = prometheus_text(EndNodeStatus("web", True, False, 7))
    families = [(one.name, one.samples[0].value) for one in text_string_to_metric_families(text)]
    assert families == [("sluicegate_node_reporting", 0.0), ("sluicegate_node_leader_epoch", -1.0)]
