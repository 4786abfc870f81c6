"""Errors, by whose fault they are.

The caller's mistakes are `ValueError` and `TypeError`. Everything else that
Sluicegate raises on purpose comes from `SluicegateError`, so one `except` catches
"the limiter said no, or could not say" and nothing that is a bug in the caller.
"""

__all__ = [
    "ClockMovedBackwards",
    "ConfigError",
    "ProtocolError",
    "SluicegateError",
    "TableFull",
    "Unavailable",
    "describe",
    "reason_of",
]


class SluicegateError(Exception):
    """The root of all errors that are not the caller's mistake."""


def reason_of(error: Exception) -> str:
    """The reason of an error of the system, without its number and without the name of the file."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def describe(error: BaseException) -> str:
    """The type and the message of an error, as text that can be encoded.

    Its `__str__` may itself raise.
    """
    try:
        return f"{type(error).__name__}: {error}".encode(errors="replace").decode()
    except Exception as failure:  # noqa: BLE001  it is the user's
        return f"{type(error).__name__}: its message raised {type(failure).__name__}"


class ConfigError(SluicegateError):
    """The configuration (a file, a flag, the environment) cannot be used as it is."""


class TableFull(SluicegateError):
    """A table in shared memory holds as many keys as it was made for, or memory has run out."""


class Unavailable(SluicegateError):
    """The world did not answer: a machine that is down, a network that is slow, a full disk."""


class ProtocolError(SluicegateError):
    """The peer sent what makes no sense in the protocol that was agreed on."""


class ClockMovedBackwards(SluicegateError):
    """The wall clock stepped back further than can be waited out.

    `last` and `now` are Unix times in seconds: the newest time that was
    already used, and what the clock says now.
    """

    def __init__(self, last: float, now: float) -> None:
        super().__init__(
            f"the clock moved backwards by {last - now:.3f} s, from {last:.3f} to {now:.3f} "
            f"(Unix time); at most 1 s is waited out"
        )
        self.last = last
        self.now = now

    def __reduce__(self) -> tuple[type["ClockMovedBackwards"], tuple[float, float]]:
        return type(self), (self.last, self.now)
