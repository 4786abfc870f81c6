"""`MemoryLimits`: a list of limits in memory, editable, lost when the program ends."""

import threading
from collections.abc import Iterable

from sluicegate.errors import ConfigError
from sluicegate.quota.central.limit_sources.source import Limits
from sluicegate.quota.ledger.limit_entry import Entry, read_tables

__all__ = ["MemoryLimits"]


class MemoryLimits:
    """Entries in memory."""

    name = "memory"
    is_editable = True

    def __init__(self, limits: Limits) -> None:
        entries, faults = read_tables(limits)
        if faults:
            # The program can fix its list now: no running central depends on it.
            raise ConfigError(faults[0].removesuffix("; skipped"))
        self._lock = threading.Lock()
        self._entries = _by_name(entries)
        self._version = 0

    def __repr__(self) -> str:
        return f"MemoryLimits({len(self._entries)} entries)"

    def load(self) -> tuple[list[Entry], list[str]]:
        with self._lock:
            return list(self._entries.values()), []

    def version_token(self) -> object:
        return self._version

    def is_own_write(self, before: object, after: object) -> bool:
        return isinstance(before, int) and after == before + 1

    def put(self, entry: Entry) -> None:
        with self._lock:
            self._entries[entry.service, entry.user] = entry
            self._version += 1

    def remove(self, service: str, user: str) -> bool:
        with self._lock:
            self._version += 1
            return self._entries.pop((service, user), None) is not None

    def replace(self, entries: Iterable[Entry]) -> None:
        with self._lock:
            self._entries = _by_name(entries)
            self._version += 1

    def close(self) -> None:
        pass


def _by_name(entries: Iterable[Entry]) -> dict[tuple[str, str], Entry]:
    return {(entry.service, entry.user): entry for entry in entries}
