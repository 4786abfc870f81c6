"""The edits of limits: set one entry, remove one, replace all.

Each can be applied to a source, and to the limits that were loaded from it before. Loading 100,000
entries again because of one takes seconds; applying the edit to the table, a few hundredths of one.
"""

from dataclasses import dataclass
from typing import TypeAlias

from sluicegate.quota.central.limit_sources import LimitsSource
from sluicegate.quota.ledger.limit_entry import Entry
from sluicegate.quota.ledger.limits_table import LimitsTable

__all__ = ["Change", "LoadedLimits", "Put", "Remove", "Replace"]

LoadedLimits: TypeAlias = tuple[list[Entry], LimitsTable]


@dataclass(frozen=True, slots=True)
class Put:
    """Set the entry of its service and user."""

    entry: Entry

    def apply_to_source(self, source: LimitsSource) -> bool:
        source.put(self.entry)
        return True

    def apply_to_table(self, limits: LoadedLimits) -> LoadedLimits:
        entries, table = limits
        new = self.entry
        changed = [
            new if entry.user == new.user and entry.service == new.service else entry
            for entry in entries
        ]
        if not table.has_entry(new.service, new.user):
            changed.append(new)
        return changed, table.with_entry(new)


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the entry of a service and user; done: whether there was one."""

    service: str
    user: str

    def apply_to_source(self, source: LimitsSource) -> bool:
        return source.remove(self.service, self.user)

    def apply_to_table(self, limits: LoadedLimits) -> LoadedLimits:
        entries, table = limits
        left = [
            entry for entry in entries if entry.user != self.user or entry.service != self.service
        ]
        return left, table.without(self.service, self.user)


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace all entries."""

    entries: list[Entry]

    def apply_to_source(self, source: LimitsSource) -> bool:
        source.replace(self.entries)
        return True

    def apply_to_table(self, limits: LoadedLimits) -> LoadedLimits:
        return self.entries, limits[1].replaced_by(self.entries)


Change: TypeAlias = Put | Remove | Replace
