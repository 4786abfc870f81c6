"""`name_list`: names for a line of the log, which stays short however many there are."""

from collections.abc import Collection
from itertools import islice

__all__ = ["name_list"]

_MOST_NAMES = 8


def name_list(names: Collection[str]) -> str:
    """The names, or the first of them and how many more there are."""
    text = ", ".join(islice(names, _MOST_NAMES))
    return text if len(names) <= _MOST_NAMES else f"{text} and {len(names) - _MOST_NAMES} more"
