"""Bars in a line of text, against a limit: nine heights, from nothing to twice the limit.

Colours are Rich's markup: green up to the limit, yellow above it.
"""

import itertools
import re
from collections.abc import Iterable

__all__ = ["ASCII", "AT_LIMIT", "BLOCKS", "bar_height", "draw", "plain"]

BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII = " .:-=+*#@"
AT_LIMIT = 4  # of the nine heights above


def bar_height(amount: float, limit: float) -> int:
    """How high the bar of an amount is; the least amount can be seen."""
    if not amount:
        return 0
    return min(max(round(amount / limit * AT_LIMIT), 1), len(BLOCKS) - 1) if limit else 1


def draw(heights: Iterable[int], bars: str) -> str:
    """The bars, in Rich's markup. `bars` are the nine heights as characters."""
    drawn = ""
    for is_above, run in itertools.groupby(heights, lambda height: height > AT_LIMIT):
        colour = "yellow" if is_above else "green"
        drawn += f"[{colour}]{''.join(bars[height] for height in run)}[/]"
    return drawn


def plain(markup: str) -> str:
    """The same text without Rich's markup, for where there is no terminal."""
    return re.sub(r"\[/?[a-z]*\]", "", markup)
