"""Types of command-line arguments: each raises ArgumentTypeError with the wrong text."""

import argparse
import math

__all__ = ["count", "integer", "seconds"]


def integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected an integer, got {text!r}") from None


def count(text: str) -> int:
    """An integer of 1 or more."""
    number = integer(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected an integer above 0, got {text!r}")
    return number


def seconds(text: str) -> float:
    """A finite duration above 0."""
    try:
        duration = float(text)
    except ValueError:
        duration = math.nan
    if not 0 < duration < math.inf:
        raise argparse.ArgumentTypeError(f"expected a finite number above 0, got {text!r}")
    return duration
