"""What a node has counted for one user: totals, what this slot took, what is reserved.

A `Tally` is one user of one service; it has a `Cell` for each resource that he consumed or is
limited in. A `Lot` holds the reservations that began in one slot: how many, and the sum for each
resource. Requests are not told apart, so `consume` settles a mean request of the oldest lot; one
record for each running request was turned down, as memory would follow the traffic.

`consumed`, `rejected` and `requests` count from the tally's making; `taken` is of the slot
`Tally.window`; `credit` is carried from slot to slot while the user is on shares without a fresh
Quota. Amounts are floats in the resource's unit, times the node's monotonic seconds.
"""

import math
from collections import deque
from collections.abc import Mapping

from headgate.quota.in_hand import FALLBACK

__all__ = ["Cell", "Lot", "Tally"]

# A mean over about eight requests follows a user who changes, and is not moved by a single one.
_MEAN_WEIGHT = 1 / 8
# Sums of shares are off by rounding; a request is not refused for less than this part of them.
_SLACK = 1e-9
# Of the reports that no leader has acknowledged, so many totals are kept; see `note`.
_MOST_NOTES = 4


class Cell:
    """One user, one resource."""

    __slots__ = (
        "changed",
        "consumed",
        "cost",
        "credit",
        "first",
        "has_credit",
        "has_mean",
        "is_limited",
        "is_start",
        "mean",
        "notes",
        "rejected",
        "requests",
        "resource",
        "settled",
        "taken",
    )

    def __init__(self, resource: str, *, is_start: bool = False) -> None:
        self.resource = resource
        self.is_limited = False  # by the shares in hand
        self.is_start = is_start  # counts the beginnings of requests; in no report
        self.consumed = 0.0
        self.rejected = 0
        self.requests = 0
        self.settled = 0.0
        self.taken = 0.0
        self.mean = 1.0  # of what requests cost; while unknown, a guess
        self.has_mean = False
        self.cost = 0.0  # of the request that is being judged
        self.credit = 0.0
        self.has_credit = False
        self.changed = 0  # the first report that has the newest change
        self.first = 0  # the first report that has it; 0: none yet
        self.notes: list[tuple[int, float]] = []

    def learn(self, amount: float, times: int = 1) -> None:
        """`times` requests have cost `amount` each."""
        if not self.has_mean:
            self.has_mean = True
            self.mean = amount
        elif times == 1:
            self.mean += (amount - self.mean) * _MEAN_WEIGHT
        else:
            self.mean = amount + (self.mean - amount) * (1 - _MEAN_WEIGHT) ** times

    def note(self, sequence: int) -> None:
        """Report `sequence` has `consumed` as it stands now."""
        self.first = self.first or sequence
        if len(self.notes) >= _MOST_NOTES:
            # To drop a note settles later, never too much. The oldest are the next to be
            # acknowledged, so the newest gives way.
            self.notes.pop()
        self.notes.append((sequence, self.consumed))

    def settle(self, sequence: int) -> float:
        """A leader has acknowledged `sequence` and all before it: what of `consumed` it knows."""
        if self.changed <= sequence:
            self.settled = self.consumed
            self.notes.clear()
        while self.notes and self.notes[0][0] <= sequence:
            self.settled = self.notes.pop(0)[1]
        return self.settled


class Lot:
    """The reservations of the requests that began in one slot."""

    __slots__ = ("count", "is_credit", "newest", "sums", "window")

    def __init__(self, window: int, is_credit: bool) -> None:
        self.window = window
        self.is_credit = is_credit
        self.count = 0
        self.newest = 0.0
        self.sums: dict[str, float] = {}

    def settle_one(self) -> dict[str, float]:
        """Take a mean request out, and say what it had reserved."""
        count = self.count
        sums = self.sums
        self.count = count - 1
        if count == 1:
            self.sums = {}
            return sums
        one = {resource: total / count for resource, total in sums.items()}
        for resource, expected in one.items():
            sums[resource] -= expected
        return one


