"""An immutable index of all limit entries, which gives a bucket its limit in units per slot.

An entry names a service, a user or `*` (every user without an own entry), how much may pile up
(`burst_seconds`) and a rate for each resource. A resource that no entry names has no limit.

To make a table of 100,000 entries takes about half a second, and to compare two of them a tenth
of that; both belong in a thread. So a table may be made from another one, its base, and remembers
which limits are not in both: when it takes effect, in the central's loop, only they are looked at.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Self

from sluicegate.quota.ledger.limit_entry import Entry

__all__ = ["LimitsTable"]

_UserResource = tuple[str, str]
_EVERYONE = "*"
_VERSIONS = 1 << 56


class LimitsTable:
    """The entries in force. A table is not changed; another one takes its place."""

    def __init__(
        self, entries: Iterable[Entry], slot_seconds: float, base: "LimitsTable | None" = None
    ) -> None:
        self._slot_seconds = slot_seconds
        self._first = 0  # the slot in which the first table took effect
        # Of the limits that started later, by service.
        self._start_slots: dict[str, dict[_UserResource, int]] = {}
        self._entries: dict[str, dict[str, Entry]] = {}
        for entry in entries:
            users = self._entries.setdefault(entry.service, {})
            if entry.user in users:
                raise ValueError(
                    f"expected one entry for each service and user, got two for "
                    f"{entry.service!r} and {entry.user!r}"
                )
            users[entry.user] = entry
        # A sum, not a digest of all of them in order: it is the same in any order, and one entry
        # can be taken out of it.
        self.version = sum(map(_fingerprint, self._all_entries())) % _VERSIONS
        self._lowest = {service: _lowest(users) for service, users in self._entries.items()}
        self._base = base  # until it takes effect
        self._changed = {} if base is None else self._compare(base)

    def _compare(self, other: "LimitsTable") -> dict[str, set[_UserResource]]:
        """By service, the limits that are in only one of the two tables, whatever their rates."""
        changed = {}
        for service in self._entries.keys() | other._entries.keys():
            ours = self._entries.get(service, {})
            theirs = other._entries.get(service, {})
            if ours is not theirs:
                changed[service] = set(_only_in(ours, theirs))
                changed[service].update(_only_in(theirs, ours))
        return changed

    def _all_entries(self) -> Iterator[Entry]:
        for users in self._entries.values():
            yield from users.values()

    # Another table

    def with_entry(self, entry: Entry) -> Self:
        """A table, not active yet, with `entry` in place of that of its service and user."""
        users = dict(self._entries.get(entry.service, {}))
        previous = users.get(entry.user)
        users[entry.user] = entry
        return self._with(entry.service, entry.user, users, previous, entry)

    def without(self, service: str, user: str) -> Self:
        """A table, not active yet, without the entry of `service` and `user`."""
        users = dict(self._entries.get(service, {}))
        return self._with(service, user, users, users.pop(user, None), None)

    def replaced_by(self, entries: Iterable[Entry]) -> Self:
        """A table that has not begun, with `entries` in the place of all of this one."""
        return type(self)(entries, self._slot_seconds, self)

    def _with(
        self,
        service: str,
        user: str,
        users: dict[str, Entry],
        previous: Entry | None,
        after: Entry | None,
    ) -> Self:
        table = type(self)((), self._slot_seconds)
        table._entries = self._entries | {service: users}
        table._lowest = self._lowest | {service: _lowest(users)}
        if not users:
            del table._entries[service], table._lowest[service]
        version = self.version
        version -= 0 if previous is None else _fingerprint(previous)
        version += 0 if after is None else _fingerprint(after)
        table.version = version % _VERSIONS
        table._base = self
        had = {} if previous is None else previous.rates
        has = {} if after is None else after.rates
        table._changed = {service: {(user, resource) for resource in had.keys() ^ has.keys()}}
        return table

    # Time

    def activate(self, slot: int, previous: "LimitsTable | None") -> None:
        """Take effect in `slot`. Limits that were there before go on; the others begin."""
        if previous is None:
            self._first = slot
            return
        self._first = previous._first
        self._start_slots = {
            service: since
            for service, since in previous._start_slots.items()
            if service in self._entries
        }
        for service, changed in self._changed_since(previous).items():
            if service not in self._entries:
                continue
            since = self._start_slots[service] = self._start_slots.get(service, {}).copy()
            for user, resource in changed:
                if not self._has_limit(service, user, resource):
                    since.pop((user, resource), None)
                elif not previous._has_limit(service, user, resource):
                    since[user, resource] = slot
        self._base = None
        self._changed = {}

    def _has_limit(self, service: str, user: str, resource: str) -> bool:
        entry = self._entries.get(service, {}).get(user)
        return entry is not None and resource in entry.rates

    def _changed_since(self, previous: "LimitsTable") -> dict[str, set[_UserResource]]:
        """The limits that may be in only one of the tables, by way of the bases."""
        changed: dict[str, set[_UserResource]] = {}
        table: LimitsTable = self
        while table is not previous:
            if table._base is None:
                return self._compare(previous)
            for service, limits in table._changed.items():
                changed[service] = changed.get(service, set()) | limits
            table = table._base
        return changed

    def started_after(self, slot: int | None) -> list[tuple[str, str, str, int]]:
        """The limits that took effect later than `slot`, and when.

        `slot` is not before the first table took effect.
        """
        return [
            (service, user, resource, since)
            for service, limits in self._start_slots.items()
            for (user, resource), since in limits.items()
            if slot is not None and since > slot
        ]

    def restore_start_slots(self, started: Iterable[tuple[str, str, str, int]]) -> None:
        """Restore the start slots of limits that are still in the table."""
        for service, user, resource, since in started:
            if self._has_limit(service, user, resource):
                self._start_slots.setdefault(service, {})[user, resource] = since

    # Looking

    @property
    def services(self) -> list[str]:
        return list(self._entries)

    def has_entry(self, service: str, user: str) -> bool:
        """Whether `user` has an own entry."""
        return user in self._entries.get(service, ())

    def entry(self, service: str, user: str) -> Entry | None:
        users = self._entries.get(service, {})
        return users.get(user) or users.get(_EVERYONE)

    def bucket_limit(
        self, service: str, user: str, resource: str
    ) -> tuple[float, float, int] | None:
        """A bucket's refill per slot, its capacity, and the slot in which its limit began."""
        entry = self.entry(service, user)
        if entry is None or resource not in entry.rates:
            return None
        rate = entry.rates[resource]
        return (
            rate * self._slot_seconds,
            rate * entry.burst_seconds,
            self._start_slots.get(service, {}).get((entry.user, resource), self._first),
        )

    def newcomers(self, service: str, nodes: int) -> dict[str, float]:
        """A node's share per slot of a user it knows nothing of yet.

        Its limit may be any of the service's: for each resource that of `*`, else the lowest.
        """
        share = self._slot_seconds / max(1, nodes)
        return {name: rate * share for name, rate in self._lowest.get(service, {}).items()}


def _only_in(users: dict[str, Entry], others: dict[str, Entry]) -> Iterator[_UserResource]:
    """The limits, as user and resource, that only the first have."""
    # One by one: two sets at once would not let another thread in meanwhile.
    for user, entry in users.items():
        other = others.get(user)
        if other is not entry:
            for resource in entry.rates:
                if other is None or resource not in other.rates:
                    yield user, resource


def _fingerprint(entry: Entry) -> int:
    """The same for the same entry, in every process."""
    values = (entry.service, entry.user, entry.burst_seconds, sorted(entry.rates.items()))
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=8).digest())


def _lowest(users: dict[str, Entry]) -> dict[str, float]:
    lowest: dict[str, float] = {}
    for entry in users.values():
        for resource, rate in entry.rates.items():
            lowest[resource] = min(rate, lowest.get(resource, rate))
    everyone = users.get(_EVERYONE)
    return {**lowest, **everyone.rates} if everyone else lowest
