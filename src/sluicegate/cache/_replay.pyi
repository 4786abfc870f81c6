from array import array
from typing import Any

__all__ = ["count_hits", "next_uses", "optimal_hits"]

def count_hits(cache: Any, numbers: array[int], keys: list[int]) -> int: ...
def next_uses(numbers: array[int], distinct: int) -> array[int]: ...
def optimal_hits(
    numbers: array[int], nexts: array[int], distinct: int, capacity: int
) -> int: ...
