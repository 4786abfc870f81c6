"""Which limit holds for whom, in units per slot.

An entry names a service, a user or `*` (every user without an entry of his own), how much may
pile up (`burst_seconds`) and a rate for each resource. A resource that stands nowhere has no
limit.

To make a table of 100,000 entries takes about a second; one that differs from another in one
entry is made from that in some milliseconds.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Self

from headgate.quota.entries import Entry

__all__ = ["LimitsTable"]

_EVERYONE = "*"
_VERSIONS = 1 << 56


class LimitsTable:
    """The entries in force. A table is not changed; another one takes its place."""

    def __init__(self, entries: Iterable[Entry], slot_seconds: float) -> None:
        self._slot_seconds = slot_seconds
        self._first = 0  # the slot in which the first table took effect
        self._since: dict[tuple[str, str], int] = {}  # of the entries that began later
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
        self.version = sum(map(_fingerprint, self._each())) % _VERSIONS
        self._lowest = {service: _lowest(users) for service, users in self._entries.items()}

    def _each(self) -> Iterator[Entry]:
        for users in self._entries.values():
            yield from users.values()

    # Another table

    def with_entry(self, entry: Entry) -> Self:
        """A table that has not begun, with `entry` in the place of that of its service and user."""
        users = dict(self._entries.get(entry.service, {}))
        before = users.get(entry.user)
        users[entry.user] = entry
        return self._with(entry.service, users, before, entry)

    def without(self, service: str, user: str) -> Self:
        """A table that has not begun, without the entry of `service` and `user`."""
        users = dict(self._entries.get(service, {}))
        return self._with(service, users, users.pop(user, None), None)

    def _with(
        self, service: str, users: dict[str, Entry], before: Entry | None, after: Entry | None
    ) -> Self:
        table = type(self)((), self._slot_seconds)
        table._entries = self._entries | {service: users}
        table._lowest = self._lowest | {service: _lowest(users)}
        if not users:
            del table._entries[service], table._lowest[service]
        version = self.version
        version -= 0 if before is None else _fingerprint(before)
        version += 0 if after is None else _fingerprint(after)
        table.version = version % _VERSIONS
        return table

    # Time

    def begin(self, slot: int, before: "LimitsTable | None") -> None:
        """Take effect in `slot`. Limits of users who had one go on; the others begin."""
        if before is None:
            self._first = slot
            return
        self._first = before._first
        self._since = {
            (service, user): since
            for (service, user), since in before._since.items()
            if user in self._entries.get(service, ())
        }
        for service, users in self._entries.items():
            had = before._entries.get(service, {})
            if users is had:
                continue
            for user in users:
                if user not in had:
                    self._since[service, user] = slot

    def begun_after(self, slot: int | None) -> list[tuple[str, str, int]]:
        """The limits that took effect later than `slot`, and when.

        `slot` is not before the first table took effect.
        """
        return [
            (*name, since)
            for name, since in self._since.items()
            if slot is not None and since > slot
        ]

    def took_effect(self, begun: Iterable[tuple[str, str, int]]) -> None:
        """Take over when limits began, of those that are still here."""
        for service, user, since in begun:
            if user in self._entries.get(service, ()):
                self._since[service, user] = since

    # Looking

    @property
    def services(self) -> list[str]:
        return list(self._entries)

    def has(self, service: str, user: str) -> bool:
        """Whether there is an entry of his own."""
        return user in self._entries.get(service, ())

    def entry(self, service: str, user: str) -> Entry | None:
        users = self._entries.get(service, {})
        return users.get(user) or users.get(_EVERYONE)

    def terms(self, service: str, user: str, resource: str) -> tuple[float, float, int] | None:
        """A bucket's refill per slot, its capacity, and the slot in which its limit began."""
        entry = self.entry(service, user)
        if entry is None or resource not in entry.rates:
            return None
        rate = entry.rates[resource]
        return (
            rate * self._slot_seconds,
            rate * entry.burst_seconds,
            self._since.get((entry.service, entry.user), self._first),
        )

    def newcomers(self, service: str, nodes: int) -> dict[str, float]:
        """A node's share per slot of a user it knows nothing of yet.

        His limit may be any of the service's: for each resource that of `*`, else the lowest.
        """
        share = self._slot_seconds / max(1, nodes)
        return {name: rate * share for name, rate in self._lowest.get(service, {}).items()}


def _fingerprint(entry: Entry) -> int:
    """The same for the same entry, in every process."""
    terms = (entry.service, entry.user, entry.burst_seconds, sorted(entry.rates.items()))
    return int.from_bytes(hashlib.blake2b(repr(terms).encode(), digest_size=8).digest())


def _lowest(users: dict[str, Entry]) -> dict[str, float]:
    lowest: dict[str, float] = {}
    for entry in users.values():
        for resource, rate in entry.rates.items():
            lowest[resource] = min(rate, lowest.get(resource, rate))
    everyone = users.get(_EVERYONE)
    return {**lowest, **everyone.rates} if everyone else lowest
