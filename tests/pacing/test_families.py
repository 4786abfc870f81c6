"""Counters and limiters by label values."""

from typing import Any

import pytest

from sluicegate import Cluster, ManualClock
from sluicegate.errors import TableFull
from sluicegate.stores import MemoryStore


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(MemoryStore(), clock=ManualClock(1_000_000_020.0))


def test_members_are_found_in_order_and_by_name(cluster: Cluster) -> None:
    hits = cluster.counter_family("hits", labels=["country", "site"], period=60)
    german = hits.labels("de", "shop")
    assert hits.labels(site="shop", country="de") is german
    assert hits.labels("shop", "de") is not german
    assert german.label_values == ("de", "shop")
    assert len(hits) == 2
    assert cluster.counter_family("hits", labels=["country", "site"], period=60) is hits


def test_members_count_separately_over_the_cluster() -> None:
    clock, store = ManualClock(1_000_000_020.0), MemoryStore()
    nodes = [Cluster(store, node_id=name, clock=clock) for name in "ab"]
    families = [node.counter_family("hits", labels=["country"]) for node in nodes]
    for family in families:
        family.labels("de").add(2)
        family.labels("fr").add(3)
    for node in nodes:
        node.sync()
    nodes[0].sync()
    assert families[0].labels("de").value() == 4.0
    assert families[0].labels("fr").value() == 6.0


def test_each_limiter_of_a_family_has_the_whole_target(cluster: Cluster) -> None:
    ads = cluster.limiter_family("ads", labels=["country"], target=100, period=60)
    assert [ads.labels(country=country).target for country in ("de", "fr")] == [100.0, 100.0]
    assert cluster.limiters == {}  # those without labels
    assert cluster.status().limiters == 2


@pytest.mark.parametrize(
    ("values", "named", "message"),
    [
        (("de",), {}, "has the labels \\['country', 'site'\\], got the values \\('de',\\)"),
        ((), {"country": "de"}, "give all their values"),
        (("de",), {"site": "x"}, "give all their values"),
        ((), {"country": "de", "city": "x"}, "give all their values"),
        (("de", ""), {}, "site must not be empty, got ''"),
        (("de", 3), {}, "site must be a str, got 3"),
    ],
)
def test_wrong_label_values_are_named(
    cluster: Cluster, values: tuple[Any, ...], named: dict[str, str], message: str
) -> None:
    hits = cluster.counter_family("hits", labels=["country", "site"])
    with pytest.raises((ValueError, TypeError), match=message):
        hits.labels(*values, **named)
    assert len(hits) == 0


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], "labels must be a list of names"),
        ("country", "labels must be a list of names.*'country'"),
        (["a b"], "got 'a b' in"),
        (["node"], "labels must not be cluster, node.* got 'node'"),
        (["a", "a"], "labels must differ"),
    ],
)
def test_wrong_label_names_are_named(cluster: Cluster, labels: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        cluster.counter_family("hits", labels=labels)


def test_a_family_is_bounded(cluster: Cluster) -> None:
    hits = cluster.counter_family("hits", labels=["user"], max_members=2)
    hits.labels("a")
    hits.labels("b")
    with pytest.raises(TableFull, match="'hits' has its 2 members"):
        hits.labels("c")
    hits.labels("a").add()


def test_a_removed_family_takes_its_members_with_it(cluster: Cluster) -> None:
    ads = cluster.limiter_family("ads", labels=["country"], target=100, period=60)
    german = ads.labels("de")
    cluster.remove("ads")
    assert not german.take()
    assert cluster.status().limiters == 0
    with pytest.raises(KeyError, match="the family 'ads' was removed"):
        ads.labels("fr")


def test_an_old_family_makes_no_members_of_a_new_definition(cluster: Cluster) -> None:
    old = cluster.counter_family("hits", labels=["country"])
    cluster.remove("hits")
    cluster.limiter_family("hits", labels=["country"], target=5, period=60)
    with pytest.raises(KeyError, match="the family 'hits' was removed"):
        old.labels("de")


def test_a_closed_cluster_makes_no_members(cluster: Cluster) -> None:
    hits = cluster.counter_family("hits", labels=["country"])
    german = hits.labels("de")
    cluster.close()
    assert hits.labels("de") is german
    with pytest.raises(RuntimeError, match="is closed"):
        hits.labels("fr")


def test_a_label_may_be_named_self(cluster: Cluster) -> None:
    hits = cluster.counter_family("hits", labels=["self"])
    assert hits.labels(self="x") is hits.labels("x")


def test_a_label_value_without_a_hash_is_named(cluster: Cluster) -> None:
    hits = cluster.counter_family("hits", labels=["a", "b"])
    with pytest.raises(TypeError, match="b must be a str, got \\['l'\\]"):
        hits.labels("x", ["l"])  # type: ignore[arg-type]


def test_a_limiter_that_cannot_be_made_leaves_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ads = cluster.limiter("ads", target=5, period=60)
    ads.reward(3)
    cluster.sync()
    cluster.remove("ads")
    cluster.sync()

    def fail(*_: object) -> None:
        raise OverflowError("too large")

    with monkeypatch.context() as patch, pytest.raises(OverflowError):
        patch.setattr(cluster._registry, "_start", fail)
        cluster.limiter("ads", target=5, period=60)
    assert cluster.limiters == {}
    again = cluster.limiter("ads", target=6, period=60)  # the name is free
    assert again.rewards.local() == 3.0


def test_a_removed_family_says_so_whatever_its_size(cluster: Cluster) -> None:
    family = cluster.counter_family("hits", labels=["country"], max_members=1)
    family.labels("de")
    cluster.remove("hits")
    with pytest.raises(KeyError, match="the family 'hits' was removed"):
        family.labels("fr")


def test_a_family_has_no_other_attributes(cluster: Cluster) -> None:
    family = cluster.limiter_family("mail", labels=["country"], target=100, period=60)
    with pytest.raises(AttributeError):
        family.target = 9  # type: ignore[attr-defined]
