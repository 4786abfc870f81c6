"""Arguments, checked at the door: the error has the name, the value, and what was expected."""

import math

__all__ = ["positive", "real", "text", "timeout_seconds", "utf8", "whole"]


def positive(name: str, value: float) -> float:
    """Return `value` as a float; it must be a finite number above zero."""
    number = real(name, value)
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
    return number


def real(name: str, value: float) -> float:
    """Return `value` as a float; it must be a number, and no string that looks like one."""
    if isinstance(value, str | bytes | bytearray):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except TypeError:
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    except OverflowError:
        raise ValueError(f"{name} must be a finite number, got {value!r}") from None


def whole(name: str, value: int, least: int) -> int:
    """Return `value`; it must be an int, from `least` to 2^53."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if not least <= value <= 2**53:
        raise ValueError(f"{name} must be from {least} to 2^53, got {value!r}")
    return value


def text(name: str, value: str) -> str:
    """Return `value`; it must be a str with something in it."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {value!r}")
    if not value:
        raise ValueError(f"{name} must not be empty, got {value!r}")
    return value


def utf8(name: str, value: str) -> bytes:
    """Return the bytes of a text. Half of a surrogate pair has none: no frame could carry it."""
    try:
        return text(name, value).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be text that has UTF-8, got {value!r}") from None


def timeout_seconds(timeout: float | None) -> float:
    """Check a caller's time-out: seconds from 0 up; None waits as long as it takes."""
    if timeout is None:
        return math.inf
    seconds = real("timeout", timeout)
    if not seconds >= 0.0:
        raise ValueError(f"timeout must be None or seconds >= 0, got {timeout!r}")
    return seconds
