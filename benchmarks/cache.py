"""Caches: the time of a get and a put beside compiled libraries, and hit ratios.

Each policy stands beside the quickest compiled library that has this policy; where none has it,
beside the quickest LRU. Peers that are written in Python are there for comparison.
"""

import itertools
import random
from collections.abc import Iterator
from typing import Any

import cachebox
import cachetools
import theine
from lru import LRU as LruDict  # noqa: N811  its own name

from benchmarks.harness import ROUNDS, Row, Subject, Times, compare
from benchmarks.rows import call, slower
from sluicegate.cache import POLICIES, make, replay
from sluicegate.sim.cache_traces import scan_mixed, zipf

NOTES = (
    f"Times are of the thread, per call, the best of {ROUNDS} rounds in turns, with the loop "
    "around them (as in timeit)."
)
SIZE = 10_000
REQUESTS = 500_000
PEERS: dict[str, Any] = {
    "lru-dict, LRU": LruDict,
    "cachebox, FIFO": cachebox.FIFOCache,
    "cachebox, LRU": cachebox.LRUCache,
    "cachebox, LFU": cachebox.LFUCache,
    "cachetools, LRU": cachetools.LRUCache,
}
OF_POLICY = {
    "fifo": ["cachebox, FIFO"],
    "lfu": ["cachebox, LFU"],
    "tinylfu": ["theine, W-TinyLFU"],
}


def rows() -> list[Row]:
    return [*times(), *hit_ratios()]


def times() -> list[Row]:
    rows = []
    for name in POLICIES:
        peers = OF_POLICY.get(name, ["lru-dict, LRU", "cachebox, LRU"])
        for what, measured in (
            ("get(key), hits in random order", gets),
            ("put of a key that is there", replacing_puts),
            ("put of a new key, full", evicting_puts),
        ):
            found = measured(name, peers)
            best = min(peers, key=lambda peer: found[peer].thread)
            rows.append(slower(f"{POLICIES[name].__name__}: {what}", found, best, 2.0, best))
    found = gets("lru", ["cachetools, LRU"])
    what = "Lru: get(key), hits in random order"
    return [*rows, slower(what, found, "cachetools, LRU", None, "cachetools, LRU")]


def fill(name: str) -> Any:
    """A cache with the keys 0 to SIZE - 1; the peer's, or ours by the name of its policy."""
    if name.startswith("theine"):
        cache = theine.Cache[int, int](SIZE)
        for number in range(SIZE):
            cache.set(number, number)
        return cache
    cache = PEERS[name](SIZE) if name in PEERS else make(name, SIZE)
    for number in range(SIZE):
        cache[number] = number
    return cache


def random_keys() -> Iterator[int]:
    """Those of a full cache, over and over, in an order that no list of the cache has."""
    return itertools.cycle(random.Random(3).sample(range(SIZE), SIZE))


def gets(name: str, peers: list[str]) -> dict[str, Times]:
    return compare(
        **{
            subject: call("get(next(keys))", get=fill(of).get, keys=random_keys())
            for subject, of in {"ours": name, **dict(zip(peers, peers, strict=True))}.items()
        }
    )


def replacing_puts(name: str, peers: list[str]) -> dict[str, Times]:
    return compare(ours=put_of(name, random_keys()), **{p: put_of(p, random_keys()) for p in peers})


def evicting_puts(name: str, peers: list[str]) -> dict[str, Times]:
    """Keys that are new, one after the other, so that each put evicts one."""
    return compare(
        ours=put_of(name, itertools.count(SIZE)),
        **{peer: put_of(peer, itertools.count(SIZE)) for peer in peers},
    )


def put_of(name: str, keys: Iterator[int]) -> Subject:
    statement = "put(next(keys), 7)" if name.startswith("theine") else "cache[next(keys)] = 7"
    cache = fill(name)
    return call(statement, cache=cache, keys=keys, put=getattr(cache, "set", None))


def hit_ratios() -> list[Row]:
    """On popular keys alone, and mixed with scans: the policies beside LRU."""
    rows = []
    for trace, requests in (("Zipf 0.99", zipf), ("scan-mixed", scan_mixed)):
        for part in (0.01, 0.1):
            found = {
                each.policy: each.hit_ratio
                for each in replay(requests(REQUESTS), capacities=[round(100_000 * part)])
            }
            rows += [
                Row(
                    f"{POLICIES[policy].__name__}: hit ratio, {trace}, {part:.0%} of the keys",
                    f"{found[policy]:.1%}",
                    f"{found['lru']:.1%} (Lru), {found['optimal']:.1%} (optimal)",
                    found[policy] / found["lru"],
                    f"{found[policy] / found['lru']:.2f} x",
                    "> 1 x",
                    found[policy] > found["lru"],
                )
                for policy in ("sieve", "s3fifo", "tinylfu")
            ]
            rows.append(beside_theine(trace, part, list(requests(REQUESTS)), found["tinylfu"]))
    return rows


def beside_theine(trace: str, part: float, requests: list[int], ours: float) -> Row:
    """TinyLfu beside another W-TinyLFU, on the same requests."""
    cache, hits = theine.Cache[int, int](round(100_000 * part)), 0
    for key in requests:
        if cache.get(key)[1]:
            hits += 1
        else:
            cache.set(key, 1)
    theirs = hits / len(requests)
    return Row(
        f"TinyLfu: hit ratio, {trace}, {part:.0%} of the keys",
        f"{ours:.1%}",
        f"{theirs:.1%} (theine)",
        ours - theirs,
        f"{100 * (ours - theirs):+.1f} points",
        ">= -1 point",
        ours >= theirs - 0.01,
    )
