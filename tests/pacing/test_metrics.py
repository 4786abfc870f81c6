"""The metrics as Prometheus reads them."""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sluicegate import Cluster, ManualClock
from sluicegate.errors import Unavailable
from sluicegate.stores import MemoryStore
from sluicegate.stores.store import SyncReply, SyncRequest


class Away(MemoryStore):
    is_away = False

    def sync(self, request: SyncRequest) -> SyncReply:
        if self.is_away:
            raise Unavailable("away")
        return super().sync(request)


def read(cluster: Cluster) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Values by name and labels, without the labels that all have."""
    found = {}
    for family in text_string_to_metric_families(cluster.metrics()):
        for name, labels, value, *_ in family.samples:
            assert labels.pop("cluster") == "shop"
            assert labels.pop("node") == "a"
            key = name.removeprefix("sluicegate_pacing_"), tuple(labels.items())
            assert key not in found
            found[key] = value
    return found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000_020.0)


@pytest.fixture
def store() -> Away:
    return Away()


@pytest.fixture
def cluster(store: Away, clock: ManualClock) -> Cluster:
    return Cluster(store, "shop", node_id="a", clock=clock)


def test_a_limiter_has_what_the_original_reports(
    cluster: Cluster, store: Away, clock: ManualClock
) -> None:
    peer = Cluster(store, "shop", node_id="b", clock=clock)
    mine, other = (
        one.limiter("ads", target=600, period=60, reward_rate=0.5) for one in (cluster, peer)
    )
    passed = [0, 0]
    for _ in range(100):
        clock.advance(0.2)
        for place, (node, limiter) in enumerate(((cluster, mine), (peer, other))):
            if node.state.next_sync(clock.now()) <= clock.now():
                node.sync()
            passed[place] += sum(limiter.take() for _ in range(10))
    mine.reward(3.0)
    for node in (cluster, peer, cluster):
        node.sync()
    found = read(cluster)

    def of(name: str) -> float:
        return found[f"limiter_{name}", (("limiter", "ads"),)]

    assert of("target") == 600
    assert of("ideal_reward") == pytest.approx(200)
    assert of("lag_seconds") == mine.lag
    assert of("pass_rate") == mine.pass_rate > 0
    assert of("ideal_pass_rate") == mine.ideal_pass_rate > 0
    assert of("reward_rate") == mine.reward_rate
    assert (of("requests_local_sum"), of("requests_local_count")) == (1000, 1000)
    assert (of("requests_last_sum"), of("requests_estimated_count")) == (2000, 2000)
    assert of("requests_estimated_sum") == pytest.approx(2000, rel=0.01)
    assert of("requests_share") == pytest.approx(0.5, abs=0.05)
    assert of("passes_local_sum") == passed[0] > 0
    assert of("passes_last_local_sum") == passed[0]
    assert of("passes_last_sum") == sum(passed)
    assert (of("rewards_local_sum"), of("rewards_local_count")) == (3, 1)
    assert of("ended") == 0


def test_the_syncs_and_the_failures_are_counted(
    cluster: Cluster, store: Away, clock: ManualClock
) -> None:
    assert read(cluster)["since_answer_seconds", ()] == math.inf
    cluster.sync()
    cluster.sync()
    store.is_away = True
    clock.advance(4.0)
    with pytest.raises(Unavailable):
        cluster.sync()
    found = read(cluster)
    assert found["syncs_total", ()] == 2
    assert found["sync_failures_total", ()] == 1
    assert found["in_touch", ()] == 0
    assert found["nodes", ()] == 1
    assert found["since_answer_seconds", ()] == pytest.approx(4.0)


def test_members_of_families_have_their_labels(cluster: Cluster) -> None:
    hits = cluster.counter_family("hits", labels=["country"])
    hits.labels('d"e\n\\').add(3)
    cluster.counter("plain").add(2)
    found = read(cluster)
    assert found["counter_local_sum", (("counter", "hits"), ("country", 'd"e\n\\'))] == 3
    assert found["counter_local_sum", (("counter", "plain"),)] == 2


def test_only_a_scored_limiter_has_a_cut() -> None:
    clock = ManualClock(1_000_000_020.0)
    cluster = Cluster(MemoryStore(), clock=clock)
    cluster.limiter("plain", target=60, period=60)
    scored = cluster.limiter("scored", target=60, period=60, scored=True)
    for tenth in range(100):
        clock.advance(0.1)
        scored.acquire(1.0, tenth % 10)
        if cluster.state.next_sync(clock.now()) <= clock.now():
            cluster.sync()
    cuts = [line for line in cluster.metrics().splitlines() if "limiter_score_cut{" in line]
    assert len(cuts) == 1
    assert 'limiter="scored"' in cuts[0]
