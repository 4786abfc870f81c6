"""What the papers promise, on generated traffic: which policy keeps what, and where it fails.

All traffic is random with a fixed seed, and keys are ints, so each figure is the same in every
run; the bounds have room for another generator all the same.
"""

import bisect
import itertools
import random
from collections.abc import Iterable
from functools import cache as remember

import pytest

from sluicegate.cache import TinyLfu, make
from tests.cache.reference import SketchReference

ADVANCED = ("sieve", "s3fifo", "tinylfu")
KEYS = 20_000


def hit_ratio(name: str, capacity: int, keys: Iterable[int]) -> float:
    return hit_ratios(name, capacity, [keys])[0]


def hit_ratios(name: str, capacity: int, phases: Iterable[Iterable[int]]) -> list[float]:
    """Of each phase, one after the other through one cache."""
    cache = make(name, capacity)
    ratios = []
    for keys in phases:
        cache.reset_stats()
        for key in keys:
            if cache.get(key) is None:
                cache[key] = True
        ratios.append(cache.stats().hit_ratio)
    return ratios


@remember
def zipf(keys: int, exponent: float, length: int, seed: int = 1) -> list[int]:
    """Key k is asked for in proportion to 1 / (k + 1) ** exponent."""
    rng = random.Random(seed)
    sums = list(itertools.accumulate((key + 1) ** -exponent for key in range(keys)))
    return [bisect.bisect(sums, rng.random() * sums[-1]) for _ in range(length)]


def with_scans(keys: list[int], every: int, length: int) -> list[int]:
    """After `every` requests come `length` keys that are asked for only once."""
    new = itertools.count(10**6)
    mixed = []
    for start in range(0, len(keys), every):
        mixed += keys[start : start + every]
        mixed += itertools.islice(new, length)
    return mixed


def recent(length: int, reach: int, seed: int = 1) -> list[int]:
    """Each key is asked for about three times soon after it comes, and then no more."""
    rng = random.Random(seed)
    return [
        number // 3 - int(rng.expovariate(1 / reach)) + 10**9 * (seed + 1)
        for number in range(length)
    ]


