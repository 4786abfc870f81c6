"""The changes that can be made to limits: one entry is set, one is removed, all are replaced.

Each knows how the source is changed, and what the limits are after it if they were known before
it. To read 100,000 entries again because of one takes seconds; to know what they are now, a
few hundredths of one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from sluicegate.quota.central.sources import LimitsSource
from sluicegate.quota.ledger.entry import Entry
from sluicegate.quota.ledger.limits_table import LimitsTable

__all__ = ["Change", "Known", "Put", "Remove", "Replace"]

Known: TypeAlias = tuple[list[Entry], LimitsTable]
_Prepare: TypeAlias = Callable[[Iterable[Entry], LimitsTable], LimitsTable]


@dataclass(frozen=True, slots=True)
class Put:
    """Set the entry of its service and user."""

    entry: Entry

    def make(self, source: LimitsSource) -> bool:
        source.put(self.entry)
        return True

    def after(self, known: Known, prepare: _Prepare) -> Known:
        entries, table = known
        new = self.entry
        changed = [
            new if entry.user == new.user and entry.service == new.service else entry
            for entry in entries
        ]
        if not table.has(new.service, new.user):
            changed.append(new)
        return changed, table.with_entry(new)


@dataclass(frozen=True, slots=True)
class Remove:
    """Take the entry of a service and user away; done: whether there was one."""

    service: str
    user: str

    def make(self, source: LimitsSource) -> bool:
        return source.remove(self.service, self.user)

    def after(self, known: Known, prepare: _Prepare) -> Known:
        entries, table = known
        left = [
            entry for entry in entries if entry.user != self.user or entry.service != self.service
        ]
        return left, table.without(self.service, self.user)


@dataclass(frozen=True, slots=True)
class Replace:
    """These, and no others."""

    entries: list[Entry]

    def make(self, source: LimitsSource) -> bool:
        source.replace(self.entries)
        return True

    def after(self, known: Known, prepare: _Prepare) -> Known:
        return self.entries, prepare(self.entries, known[1])


Change: TypeAlias = Put | Remove | Replace
