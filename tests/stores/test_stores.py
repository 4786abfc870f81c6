"""What a reader should know of a store, shown on each kind of it."""

import math

import pytest

from sluicegate.stores import MemoryStore
from sluicegate.stores.store import FOLD_AFTER, CounterKey, Store
from tests.harness.store_requests import ALWAYS, RedisAt, Writer, minute, update
from tests.harness.threads import run_in_threads

START = 2_000_000_000.0  # where the test gives the time


def test_the_sum_is_that_of_all_writers(store: Store) -> None:
    a, b = Writer(store, "a"), Writer(store, "b")
    assert a.tell(ALWAYS, 3.0)[:2] == (3.0, 3)
    assert b.tell(ALWAYS, 4.5)[:2] == (7.5, 7)
    assert a.tell(ALWAYS, 5.0)[:2] == (9.5, 9)
    assert b.sync().nodes == 2


def test_a_request_that_is_repeated_counts_once(store: Store) -> None:
    writer = Writer(store, "a")
    request = writer.request(update(ALWAYS, 3.0, want=2.0, ceiling=10.0))
    first = store.sync(request)
    assert store.sync(request).totals == first.totals


def test_a_request_that_is_overtaken_changes_nothing(store: Store) -> None:
    writer = Writer(store, "a")
    late = writer.request(update(ALWAYS, 3.0, want=9.0))
    writer.tell(ALWAYS, 5.0, want=1.0)
    (totals,) = store.sync(late).totals
    assert (totals.sum, totals.granted) == (5.0, 1.0)


def test_a_restarted_node_is_a_new_writer_and_its_old_total_stays(store: Store) -> None:
    Writer(store, "node-1.first").tell(ALWAYS, 10.0)
    restarted = Writer(store, "node-1.second")
    assert restarted.tell(ALWAYS, 0.0).sum == 10.0
    assert restarted.tell(ALWAYS, 2.0).sum == 12.0


def test_a_period_turns_with_the_first_who_tells_of_it(store: Store) -> None:
    a, b = Writer(store, "a"), Writer(store, "b")
    a.tell(minute(), 10.0, rate=2.0)
    b.tell(minute(), 5.0, want=5.0)
    next_minute = minute(1)
    turned = a.tell(next_minute, 1.0, rate=2.0)
    assert (turned.sum, turned.rate, turned.held) == (1.0, 2.0, 0.0)
    late, now = b.sync(update(minute(), 7.0), update(next_minute, 3.0)).totals
    assert late.sum == 17.0
    assert now.sum == 4.0


def test_holds_stay_within_the_ceiling(store: Store) -> None:
    writers = [Writer(store, name) for name in "abcd"]
    grants = [w.tell(minute(), 0.0, want=4.0, unit=1.0, ceiling=10.5) for w in writers]
    assert [totals.granted for totals in grants] == [4.0, 4.0, 2.0, 0.0]
    writers[0].tell(minute(), 4.0, want=0.0)  # spends its hold, and wants no more
    assert writers[3].tell(minute(), 0.0, want=4.0, ceiling=10.5).granted == 0.0
    writers[1].tell(minute(), 1.0, want=0.0)  # gives three back
    assert writers[3].tell(minute(), 0.0, want=4.0, ceiling=10.5).granted == 3.0


@pytest.mark.parametrize("store", ["memory", "redis"], indirect=True)  # Go has one for some
def test_names_and_labels_with_any_characters_are_counters_of_their_own(store: Store) -> None:
    names = [
        *(("a:b", ()), ("a", ("b",)), ("a", ("b", "c")), ("a", ("b:c",)), ("a%3Ab", ())),
        *(("a", ("c", "b")), ("{a}", ()), ("a b\n", ("\0", "ü"))),
    ]
    keys = [CounterKey(name, labels, 0.0, 0.0, 0.0) for name, labels in names]
    keys += [CounterKey("a", (), 60.0, 120.0, 60.0), CounterKey("a", (), 60.0, 120.0, 30.0)]
    writer = Writer(store, "total")
    updates = [update(key, 2.0**place) for place, key in enumerate(keys)]
    assert [t.sum for t in writer.sync(*updates).totals] == [u.sum for u in updates]


def test_clusters_of_one_store_know_nothing_of_each_other(store: Store) -> None:
    Writer(store, "a", "shop").tell(ALWAYS, 3.0)
    other = Writer(store, "a", "bank")
    assert other.tell(ALWAYS, 1.0).sum == 1.0
    assert other.sync().nodes == 1


def test_threads_lose_nothing(store: Store) -> None:
    def work(name: str) -> None:
        writer = Writer(store, name)
        for total in range(1, 26):
            writer.tell(ALWAYS, float(total))

    run_in_threads([lambda name=name: work(name) for name in "abcdefgh"])
    assert Writer(store, "reader").tell(ALWAYS, 0.0)[:2] == (200.0, 200)