class Tally:
    """One user of one service."""

    __slots__ = (
        "asked",
        "cells",
        "changed",
        "generation",
        "is_credit",
        "is_free",
        "is_paced",
        "limits",
        "lots",
        "name",
        "refused_at",
        "service",
        "start",
        "starts",
        "state",
        "was_idle",
        "was_refused",
        "window",
    )

    def __init__(self, service: str, name: str, window: int, start: float) -> None:
        self.service = service
        self.name = name
        self.start = start  # in [0, 1)
        self.cells: dict[str, Cell] = {}
        self.starts: Cell | None = None
        self.lots: deque[Lot] = deque()
        self.limits: list[tuple[Cell, float]] = []
        self.state = FALLBACK
        self.is_credit = False
        self.is_free = False
        self.generation = -1
        self.window = window - 2  # no traffic in the slot before
        self.was_idle = True
        self.was_refused = False
        self.refused_at = -math.inf
        self.is_paced = False
        self.asked = -1
        self.changed = 0

    def cell(self, resource: str) -> Cell:
        cell = self.cells.get(resource)
        if cell is None:
            cell = self.cells[resource] = Cell(resource)
        return cell

    def start_cell(self) -> Cell:
        if self.starts is None:
            self.starts = Cell("requests", is_start=True)
        return self.starts

    def grow(self, slots: int, *, begins: bool) -> None:
        """Add the shares of `slots` slots to the credit.

        What is left of a slot is carried as long as it is less than one request: else 2.5 per
        slot would be worth 2, and 0.3 one request in four slots. More than that was there to be
        used and was not; of it the larger of the share and one request is kept. A user who has
        no credit yet begins with the part `start` of a request. What this slot has taken under
        other shares is part of it.
        """
        for cell, share in self.limits:
            most = max(share, cell.mean)
            if not cell.has_credit:
                cell.has_credit = True
                cell.credit = min(self.start * cell.mean + share, most)
            elif slots:
                left = cell.credit + share * (slots - 1)
                cell.credit = left + share if left < cell.mean else most
            if begins:
                cell.credit = min(cell.credit, max(0.0, most - cell.taken))

    def short(self, expect: Mapping[str, float] | None, part: float = 1.0) -> list[Cell] | None:
        """The cells that a request is short of, or None. Leaves its costs in `Cell.cost`.

        `part` of each share may be taken by now, and one request more.
        """
        short: list[Cell] | None = None
        for cell, share in self.limits:
            if cell.is_start:
                cost = 1.0
            elif expect is None:
                cost = cell.mean
            else:
                cost = expect.get(cell.resource, 0.0)
                if cost == 0.0:
                    cell.cost = 0.0
                    continue
            cell.cost = cost
            if share > 0.0:
                if self.is_credit:
                    # A request larger than credit can ever be passes when credit is full.
                    needed = min(cost, max(share, cell.mean))
                    if cell.credit >= needed - needed * _SLACK:
                        continue
                else:
                    slack = share * _SLACK
                    line = share if part >= 1.0 else min(share, part * share + cost)
                    # The first may be larger than the share, or it could never pass.
                    if cell.taken + cost <= line + slack or cell.taken <= slack:
                        continue
            if short is None:
                short = [cell]
            else:
                short.append(cell)
        return short

    def charge(self, now: float, sequence: int) -> None:
        """A request begins: take and reserve `Cell.cost` of each limited cell."""
        is_credit = self.is_credit
        lots = self.lots
        lot = lots[-1] if lots else None
        if lot is None or lot.window != self.window or lot.is_credit is not is_credit:
            lot = Lot(self.window, is_credit)
            lots.append(lot)
        lot.count += 1
        lot.newest = now
        sums = lot.sums
        for cell, _ in self.limits:
            cost = cell.cost
            if cost == 0.0:
                continue
            cell.taken += cost
            cell.changed = sequence
            if is_credit:
                cell.credit -= cost
            if not cell.is_start:
                sums[cell.resource] = sums.get(cell.resource, 0.0) + cost

    def settle(self, amounts: Mapping[str, float], sequence: int) -> None:
        """A request ends: count `amounts`, and take them instead of what was reserved."""
        lot = self.oldest()
        expected = {} if lot is None else lot.settle_one()
        # What was reserved too much is given back in the slot it was taken from, not later:
        # that slot is over, and its share with it.
        is_same = lot is not None and lot.window == self.window
        is_same_credit = is_same and lot is not None and lot.is_credit
        for resource, amount in amounts.items():
            cell = self.cell(resource)
            cell.consumed += amount
            if amount > 0.0:
                cell.requests += 1
                cell.learn(amount)
            cell.changed = sequence
            difference = amount - expected.pop(resource, 0.0)
            if difference > 0.0 or is_same:
                cell.taken += difference
            if self.is_credit and cell.is_limited and (difference > 0.0 or is_same_credit):
                cell.credit -= difference
        for resource, amount in expected.items():
            cell = self.cell(resource)
            cell.changed = sequence
            if is_same:
                cell.taken -= amount
            if is_same_credit and self.is_credit and cell.is_limited:
                cell.credit += amount

    def admit_many(
        self, amounts: Mapping[str, float], most: int, part: float, sequence: int
    ) -> int:
        """Charge and settle at once the equal requests that `short` would let pass, up to `most`.

        Not the one that is larger than its share: that is left to `short`.
        """
        times = float(most)
        for cell, share in self.limits:
            cost = 1.0 if cell.is_start else amounts.get(cell.resource, 0.0)
            if cost > 0.0:
                if share <= 0.0:
                    return 0
                if self.is_credit:
                    room = cell.credit + cost * _SLACK
                else:
                    line = share if part >= 1.0 else min(share, part * share + cost)
                    room = line - cell.taken + share * _SLACK
                if room < cost * times:
                    times = room / cost
        many = math.floor(times)
        if many <= 0:
            return 0
        for resource, amount in amounts.items():
            cell = self.cell(resource)
            cell.consumed += amount * many
            if amount > 0.0:
                cell.requests += many
                cell.learn(amount, many)
            cell.taken += amount * many
            cell.changed = sequence
        for cell, _ in self.limits:
            cost = 1.0 if cell.is_start else amounts.get(cell.resource, 0.0)
            if cost > 0.0:
                cell.changed = sequence
                if self.is_credit:
                    cell.credit -= cost * many
        return many

    def oldest(self) -> Lot | None:
        """The oldest lot with a reservation in it."""
        lots = self.lots
        while lots:
            if lots[0].count:
                return lots[0]
            if len(lots) == 1:
                return None  # the present one is filled again by the next request
            lots.popleft()
        return None

    def held(self, resource: str) -> float:
        return sum(lot.sums.get(resource, 0.0) for lot in self.lots)

    def expire(self, before: float) -> Mapping[str, float]:
        """Give back what was reserved up to `before`; the requests have died."""
        given: dict[str, float] = {}
        while self.lots and (not self.lots[0].count or self.lots[0].newest <= before):
            for resource, amount in self.lots.popleft().sums.items():
                given[resource] = given.get(resource, 0.0) + amount
        return given

    @property
    def is_holding(self) -> bool:
        return self.oldest() is not None
