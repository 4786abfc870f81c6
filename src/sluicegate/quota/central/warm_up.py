"""`WarmUp`: whether a central knows enough of the fleet to take over without a seam.

It is warm at once if it has restored a state, its own or that of a peer. Else it has to listen: a
node reports all its totals in each slot, and after ten slots the buckets are as full or as empty as
if it had always been there (ten seconds is the usual burst). Until then it leads with care, as any
central that starts cold: with safe shares for the nodes that it has not met.
"""

__all__ = ["WarmUp"]

_SLOTS = 10


class WarmUp:
    """`source`: where its state comes from; None: it starts with nothing. Times as for a state."""

    def __init__(self, now: float, slot_seconds: float, source: str | None = None) -> None:
        self.source = source or "reports"
        self.due = now if source else now + _SLOTS * slot_seconds

    def is_warm(self, now: float) -> bool:
        return now >= self.due

    def __repr__(self) -> str:
        return f"WarmUp(source={self.source!r}, due={self.due:g})"
