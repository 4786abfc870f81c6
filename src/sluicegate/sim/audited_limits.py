"""The limits in force, as the auditor knows them, and the cells that they apply to.

A cell is one resource of a user of a service. Limits change for the auditor when a central first
speaks of a new version of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sluicegate.quota.ledger.limit_entry import Entry
from sluicegate.sim.scenario import Scenario, all_limits, entry_of, rate_of

__all__ = ["AuditedLimits", "Cell", "Key"]

Key = tuple[str, str, str]  # service, user, resource

_LEAST_BURST_SECONDS = 0.25  # a bucket holds the refill of this time, at least


@dataclass(slots=True, eq=False)
class Cell:
    """One resource of a user of a service, in all books. It is its own key: to hash three names
    at each step would take most of the auditor's time."""

    key: Key
    is_always_limited: bool  # nodes do not count users without a limit
    rate: float | None = None  # units per slot; None: no limit
    capacity: float = 0.0
    since: float = -math.inf  # the slot in which the user was first limited
    unit: float = 1.0  # the most that one request took
    least: float = math.inf  # the least
    consumed: float = 0.0  # by all requests that have ended


class AuditedLimits:
    """All cells of a run, with the limits in force."""

    def __init__(self, scenario: Scenario) -> None:
        self.version: int | None = None
        self._slot_seconds = scenario.slot_seconds
        self._all_limits = all_limits(scenario)
        self._entries: Sequence[Entry] = scenario.limits
        self._coming: Sequence[Entry] | None = None
        self._cells: dict[Key, Cell] = {}
        self._limited: dict[tuple[str, str], list[Cell]] = {}  # by service and user

    def cell(self, service: str, user: str, resource: str) -> Cell:
        key = (service, user, resource)
        cell = self._cells.get(key)
        if cell is None:
            is_always_limited = all(
                rate_of(entries, *key) is not None for entries in self._all_limits
            )
            cell = self._cells[key] = Cell(key, is_always_limited)
            self._set_limit(cell)
        return cell

    def limited_cells(self, service: str, user: str) -> list[Cell]:
        """The cells of a user that have a limit now."""
        cells = self._limited.get((service, user))
        if cells is None:
            entry = entry_of(self._entries, service, user)
            resources = entry.rates if entry is not None else ()
            cells = [self.cell(service, user, resource) for resource in resources]
            self._limited[service, user] = cells
        return cells

    def will_be(self, entries: Sequence[Entry]) -> None:
        """The centrals are given new limits, and apply them soon."""
        self._coming = entries

    def hear(self, version: int, slot: float) -> None:
        """A central speaks of this version of the limits."""
        if version == self.version:
            return
        is_first, self.version = self.version is None, version
        if is_first or self._coming is None:
            return
        before, self._entries, self._coming = self._entries, self._coming, None
        self._limited.clear()
        for cell in self._cells.values():
            if entry_of(before, *cell.key[:2]) is None:
                cell.since = math.floor(slot)
            self._set_limit(cell)

    def _set_limit(self, cell: Cell) -> None:
        service, user, resource = cell.key
        entry = entry_of(self._entries, service, user)
        if entry is None or resource not in entry.rates:
            cell.rate, cell.capacity = None, 0.0
        else:
            rate = entry.rates[resource]
            cell.rate = rate * self._slot_seconds
            cell.capacity = rate * max(entry.burst_seconds, _LEAST_BURST_SECONDS)
