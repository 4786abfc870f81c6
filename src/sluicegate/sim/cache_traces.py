"""Generated traces for caches: a million requests each, the same everywhere."""

import itertools
import random
from collections.abc import Callable, Iterator

__all__ = ["TRACES", "drifting", "scan_mixed", "zipf"]

KEYS = 100_000
REQUESTS = 1_000_000


def zipf(
    requests: int = REQUESTS, keys: int = KEYS, exponent: float = 0.99, seed: int = 0
) -> Iterator[int]:
    """Key k is asked for with a weight of 1 / (k + 1) ** exponent, each time anew."""
    drawn = random.Random(seed)
    weights = list(itertools.accumulate((k + 1) ** -exponent for k in range(keys)))
    left = requests
    while left > 0:
        count = min(left, 10_000)
        yield from drawn.choices(range(keys), cum_weights=weights, k=count)
        left -= count


def scan_mixed(
    requests: int = REQUESTS, keys: int = KEYS, every: int = 40_000, scan: int = 20_000
) -> Iterator[int]:
    """As `zipf`, but at times keys come in a row that nobody asks for again: a report, a crawler.

    Of each `every` requests, the last `scan` are of that kind.
    """
    fresh = itertools.count(keys)
    popular = zipf(requests, keys)
    for number in range(requests):
        yield next(popular) if number % every < every - scan else next(fresh)


def drifting(requests: int = REQUESTS, keys: int = KEYS, step: int = 20) -> Iterator[int]:
    """As `zipf`, but the popular keys change: each is one key further every `step` requests."""
    return (key + number // step for number, key in enumerate(zipf(requests, keys)))


TRACES: dict[str, Callable[[], Iterator[int]]] = {
    "zipf": zipf,
    "scan-mixed": scan_mixed,
    "drifting": drifting,
}
