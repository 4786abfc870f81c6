"""`Limit`, and the strings that people write for it.

    100/second
    100 per 5 minutes
    1000/hour burst 50
    10/second; 5000/day          several: all must agree

A string is `AMOUNT / [COUNT] UNIT [burst AMOUNT]`, with `per` as good as `/`.
Units are millisecond, second, minute, hour, day and week, also in the plural and
as ms, s, sec, min, m, h, hr, d, w.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from sluicegate._validate import check_positive

__all__ = ["Key", "Limit", "LimitLike", "as_limits", "parse_limits"]

_SECONDS = {
    "millisecond": 0.001,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
    "week": 604800.0,
}
_SHORT = {
    "ms": "millisecond",
    "s": "second",
    "sec": "second",
    "m": "minute",
    "min": "minute",
    "h": "hour",
    "hr": "hour",
    "d": "day",
    "w": "week",
}
_WORD = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?|[^\W\d]+|.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Limit:
    """`amount` units per `per` seconds.

    `burst` is how much a token bucket holds; left out, it holds `amount`, and at least
    1. The window algorithms have no burst: what fits their window is `amount`.
    """

    amount: float
    per: float
    burst: float | None = None

    def __post_init__(self) -> None:
        for name in ("amount", "per") if self.burst is None else ("amount", "per", "burst"):
            object.__setattr__(self, name, check_positive(name, getattr(self, name)))

    @property
    def rate(self) -> float:
        """Units per second."""
        return self.amount / self.per

    def __str__(self) -> str:
        text = f"{_number(self.amount)}/{_duration(self.per)}"
        return text if self.burst is None else f"{text} burst {_number(self.burst)}"


LimitLike = str | Limit | Iterable[str | Limit]
Key = str | bytes | int | tuple["Key", ...]


def parse_limits(text: str) -> tuple[Limit, ...]:
    """Read one limit or several, separated by `;`.

    >>> parse_limits("10/second; 1000/hour burst 50")
    (Limit(amount=10.0, per=1.0, burst=None), Limit(amount=1000.0, per=3600.0, burst=50.0))
    """
    if not isinstance(text, str):
        raise TypeError(f"limit must be a string like '10/second', got {text!r}")
    words = [(match[1], match.start(1) + 1) for match in _WORD.finditer(text) if match[1].strip()]
    return tuple(_Reader(text, words).limits())


def as_limits(limit: LimitLike) -> tuple[Limit, ...]:
    """Make a `Limit`, a string, or several of them one tuple of limits."""
    if isinstance(limit, Limit):
        return (limit,)
    if isinstance(limit, str):
        return parse_limits(limit)
    if not isinstance(limit, Iterable) or isinstance(limit, bytes | bytearray):
        raise TypeError(f"expected a Limit, a string like '10/second' or several, got {limit!r}")
    limits = tuple(one for several in limit for one in as_limits(several))
    if not limits:
        raise ValueError("expected at least one limit, got none")
    return limits


class _Reader:
    """A recursive descent over the words and their columns."""

    def __init__(self, text: str, words: list[tuple[str, int]]) -> None:
        self.text = text
        self.words = words
        self.at = 0

    def limits(self) -> Iterable[Limit]:
        yield self.limit()
        while self.at < len(self.words):
            self.expect(";", "or the end")
            if self.at < len(self.words):  # a closing ';' is harmless
                yield self.limit()

    def limit(self) -> Limit:
        amount = self.number()
        if self.peek().lower() == "per":
            self.at += 1
        else:
            self.expect("/", "or 'per'")
        count = self.number() if self.peek()[:1].isdecimal() or self.peek()[:1] == "." else 1.0
        column = self.words[self.at][1] if self.at < len(self.words) else 0
        per = count * self.unit()
        if not 0 < per < math.inf:
            raise ValueError(f"expected a finite duration at column {column} of {self.text!r}")
        burst = None
        if self.peek().lower() == "burst":
            self.at += 1
            burst = self.number()
        return Limit(amount, per, burst)

    def peek(self) -> str:
        return self.words[self.at][0] if self.at < len(self.words) else ""

    def take(self) -> tuple[str, int]:
        word = self.words[self.at] if self.at < len(self.words) else ("", len(self.text) + 1)
        self.at += 1
        return word

    def expect(self, wanted: str, alternative: str) -> None:
        word, column = self.take()
        if word != wanted:
            raise self.error(f"expected {wanted!r} {alternative}", word, column)

    def number(self) -> float:
        word, column = self.take()
        try:
            value = float(word)
        except ValueError:
            raise self.error("expected a number", word, column) from None
        if not 0 < value < math.inf:
            raise self.error("expected a finite number above 0", word, column)
        return value

    def unit(self) -> float:
        word, column = self.take()
        name = word.lower()
        if name not in _SHORT:
            name = name.removesuffix("s")
        name = _SHORT.get(name, name)
        if name not in _SECONDS:
            if not word:
                raise self.error("expected a unit", word, column)
            raise ValueError(f"unknown unit {word!r} at column {column} of {self.text!r}")
        return _SECONDS[name]

    def error(self, expected: str, word: str, column: int) -> ValueError:
        found = repr(word) if word else "the end"
        return ValueError(f"{expected}, found {found} at column {column} of {self.text!r}")


def _duration(seconds: float) -> str:
    for name, length in reversed(_SECONDS.items()):
        count = seconds / length
        if count == 1:
            return name
        if count > 1 and count == int(count):
            return f"{_number(count)} {name}s"
    return f"{_number(seconds)} seconds"


def _number(value: float) -> str:
    """As people write it, where that reads back the same."""
    short = f"{value:.15g}"
    return short if float(short) == value else repr(value)
