"""Per-address ban list: bans addresses that keep sending malformed frames.

A single bad frame costs its own connection at most. An address that sends many of them within a
minute is banned for a while: it may not open new connections; those it has go on. Addresses are
forgotten after their minute, and when there are too many of them, the oldest first.

Times are monotonic seconds, given by the caller.
"""

__all__ = ["BanList"]

_WINDOW = 60.0


class BanList:
    """Counts the bad frames of each address in its current minute."""

    def __init__(
        self, *, max_bad_frames: int = 100, ban_seconds: float = 30.0, max_addresses: int = 10_000
    ) -> None:
        self._max_bad_frames = max_bad_frames
        self._ban_seconds = ban_seconds
        self._max_addresses = max_addresses
        self._counts: dict[str, tuple[float, int]] = {}  # start of the minute, frames since
        self._banned_until: dict[str, float] = {}

    def record(self, now: float, address: str) -> None:
        """Count a bad frame from `address`."""
        start, count = self._counts.pop(address, (now, 0))
        if now - start >= _WINDOW:
            start, count = now, 0
        if count + 1 < self._max_bad_frames:
            self._counts[address] = start, count + 1
        else:
            self._banned_until[address] = now + self._ban_seconds
        if len(self._counts) > self._max_addresses:
            del self._counts[next(iter(self._counts))]
        if len(self._banned_until) > self._max_addresses:
            del self._banned_until[next(iter(self._banned_until))]

    def is_banned(self, now: float, address: str) -> bool:
        until = self._banned_until.get(address)
        if until is None:
            return False
        if now < until:
            return True
        del self._banned_until[address]
        return False
