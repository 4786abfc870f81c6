"""`ServerClock`: the time of Redis, from the local clock and the last replies that told it.

Redis told its time somewhere between the sending of a command and the reply: the middle is taken,
of the quickest of the last replies. A reply that contradicts it, for Redis was replaced or its
clock was set, replaces them all.
"""

from collections import deque

__all__ = ["ServerClock"]

_REPLIES = 8
_TOLERANCE = 0.02  # seconds by which clocks may drift apart between replies


class ServerClock:
    """Times are in seconds: local ones monotonic, those of Redis since 1970."""

    def __init__(self) -> None:
        self._replies: deque[tuple[float, float]] = deque(maxlen=_REPLIES)  # (round trip, offset)
        self._offset = 0.0

    @property
    def is_set(self) -> bool:
        return bool(self._replies)

    def observe(self, sent: float, time: float, received: float) -> None:
        """Redis told `time` in reply to a command between two local times."""
        round_trip = received - sent
        offset = time - (sent + received) / 2
        if self._replies:
            known_trip, known_offset = min(self._replies)
            if abs(offset - known_offset) > (round_trip + known_trip) / 2 + _TOLERANCE:
                self._replies.clear()
        self._replies.append((round_trip, offset))
        self._offset = min(self._replies)[1]

    def now(self, local: float) -> float:
        """The time of Redis at a local time."""
        return local + self._offset
