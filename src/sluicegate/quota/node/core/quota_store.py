"""`QuotaStore`: the quotas that a node has received, by slot.

The reporter stores them here, and writes those in effect into the shared memory, where requests
look them up (`_admission.pxd` has the states: fresh, reused, safe, newcomer, free, fallback).

Rules: a Quota of a lower epoch than the highest seen is not let in (`Reporter` sees to that).
A whole Quota replaces what its slot had before, another amends single users. Messages overtake
each other; of two for one user and slot the one of the higher (epoch, time) counts. An amendment
for a slot whose whole Quota was lost names its users; the others go on with the Quota before. Free
users are remembered until `version` changes, and no more than `_MAX_FREE_USERS` of them for each
service: a node asks again for one that was dropped.

Amounts are units per slot.
"""

from collections.abc import Mapping

from sluicegate.quota.messages import Quota, Share

__all__ = ["QuotaStore"]

_MAX_FREE_USERS = 100_000
# Quotas come one slot ahead. A few more may be kept; a wild slot number must fill no memory.
_MAX_SLOTS_AHEAD = 8

_Stamp = tuple[int, float]  # epoch, time
_NEVER: _Stamp = (-1, 0.0)
_SlotView = tuple[int, dict[str, dict[str, float]]]  # slot of the whole Quota, newcomers by service


class _SlotQuota:
    """The quota of one slot."""

    __slots__ = ("amended", "newcomers", "received_in", "slot", "users", "whole_stamp")

    def __init__(self, slot: int, received_in: int) -> None:
        self.slot = slot
        self.received_in = received_in  # the slot in which the first message for it came
        self.whole_stamp: _Stamp | None = None
        self.users: dict[str, dict[str, dict[str, Share]]] = {}
        self.newcomers: dict[str, dict[str, float]] = {}
        self.amended: dict[tuple[str, str], _Stamp] = {}


