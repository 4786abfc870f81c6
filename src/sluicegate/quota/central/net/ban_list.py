"""Remembers which addresses send what makes no sense, and turns away those that go on with it.

A single bad frame costs its own connection at most. An address that sends many in a minute is
barred for a while: it may not open new connections; those it has go on. Addresses are forgotten
after their minute, and when there are too many of them, the oldest first.

Times are monotonic seconds, given by the caller.
"""

__all__ = ["BadFrames"]

_WINDOW = 60.0


class BadFrames:
    """The bad frames of each address in its current minute."""

    def __init__(
        self, *, most: int = 100, bar_seconds: float = 30.0, addresses: int = 10_000
    ) -> None:
        self._most = most
        self._bar_seconds = bar_seconds
        self._addresses = addresses
        self._counts: dict[str, tuple[float, int]] = {}  # when the minute began, how many since
        self._barred: dict[str, float] = {}  # until when

    def note(self, now: float, address: str) -> None:
        """A bad frame has come from `address`."""
        begun, count = self._counts.pop(address, (now, 0))
        if now - begun >= _WINDOW:
            begun, count = now, 0
        if count + 1 < self._most:
            self._counts[address] = begun, count + 1
        else:
            self._barred[address] = now + self._bar_seconds
        if len(self._counts) > self._addresses:
            del self._counts[next(iter(self._counts))]
        if len(self._barred) > self._addresses:
            del self._barred[next(iter(self._barred))]

    def is_barred(self, now: float, address: str) -> bool:
        until = self._barred.get(address)
        if until is None:
            return False
        if now < until:
            return True
        del self._barred[address]
        return False
