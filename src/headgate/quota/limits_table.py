"""Which limit holds for whom, in units per slot.

An entry names a service, a user or `*` (every user without an entry of his own), how much may
pile up (`burst_seconds`) and a rate for each resource. A resource that stands nowhere has no
limit.
"""

import hashlib
from collections.abc import Iterable

from headgate.quota.entries import Entry

__all__ = ["LimitsTable"]

_EVERYONE = "*"
_LARGEST_VERSION = 1 << 56


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
        self.version = _fingerprint(self._entries)
        self._lowest = {service: _lowest(users) for service, users in self._entries.items()}

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
            for user in users.keys() - before._entries.get(service, {}).keys():
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

    @property
    def services(self) -> list[str]:
        return list(self._entries)

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


def _fingerprint(entries: dict[str, dict[str, Entry]]) -> int:
    """The same for the same limits, in every process and in any order.

    A sum, not a digest of all of them in order: sorting many would hold up the other threads.
    """
    total = 0
    for service, users in entries.items():
        for user, entry in users.items():
            terms = (service, user, entry.burst_seconds, sorted(entry.rates.items()))
            digest = hashlib.blake2b(repr(terms).encode(), digest_size=8).digest()
            total += int.from_bytes(digest)
    return total % _LARGEST_VERSION


def _lowest(users: dict[str, Entry]) -> dict[str, float]:
    lowest: dict[str, float] = {}
    for entry in users.values():
        for resource, rate in entry.rates.items():
            lowest[resource] = min(rate, lowest.get(resource, rate))
    everyone = users.get(_EVERYONE)
    return {**lowest, **everyone.rates} if everyone else lowest