def test_a_lapsed_writer_keeps_its_total_and_loses_its_rate_and_hold(timed_store: Store) -> None:
    a, b = Writer(timed_store, "a"), Writer(timed_store, "b")
    at = START
    a.sync(update(ALWAYS, 10.0, rate=2.0, want=5.0, ceiling=20.0), at=at, live_for=6.0)
    seen = b.sync(update(ALWAYS, 0.0, rate=1.0, want=9.0, ceiling=20.0), at=at + 6.0)
    (totals,) = seen.totals
    assert (seen.nodes, totals.rate, totals.lead, totals.granted) == (2, 3.0, 12.0, 5.0)
    seen = b.sync(update(ALWAYS, 0.0, rate=1.0, want=9.0, ceiling=20.0), at=at + 7.0)
    (totals,) = seen.totals
    assert (seen.nodes, totals.sum, totals.rate, totals.lead) == (1, 10.0, 1.0, 0.0)
    assert totals.granted == totals.held == 9.0


def test_a_request_that_is_overtaken_does_not_end_a_hold_early(timed_store: Store) -> None:
    a, b = Writer(timed_store, "a"), Writer(timed_store, "b")
    wish = {"want": 5.0, "ceiling": 5.0}
    late = a.request(update(ALWAYS, 0.0, **wish), at=START, live_for=6.0)
    a.sync(update(ALWAYS, 0.0, **wish), at=START + 6.0, live_for=6.0)
    timed_store.sync(late)
    seen = b.sync(update(ALWAYS, 0.0, **wish), at=START + 10.0)
    assert (seen.nodes, seen.totals[0].held, seen.totals[0].granted) == (2, 5.0, 0.0)


def test_a_writer_that_has_left_is_not_brought_back_by_a_late_request(timed_store: Store) -> None:
    a, b = Writer(timed_store, "a"), Writer(timed_store, "b")
    late = a.request(update(ALWAYS, 1.0), at=START + 1.0)
    a.sync(update(ALWAYS, 2.0), at=START, live_for=0.0)
    timed_store.sync(late)
    assert b.sync(update(ALWAYS, 0.0), at=START + 2.0).nodes == 1


def test_a_node_that_meets_a_counter_late_is_not_given_the_rates_of_the_dead(
    timed_store: Store,
) -> None:
    other = ALWAYS._replace(name="other")
    dead, node = Writer(timed_store, "dead"), Writer(timed_store, "node")
    dead.sync(update(ALWAYS, 10.0, rate=2.0), update(other, 1.0), at=START, live_for=6.0)
    for second in (0.0, 10.0, 20.0):
        node.sync(update(other, 1.0), at=START + second)
    (totals,) = node.sync(update(ALWAYS, 0.0), at=START + 30.0).totals
    assert (totals.sum, totals.rate, totals.lead) == (10.0, 0.0, 0.0)


def test_what_is_told_late_after_a_lapse_still_counts_for_its_period(timed_store: Store) -> None:
    first = CounterKey("ads", (), START, START + 60.0, 60.0)
    second = CounterKey("ads", (), START + 60.0, START + 120.0, 60.0)
    silent, other = Writer(timed_store, "silent"), Writer(timed_store, "other")
    silent.sync(update(first, 10.0, rate=1.0), at=START + 10.0, live_for=6.0)
    other.sync(update(second, 1.0), at=START + 61.0)
    late, now = silent.sync(update(first, 15.0), update(second, 2.0), at=START + 62.0).totals
    assert late.sum == 15.0
    assert now.sum == 3.0


def test_dead_writers_are_folded_and_nothing_is_counted_twice(timed_store: Store) -> None:
    survivor = Writer(timed_store, "survivor")
    survivor.sync(update(ALWAYS, 0.0), at=START)
    for number in range(20):
        Writer(timed_store, f"dead-{number}").sync(update(ALWAYS, 1.0), at=START, live_for=6.0)
    assert records_of(timed_store) == 21
    later = START + FOLD_AFTER + 10.0
    Writer(timed_store, "newly dead").sync(update(ALWAYS, 1.0), at=later - 100.0, live_for=6.0)
    survivor.sync(update(ALWAYS, 1.0), at=later, may_fold=False)
    assert records_of(timed_store) == 22
    for second in range(3):
        (totals,) = survivor.sync(update(ALWAYS, 2.0), at=later + second, may_fold=True).totals
        assert totals.sum == 23.0
    assert records_of(timed_store) == 2
    (totals,) = survivor.sync(update(ALWAYS, 2.0), at=later + FOLD_AFTER, may_fold=True).totals
    assert totals.sum == 23.0
    assert records_of(timed_store) == 1


def records_of(store: Store) -> int:
    """Records of writers in the only counter."""
    if isinstance(store, MemoryStore):
        (counter,) = store._clusters["shop"].counters.values()
        return len(counter.writers)
    assert isinstance(store, RedisAt)
    pool = store._store._pool
    (key,) = pool.call("KEYS", "*clicks:always")
    return sum(field.startswith(b"w:") for field in pool.call("HKEYS", key))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("sum", math.nan), ("rate", math.inf), ("want", -2.0)),
        *(("unit", 0.0), ("unit", math.inf), ("ceiling", math.nan), ("ceiling", -math.inf)),
    ],
)
def test_numbers_that_would_spoil_a_counter_are_refused(
    store: Store, field: str, value: float
) -> None:
    writer = Writer(store, "a")
    with pytest.raises(ValueError, match=f"{field}={value!r}"):
        writer.sync(update(ALWAYS, 1.0)._replace(**{field: value}))
    assert writer.tell(ALWAYS, 2.0).sum == 2.0
