"""Argument checks. An error has the name of the argument, what was expected, and the value."""

import math

__all__ = [
    "check_between",
    "check_number",
    "check_positive",
    "check_text",
    "check_timeout",
    "check_whole",
    "encode_utf8",
]


def check_positive(name: str, value: float) -> float:
    """Return `value` as a float; it must be a finite number above zero."""
    number = check_number(name, value)
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}")
    return number


def check_between(name: str, value: float, least: float, most: float) -> float:
    """Return `value` as a float; it must be a number from `least` to `most`."""
    number = check_number(name, value)
    if isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not least <= number <= most:
        raise ValueError(f"{name} must be from {least:g} to {most:g}, got {value!r}")
    return number


def check_number(name: str, value: float) -> float:
    """Return `value` as a float; it must be a number, not a string that looks like one."""
    if isinstance(value, str | bytes | bytearray):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except TypeError:
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    except OverflowError:
        raise ValueError(f"{name} must be a finite number, got {value!r}") from None


def check_whole(name: str, value: int, least: int) -> int:
    """Return `value`; it must be an int, from `least` to 2^53."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if not least <= value <= 2**53:
        raise ValueError(f"{name} must be from {least} to 2^53, got {value!r}")
    return value


def check_text(name: str, value: str) -> str:
    """Return `value`; it must be a non-empty str."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {value!r}")
    if not value:
        raise ValueError(f"{name} must not be empty, got {value!r}")
    return value


def encode_utf8(name: str, value: str) -> bytes:
    """Return a non-empty str as UTF-8. A lone surrogate has none: no frame could carry it."""
    try:
        return check_text(name, value).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be encodable as UTF-8, got {value!r}") from None


def check_timeout(timeout: float | None) -> float:
    """Return a caller's timeout in seconds, 0 or more; None means no timeout."""
    if timeout is None:
        return math.inf
    seconds = check_number("timeout", timeout)
    if not seconds >= 0.0:
        raise ValueError(f"timeout must be None or seconds >= 0, got {timeout!r}")
    return seconds
