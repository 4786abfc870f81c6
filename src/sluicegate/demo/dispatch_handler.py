"""The handler of `sluicegate demo dispatch`: a model that is cheaper per item in large batches.

It sleeps instead of computing, so that the capacity of the workers does not depend on the machine.
Its result says who has run an item, and with how many others.
"""

import itertools
import os
import time

__all__ = ["BATCH", "batch_seconds", "handle"]

BATCH = 16
_SECONDS_PER_BATCH = 0.04
_SECONDS_PER_ITEM = 0.01
_numbers = itertools.count()


def batch_seconds(items: int) -> float:
    return _SECONDS_PER_BATCH + _SECONDS_PER_ITEM * items


def handle(items: list[object]) -> list[tuple[int, int, int]]:
    """The process, the number of the batch there, and its size; for each item."""
    time.sleep(batch_seconds(len(items)))
    return [(os.getpid(), next(_numbers), len(items))] * len(items)