@pytest.mark.parametrize("capacity", [KEYS // 100, KEYS // 10])
@pytest.mark.parametrize("name", ADVANCED)
def test_sieve_s3_fifo_and_tiny_lfu_beat_lru_on_skewed_traffic(name: str, capacity: int) -> None:
    trace = zipf(KEYS, 0.99, 150_000)
    assert hit_ratio(name, capacity, trace) > hit_ratio("lru", capacity, trace) + 0.02


@pytest.mark.parametrize("capacity", [KEYS // 100, KEYS // 10])
@pytest.mark.parametrize("name", ADVANCED)
def test_sieve_s3_fifo_and_tiny_lfu_beat_lru_when_scans_come_between(
    name: str, capacity: int
) -> None:
    trace = with_scans(zipf(KEYS, 0.99, 100_000), every=4_000, length=2_000)
    assert hit_ratio(name, capacity, trace) > hit_ratio("lru", capacity, trace) + 0.03


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("fifo", 0.1, 0.5),
        ("lru", 0.1, 0.5),
        ("sieve", 0.9, 1.0),
        ("s3fifo", 0.9, 1.0),
        ("tinylfu", 0.9, 1.0),
        ("arc", 0.9, 1.0),
    ],
)
def test_a_scan_does_not_flush_what_is_hot(name: str, least: float, most: float) -> None:
    # 800 hot keys, some requests each, then a scan of three times the cache, again and again.
    rng = random.Random(2)
    hot = [rng.randrange(800) for _ in range(40_000)]
    mixed = with_scans(hot, every=1_000, length=3_000)
    hot_hits = hit_ratio(name, 1_000, mixed) * len(mixed) / len(hot)  # a scanned key never hits
    alone = hit_ratio(name, 1_000, hot)
    assert alone > 0.97
    assert least <= hot_hits / alone <= most


def test_lfu_does_not_forget_what_was_popular_and_lru_does() -> None:
    first = zipf(1_000, 1.0, 30_000)
    others = [key + 10_000 for key in zipf(1_000, 1.0, 6_000, seed=2)]
    ratios = {name: hit_ratios(name, 100, [first, others]) for name in ("lru", "lfu", "tinylfu")}
    assert ratios["lfu"][0] > ratios["lru"][0] + 0.05
    assert ratios["lfu"][1] < ratios["lru"][1] - 0.1
    assert ratios["tinylfu"][1] > ratios["lfu"][1] + 0.1


def test_arc_is_near_the_better_of_lru_and_lfu_when_the_traffic_changes() -> None:
    # Half of the time recency counts, half of the time frequency: neither of the two fits all.
    phases = [
        recent(40_000, reach=100),
        with_scans(zipf(5_000, 1.0, 40_000), every=1_000, length=500),
        recent(40_000, reach=100, seed=2),
        with_scans(zipf(5_000, 1.0, 40_000, seed=2), every=1_000, length=500),
    ]
    lru, lfu, arc = (hit_ratios(name, 200, phases) for name in ("lru", "lfu", "arc"))
    for recency in (0, 2):
        assert arc[recency] > lfu[recency] + 0.2
        assert arc[recency] > lru[recency] - 0.1
    for frequency in (1, 3):
        assert arc[frequency] > lru[frequency] + 0.03
    assert sum(arc) > max(sum(lru), sum(lfu)) + 0.02


def test_the_window_of_tiny_lfu_grows_where_only_recency_counts() -> None:
    cache: TinyLfu[int, bool] = TinyLfu(500)
    trace = recent(200_000, reach=200)
    early = late = 0
    for number, key in enumerate(trace):
        is_hit = cache.get(key) is not None
        if not is_hit:
            cache[key] = True
        if number < 20_000:
            early += is_hit
        elif number >= 180_000:
            late += is_hit
    assert late / 20_000 > early / 20_000 + 0.2
    assert late / 20_000 > 0.8 * hit_ratio("lru", 500, trace)


def test_nobody_can_pin_an_entry_in_tiny_lfu_by_keys_that_share_its_counters() -> None:
    sketch, pinned = SketchReference(), 0
    attackers = [
        next(key for key in range(100, 10**6) if sketch.places(key)[row] == counter)
        for row, counter in enumerate(sketch.places(pinned))
    ]
    cache: TinyLfu[int, bool] = TinyLfu(24)
    cache[pinned] = True
    for key in (*attackers, *range(1, 20)):
        cache[key] = True
    contests = 0
    while pinned in cache and contests < 1_000:
        for key in attackers * 5:
            cache.get(key)
        for key in (50, 51):  # each forces the other one out of the window, where it loses
            cache[key] = True
            contests += 1
    assert 128 <= contests < 300  # not all of them find the two keys warm


def test_clock_is_between_fifo_and_lru() -> None:
    trace = zipf(KEYS, 0.8, 100_000)
    fifo, clock, lru = (hit_ratio(name, 500, trace) for name in ("fifo", "clock", "lru"))
    assert fifo + 0.01 < clock
    assert abs(clock - lru) < 0.03


# --- small sequences, by hand


def contents(name: str, capacity: int, keys: str) -> str:
    """The cache after these requests, in the order of its queues."""
    cache = make(name, capacity)
    for key in keys:
        if cache.get(key) is None:
            cache[key] = key
    return "".join(cache)


@pytest.mark.parametrize(
    ("name", "capacity", "requests", "left"),
    [
        ("fifo", 3, "ABCAD", "BCD"),
        ("lru", 3, "ABCAD", "CAD"),
        ("lfu", 3, "AABBCD", "DAB"),
        ("clock", 3, "ABCAD", "CAD"),  # A, whose bit was set, went behind C
        ("sieve", 3, "ABCAD", "ACD"),  # A kept its place
        # Four keys in turn are too many for three places of LRU; FIFO has the same none.
        ("lru", 3, "ABCDABCD", "BCD"),
        # A is used twice and goes on into main; C, D, ... pass through the small queue.
        ("s3fifo", 3, "AAABCDE", "DEA"),
        # B is evicted, comes back while it is a ghost, and goes into main at once.
        ("s3fifo", 3, "AAABCDB", "DAB"),
        # T1 is C D; T2 is A, which was used twice.
        ("arc", 3, "AABCD", "CDA"),
    ],
)
def test_what_is_left_after_a_few_requests(
    name: str, capacity: int, requests: str, left: str
) -> None:
    assert contents(name, capacity, requests) == left


def test_bellady_s_anomaly() -> None:
    # FIFO with four places misses more often than with three (Belady, 1969).
    requests = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5]
    misses = [round(12 * (1 - hit_ratio("fifo", places, requests))) for places in (3, 4)]
    assert misses == [9, 10]
    misses = [round(12 * (1 - hit_ratio("lru", places, requests))) for places in (3, 4)]
    assert misses == [10, 8]
