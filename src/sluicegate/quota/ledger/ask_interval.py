"""How often nodes may ask: so often that the central can answer all of them.

The interval grows with the number of nodes, so that their frames are not too many. That is a guess
of what the central can do; how late its timers fire says whether it does. While they are late the
interval grows further, and it falls slowly when they are not.
"""

__all__ = ["AskInterval"]

_MIN_SECONDS, _MAX_SECONDS, _MAX_LATE_SECONDS = 0.05, 0.5, 1.0
_ASKS_PER_SECOND = 1_500  # of all nodes together
_LATE_SECONDS, _PUNCTUAL_SECONDS = 0.05, 0.02
_SLOWER, _FASTER, _MAX_SLOWDOWN = 1.25, 0.98, 4.0
_FEWER_NODES = 0.9


class AskInterval:
    """The seconds between two asks of a node, at least."""

    def __init__(self) -> None:
        self._nodes = 0.0
        self._slowdown = 1.0

    def seconds(self, live_nodes: int) -> float:
        nodes = max(self._nodes, live_nodes)
        interval = min(_MAX_SECONDS, max(_MIN_SECONDS, nodes / _ASKS_PER_SECOND))
        return min(_MAX_LATE_SECONDS, self._slowdown * interval)

    def end_slot(self, live_nodes: int) -> None:
        """The number of nodes falls slowly: late reports are no reason to ask more often."""
        self._nodes = max(live_nodes, _FEWER_NODES * self._nodes)

    def note_delay(self, seconds: float) -> None:
        """A timer of the central has fired so late. Has to be told every 0.1 s.

        The interval grows by a quarter each time it is late, up to four times and one second, and
        falls by a fifth per second.
        """
        if seconds > _LATE_SECONDS:
            self._slowdown = min(_MAX_SLOWDOWN, _SLOWER * self._slowdown)
        elif seconds < _PUNCTUAL_SECONDS:
            self._slowdown = max(1.0, _FASTER * self._slowdown)
