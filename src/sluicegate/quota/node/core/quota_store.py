"""The quotas that a node has in hand: who was given what for which slot, and by which word.

The reporter takes them in here, and brings what counts into the shared memory, where requests look
it up (`_admission.pxd` says what a user has by it: fresh, reused, safe, newcomer, free, fallback).

Rules: a Quota of a lower epoch than the highest seen is not let in (`Reporter` sees to that).
A whole Quota replaces what was said of its slot before, another amends single users. Messages
overtake each other; of two words on one user and slot the one of the higher (epoch, time)
counts. An amendment for a slot whose whole Quota was lost names its users; the others go on with
the Quota before. Free users are remembered until `version` changes, and no more than
`_MOST_FREE` of them for each service: who is dropped from there asks again.

Amounts are units per slot.
"""

from collections.abc import Mapping

from sluicegate.quota.messages import Quota, Share

__all__ = ["QuotasInHand"]

_MOST_FREE = 100_000
# Quotas come one slot ahead. A few more may be kept; a wild slot number must fill no memory.
_AHEAD = 8

_Stamp = tuple[int, float]  # epoch, time
_NEVER: _Stamp = (-1, 0.0)
_View = tuple[int, dict[str, dict[str, float]]]  # slot of the whole Quota, newcomers by service


class _Hand:
    """What is known of one slot."""

    __slots__ = ("amended", "came_in", "newcomers", "slot", "users", "whole")

    def __init__(self, slot: int, came_in: int) -> None:
        self.slot = slot
        self.came_in = came_in  # the slot in which it was first heard of
        self.whole: _Stamp | None = None
        self.users: dict[str, dict[str, dict[str, Share]]] = {}
        self.newcomers: dict[str, dict[str, float]] = {}
        self.amended: dict[tuple[str, str], _Stamp] = {}


class QuotasInHand:
    """The quotas of this slot, of the coming ones, and of the newest before."""

    def __init__(self, lease: int) -> None:
        self._lease = lease
        self._hands: dict[int, _Hand] = {}
        self._usable: list[_Hand] = []  # from this slot back to the newest whole Quota
        self._views: dict[int, _View] = {}  # of slots, since what is in hand changed last
        self._slot = 0
        self._held = 0
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
        return None if not self._usable else self._slot + self._held - self._usable[0].slot

    def turn(self, slot: int, held: int) -> None:
        """It is `slot` now, for the `held`-th time again if the leader's clock went back."""
        self._slot = slot
        self._held = held
        self._prune()

    def go_back(self, slot: int) -> None:
        """It is `slot` now, though later ones have been: what was said of those is void."""
        self._hands = {at: hand for at, hand in self._hands.items() if at <= slot + _AHEAD}
        self.turn(slot, 0)

    def is_free(self, service: str, user: str) -> bool:
        free = self._free.get(service)
        return free is not None and user in free

    def receive(self, quota: Quota) -> bool:
        """Take `quota` in. Whether it may change what holds in this slot."""
        stamp = (quota.epoch, quota.time)
        turned = self._take_version(quota, stamp)
        slot = quota.slot
        if slot > self._slot + _AHEAD or (self._usable and slot < self._oldest_needed()):
            return turned
        hand = self._hands.get(slot)
        if hand is None:
            hand = _Hand(slot, self._slot)
        if quota.whole:
            if hand.whole is not None and stamp <= hand.whole:
                return turned
            hand = self._replaced(hand, quota, stamp)
        elif hand.whole is not None and stamp < hand.whole:
            return turned
        else:
            self._amend(hand, quota, stamp)
        self._hands[slot] = hand
        self._prune()
        return turned or slot <= self._slot

    @property
    def version(self) -> int | None:
        """Of the limits; None: no Quota yet."""
        return self._version

    def has(self, slot: int) -> bool:
        """Whether something is known of a slot."""
        return slot in self._hands

    def came_early(self, slot: int) -> bool:
        """Whether a Quota for a slot came more than a slot before it."""
        hand = self._hands.get(slot)
        return hand is not None and hand.came_in < slot - 1

    def users(self, slot: int) -> Mapping[str, Mapping[str, dict[str, Share]]]:
        """The shares that were given for a slot, by service and user."""
        hand = self._hands.get(slot)
        return {} if hand is None else hand.users

    def view(self, slot: int) -> _View:
        """What holds in a slot for those whom nobody names.

        The slot of the newest whole Quota up to it (-1: none), and newcomers' shares by service.
        """
        view = self._views.get(slot)
        if view is None:
            view = self._views[slot] = self._look_at(slot)
        return view

    def _look_at(self, slot: int) -> _View:
        newcomers: dict[str, dict[str, float]] = {}
        for at in sorted((at for at in self._hands if at <= slot), reverse=True):
            hand = self._hands[at]
            for service, shares in hand.newcomers.items():
                if not newcomers.get(service):
                    newcomers[service] = shares
            if hand.whole is not None:
                return at, newcomers
        return -1, newcomers

    def _take_version(self, quota: Quota, stamp: _Stamp) -> bool:
        """Forget and learn who is free. A message that was overtaken says nothing new of it."""
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
                    elif len(free) >= _MOST_FREE:
                        del free[next(iter(free))]
                    free[user] = None
                    changed = True
                elif free and user in free:
                    del free[user]
                    changed = True
        return changed

    def _replaced(self, old: _Hand, quota: Quota, stamp: _Stamp) -> _Hand:
        hand = _Hand(quota.slot, old.came_in)
        hand.whole = stamp
        for service, part in quota.services.items():
            hand.users[service] = dict(part.users)
            hand.newcomers[service] = part.newcomers
        for key, amended in old.amended.items():
            if amended >= stamp:  # the answer to an Ask overtook the whole Quota
                service, user = key
                hand.amended[key] = amended
                hand.users.setdefault(service, {})[user] = old.users[service][user]
                hand.newcomers.setdefault(service, old.newcomers[service])
        return hand

    def _amend(self, hand: _Hand, quota: Quota, stamp: _Stamp) -> None:
        for service, part in quota.services.items():
            users = hand.users.setdefault(service, {})
            hand.newcomers.setdefault(service, part.newcomers)
            for user, shares in part.users.items():
                if stamp >= hand.amended.get((service, user), _NEVER):
                    hand.amended[service, user] = stamp
                    users[user] = shares

    def _oldest_needed(self) -> int:
        return self._usable[-1].slot if self._usable[-1].whole is not None else 0

    def _prune(self) -> None:
        """Keep the newest whole Quota up to this slot, and what came after it."""
        self._views.clear()
        usable: list[_Hand] = []
        for slot in sorted((slot for slot in self._hands if slot <= self._slot), reverse=True):
            hand = self._hands[slot]
            newer = usable[-1] if usable else None
            if newer is not None and newer.whole is not None:
                del self._hands[slot]
                continue
            if newer is not None and newer.slot < self._slot - self._lease:
                # Both are good for safe shares only: one of them will do.
                _fold(newer, hand)
                del self._hands[newer.slot]
                usable.pop()
            usable.append(hand)
        self._usable = usable


def _fold(newer: _Hand, older: _Hand) -> None:
    """Amend `older` by all that `newer` says."""
    for service, users in newer.users.items():
        older.users.setdefault(service, {}).update(users)
        older.newcomers.setdefault(service, newer.newcomers[service])
