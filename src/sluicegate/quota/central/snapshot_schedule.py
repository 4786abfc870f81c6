"""`SnapshotSchedule`: when a central writes its state.

Every 10 s, and every second while nodes come or go and for some seconds after: a state that does
not know the nodes of now holds shares for those that are gone, and none for those that are new.
A node that joins has its share after two slots. It is never written so often that copying takes
more than a hundredth of the time, or writing more than a tenth.

Times are seconds of any clock; slots are the ledger's.
"""

__all__ = ["LEAST_SECONDS", "STATE_SECONDS", "SnapshotSchedule"]

STATE_SECONDS = 10.0
LEAST_SECONDS = 1.0  # between two
_CHANGED_SLOTS = 5  # for which a change of the nodes makes it more frequent
_COPY_PART = 0.01  # of all time
_WRITE_PART = 0.1
_EARLY_SECONDS = 0.1  # timers are not exact: a snapshot must not wait for one more slot


class SnapshotSchedule:
    """Says when a snapshot is due, and is told of each one."""

    __slots__ = ("_allowed", "_begun", "_least", "_seconds")

    def __init__(
        self, now: float, seconds: float = STATE_SECONDS, least: float = LEAST_SECONDS
    ) -> None:
        self._seconds = seconds
        self._least = min(least, seconds)
        self._begun = now  # the last one, or the start
        self._allowed = now  # none is due before

    def is_due(self, now: float, slot: int, nodes_changed: int) -> bool:
        """`nodes_changed`: the slot in which a node last came or went."""
        is_changed = slot - nodes_changed < _CHANGED_SLOTS
        seconds = self._least if is_changed else self._seconds
        return now >= max(self._allowed, self._begun + seconds - _EARLY_SECONDS)

    def begin(self, now: float, copied: float = 0.0) -> None:
        """A snapshot was made; to copy the ledger took so many seconds."""
        self._begun = now
        self._allowed = now + copied / _COPY_PART

    def end(self, now: float, wrote: float) -> None:
        """It is on the disk; to write it took so many seconds."""
        self._allowed = max(self._allowed, now + wrote / _WRITE_PART)

    def __repr__(self) -> str:
        return f"SnapshotSchedule(every {self._seconds:g} s, last at {self._begun:g})"
