"""What only `MemoryStore` can show: it forgets what has expired."""

from sluicegate.stores import MemoryStore
from sluicegate.stores.store import KEEP_AFTER_END, CounterKey
from tests.harness.store_requests import ALWAYS, Writer, update

START = 2_000_000_000.0


def test_a_counter_is_kept_for_what_comes_late_and_then_forgotten() -> None:
    store = MemoryStore()
    writer = Writer(store, "a")
    once = CounterKey("once", (), START, START + 60.0, 0.0)
    writer.sync(update(once, 3.0), update(ALWAYS, 3.0), at=START)
    expiry = START + 60.0 + KEEP_AFTER_END
    assert writer.sync(update(once, 5.0), at=expiry - 1.0).totals[0].sum == 5.0
    assert Writer(store, "b").sync(update(once, 1.0), at=expiry).totals[0].sum == 1.0
    writer.sync(update(ALWAYS, 4.0), at=expiry + 61.0)
    assert repr(store) == "MemoryStore(counters=1)"


def test_a_periodic_counter_is_kept_as_long_as_its_periods_turn() -> None:
    store = MemoryStore()
    writer = Writer(store, "a")
    for hour in range(5):
        begin = START + 3600.0 * hour
        key = CounterKey("ads", (), begin, begin + 3600.0, 3600.0)
        assert writer.sync(update(key, 7.0, rate=2.0), at=begin + 1.0).totals[0].sum == 7.0
        assert len(store) == 1
    writer.sync(update(ALWAYS, 1.0), at=START + 86_400.0)
    assert len(store) == 1  # the other one
    store.close()
