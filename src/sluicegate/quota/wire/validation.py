"""Validation of the numbers and names in a frame; a ProtocolError says what is wrong.

Amounts are from 0 to 1e18 in the resource's unit, times at most 1e12 s from zero, durations at
most an hour, whole numbers below 2**53, so that a language with doubles only can hold them. Names
are 1 to 200 bytes of UTF-8 (a service's: 50).
"""

from typing import NoReturn

from sluicegate.errors import ProtocolError

__all__ = ["MAX_AMOUNT", "amount", "duration", "fail", "flag", "name", "time", "whole"]

MAX_AMOUNT = 1e18
_MAX_SECONDS = 1e12
_MAX_DURATION = 3600.0
_MAX_WHOLE = 1 << 53


def fail(what: str, value: object, expected: str) -> NoReturn:
    shown = repr(value)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    raise ProtocolError(f"{what} is {shown}, expected {expected}")


def name(what: str, value: object, most: int) -> str:
    """A name; `most` is in bytes of UTF-8."""
    if type(value) is str and 0 < len(value) <= most:
        try:
            if value.isascii() or len(value.encode()) <= most:
                return value
        except UnicodeEncodeError:
            pass
    fail(what, value, f"a name of 1 to {most} bytes of UTF-8")


def amount(what: str, value: object) -> float:
    if type(value) in (int, float) and 0.0 <= value <= MAX_AMOUNT:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    fail(what, value, f"an amount from 0 to {MAX_AMOUNT:g}")


def time(what: str, value: object) -> float:
    if type(value) in (int, float) and -_MAX_SECONDS <= value <= _MAX_SECONDS:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    fail(what, value, f"seconds from -{_MAX_SECONDS:g} to {_MAX_SECONDS:g}")


def duration(what: str, value: object) -> float:
    if type(value) in (int, float) and 0.0 <= value <= _MAX_DURATION:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    fail(what, value, f"seconds from 0 to {_MAX_DURATION:g}")


def whole(what: str, value: object, least: int = 0, most: int = _MAX_WHOLE) -> int:
    """A whole number from `least` to below `most`; 5.0 is one too: some languages know no other."""
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is int and least <= value < most:
        return value
    fail(what, value, f"a whole number from {least} to {most - 1}")


def flag(what: str, value: object) -> bool:
    if type(value) is bool:
        return value
    fail(what, value, "true or false")
