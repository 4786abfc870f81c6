"""What the store was told and has: to compare with what the nodes counted."""

from collections import defaultdict

from sluicegate.stores.store import SyncReply, SyncRequest

__all__ = ["StoreBooks"]


class StoreBooks:
    """The sums of each counter in each period, as they went in and came out of the store."""

    def __init__(self) -> None:
        self.syncs = 0
        self.sums: dict[tuple[str, float], float] = {}  # by name and begin of the period
        self.told: dict[tuple[str, str, float], float] = defaultdict(float)  # by writer as well

    def note(self, request: SyncRequest, reply: SyncReply) -> None:
        self.syncs += 1
        for update, totals in zip(request.updates, reply.totals, strict=True):
            name, begin = update.key.name, update.key.begin
            self.sums[name, begin] = max(self.sums.get((name, begin), 0.0), totals.sum)
            key = request.writer, name, begin
            self.told[key] = max(self.told[key], update.sum)

    def told_by(self, writers: set[str], name: str, begin: float) -> float:
        return sum(self.told.get((writer, name, begin), 0.0) for writer in writers)