class QuotaStore:
    """The quotas of this slot, of the coming ones, and of the newest before."""

    def __init__(self, lease: int) -> None:
        self._lease = lease
        self._by_slot: dict[int, _SlotQuota] = {}
        self._usable: list[_SlotQuota] = []  # from this slot back to the newest whole Quota
        self._views: dict[int, _SlotView] = {}  # by slot; a cache that every change clears
        self._slot = 0
        self._frozen_windows = 0
        self._free: dict[str, dict[str, None]] = {}
        self._version: int | None = None
        self._newest = _NEVER
        self.nodes = 0

    @property
    def newest_slot(self) -> int | None:
        """The slot of the newest Quota that is in use."""
        return self._usable[0].slot if self._usable else None

    @property
    def age(self) -> int | None:
        """Slots since the newest Quota in use was fresh."""
        return (
            None if not self._usable else self._slot + self._frozen_windows - self._usable[0].slot
        )

    def set_slot(self, slot: int, frozen_windows: int) -> None:
        """It is `slot` now; it is frozen for that many windows if the leader's clock went back."""
        self._slot = slot
        self._frozen_windows = frozen_windows
        self._prune()

    def rewind(self, slot: int) -> None:
        """Go back to `slot`: quotas of slots too far ahead of it are dropped."""
        latest = slot + _MAX_SLOTS_AHEAD
        self._by_slot = {at: quota for at, quota in self._by_slot.items() if at <= latest}
        self.set_slot(slot, 0)

    def is_free(self, service: str, user: str) -> bool:
        free = self._free.get(service)
        return free is not None and user in free

    def receive(self, quota: Quota) -> bool:
        """Store `quota`. Whether it may change what holds in this slot."""
        stamp = (quota.epoch, quota.time)
        free_changed = self._update_version(quota, stamp)
        slot = quota.slot
        if slot > self._slot + _MAX_SLOTS_AHEAD or (self._usable and slot < self._oldest_needed()):
            return free_changed
        slot_quota = self._by_slot.get(slot)
        if slot_quota is None:
            slot_quota = _SlotQuota(slot, self._slot)
        if quota.whole:
            if slot_quota.whole_stamp is not None and stamp <= slot_quota.whole_stamp:
                return free_changed
            slot_quota = self._replace_whole(slot_quota, quota, stamp)
        elif slot_quota.whole_stamp is not None and stamp < slot_quota.whole_stamp:
            return free_changed
        else:
            self._amend(slot_quota, quota, stamp)
        self._by_slot[slot] = slot_quota
        self._prune()
        return free_changed or slot <= self._slot

    @property
    def version(self) -> int | None:
        """Of the limits; None: no Quota yet."""
        return self._version

    def has(self, slot: int) -> bool:
        """Whether there is a quota for a slot."""
        return slot in self._by_slot

    def arrived_early(self, slot: int) -> bool:
        """Whether a Quota for a slot came more than a slot before it."""
        slot_quota = self._by_slot.get(slot)
        return slot_quota is not None and slot_quota.received_in < slot - 1

    def users(self, slot: int) -> Mapping[str, Mapping[str, dict[str, Share]]]:
        """The shares that were given for a slot, by service and user."""
        slot_quota = self._by_slot.get(slot)
        return {} if slot_quota is None else slot_quota.users

    def view(self, slot: int) -> _SlotView:
        """What holds in a slot for users that no Quota names.

        The slot of the newest whole Quota up to it (-1: none), and newcomers' shares by service.
        """
        view = self._views.get(slot)
        if view is None:
            view = self._views[slot] = self._build_view(slot)
        return view

    def _build_view(self, slot: int) -> _SlotView:
        newcomers: dict[str, dict[str, float]] = {}
        for at in sorted((at for at in self._by_slot if at <= slot), reverse=True):
            slot_quota = self._by_slot[at]
            for service, shares in slot_quota.newcomers.items():
                if not newcomers.get(service):
                    newcomers[service] = shares
            if slot_quota.whole_stamp is not None:
                return at, newcomers
        return -1, newcomers

    def _update_version(self, quota: Quota, stamp: _Stamp) -> bool:
        """Update version and free users. A message that was overtaken does not change them."""
        changed = False
        if stamp >= self._newest:
            self._newest = stamp
            self.nodes = quota.nodes
            if quota.version != self._version:
                self._version = quota.version
                changed = bool(self._free)
                self._free.clear()
        elif quota.version != self._version:
            return False
        for service, part in quota.services.items():
            free = self._free.get(service)
            for user, shares in part.users.items():
                if not shares:
                    if free is None:
                        free = self._free[service] = {}
                    elif user in free:
                        continue
                    elif len(free) >= _MAX_FREE_USERS:
                        del free[next(iter(free))]
                    free[user] = None
                    changed = True
                elif free and user in free:
                    del free[user]
                    changed = True
        return changed

    def _replace_whole(self, old: _SlotQuota, quota: Quota, stamp: _Stamp) -> _SlotQuota:
        slot_quota = _SlotQuota(quota.slot, old.received_in)
        slot_quota.whole_stamp = stamp
        for service, part in quota.services.items():
            slot_quota.users[service] = dict(part.users)
            slot_quota.newcomers[service] = part.newcomers
        for key, amended in old.amended.items():
            if amended >= stamp:  # the answer to an Ask overtook the whole Quota
                service, user = key
                slot_quota.amended[key] = amended
                slot_quota.users.setdefault(service, {})[user] = old.users[service][user]
                slot_quota.newcomers.setdefault(service, old.newcomers[service])
        return slot_quota

    def _amend(self, slot_quota: _SlotQuota, quota: Quota, stamp: _Stamp) -> None:
        for service, part in quota.services.items():
            users = slot_quota.users.setdefault(service, {})
            slot_quota.newcomers.setdefault(service, part.newcomers)
            for user, shares in part.users.items():
                if stamp >= slot_quota.amended.get((service, user), _NEVER):
                    slot_quota.amended[service, user] = stamp
                    users[user] = shares

    def _oldest_needed(self) -> int:
        return self._usable[-1].slot if self._usable[-1].whole_stamp is not None else 0

    def _prune(self) -> None:
        """Keep the newest whole Quota up to this slot, and what came after it."""
        self._views.clear()
        usable: list[_SlotQuota] = []
        for slot in sorted((slot for slot in self._by_slot if slot <= self._slot), reverse=True):
            slot_quota = self._by_slot[slot]
            newer = usable[-1] if usable else None
            if newer is not None and newer.whole_stamp is not None:
                del self._by_slot[slot]
                continue
            if newer is not None and newer.slot < self._slot - self._lease:
                # Both are good for safe shares only: one of them will do.
                _merge(newer, slot_quota)
                del self._by_slot[newer.slot]
                usable.pop()
            usable.append(slot_quota)
        self._usable = usable


def _merge(newer: _SlotQuota, older: _SlotQuota) -> None:
    """Amend `older` by all shares of `newer`."""
    for service, users in newer.users.items():
        older.users.setdefault(service, {}).update(users)
        older.newcomers.setdefault(service, newer.newcomers[service])
