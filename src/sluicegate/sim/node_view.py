"""What one node was told and has let through: the auditor's view of it.

For each cell there is the credit that the node has heard of, less what it has given back and what
was consumed. A request passes within it; or one ahead of it, if the leader allows a float; or on
the allowance, while no leader is heard or none has told of the user. The allowance is a bucket
that is refilled by the share of the user, or of a newcomer, in each slot.

The view errs on the generous side. What running requests will cost only the node can estimate, and
it does not tell them apart: those that began in its present window reserve the cost of the cheapest
one, older ones nothing. A node forgets users without requests: until it tells otherwise, such a
user may be a newcomer again.

Times are seconds of the node's clock.
"""

import math
from dataclasses import dataclass, field

from sluicegate.quota.messages import Ack, Ask, Credit, Line, Quota
from sluicegate.sim.audited_limits import Cell

__all__ = ["NodeView"]

_SILENT_SECONDS = 0.25  # a leader that has not answered an ask for so long is away
_SILENT_SLOTS = 2.25  # or has sent nothing for so many
_FORGET_SLOTS = 118  # after so many without a request, a node may forget a user
_FALLBACK = 10.0  # requests per second of a user while no central has sent anything
_ROUNDING = 1e-6
_EXACT = 0.999  # the node's means have 32 bits


@dataclass(slots=True)
class _User:
    is_known: bool = False  # a leader has told of it
    may_float: bool = False
    requested: float = -math.inf  # when a request last passed
    is_unsure: bool = False  # the node may have forgotten it
    running: int = 0  # requests that began in the window, and whose cost is not counted yet
    window: int = -1
    refused_since: float | None = None  # with room in all buckets, and none admitted
    looked: float = -math.inf  # when that was last looked at
    cells: list["_Balance"] = field(default_factory=list)


@dataclass(slots=True)
class _Balance:
    """One cell on the node. All totals are since the node made its record of the user."""

    cell: Cell
    user: _User
    granted: float = 0.0
    returned: float = 0.0
    limit: float = 0.0  # granted - returned
    consumed: float = 0.0
    consumed_before: float = 0.0  # the node may have forgotten the user
    reserved: float = 0.0  # by running requests, at least
    has_cost: bool = False  # the node knows what a request costs; else it expects 1
    safe: float = 0.0
    safe_before: float = 0.0
    allowance: float | None = None
    has_shares: bool = False  # the allowance is by shares, not by the fallback
    accrued: float = 0.0  # up to this time
    accrued_alone: float = 0.0  # and of the time without a leader

    def tell(self, granted: float, returned: float) -> None:
        self.granted = max(self.granted, granted)
        self.returned = max(self.returned, returned)
        self.limit = self.granted - self.returned

    def forget(self) -> None:
        """The node has forgotten the user: its totals begin at 0 again."""
        self.consumed -= self.consumed_before
        self.granted = self.returned = self.limit = self.consumed_before = 0.0
        self.has_cost = False


class NodeView:
    """One life of a node's memory."""

    def __init__(self, boot: int, now: float, slot_seconds: float) -> None:
        self.boot = boot
        self.epoch = -1
        self._slot_seconds = slot_seconds
        self._heard = now  # when a leader was last heard
        self._unanswered: float | None = None  # the first ask since then
        self._is_disconnected = False  # from a central, since then
        self._alone = 0.0  # seconds without a leader, up to then
        self._newcomers: dict[str, dict[str, float]] = {}  # by service
        self._users: dict[tuple[str, str], _User] = {}
        self._balances: dict[Cell, _Balance] = {}

    # Messages

    def hear_ack(self, now: float, ack: Ack) -> None:
        if ack.leads and ack.epoch >= self.epoch and ack.boot == self.boot:
            self._hear_leader(now, ack.epoch)

    def hear_quota(self, now: float, quota: Quota) -> None:
        if quota.epoch < self.epoch:
            return
        self._hear_leader(now, quota.epoch)
        for service, part in quota.services.items():
            self._newcomers[service] = part.newcomers
            for name, hint in part.hints.items():
                if name in part.users:  # the answer to an ask
                    self.user(service, name).may_float = hint.may_float

    def hear_share(self, cell: Cell, granted: float, safe: float) -> None:
        """A leader that the node obeys has told the total of all grants, and the safe share."""
        balance = self._balance(cell)
        balance.user.is_known = True
        balance.tell(granted, balance.returned)
        # One that was overtaken by other limits does not count.
        balance.safe_before, balance.safe = balance.safe, safe

    def _hear_leader(self, now: float, epoch: int) -> None:
        self._alone = self._alone_seconds(now)
        self.epoch = epoch
        self._heard = now
        self._unanswered = None
        self._is_disconnected = False

    def lose_connection(self) -> None:
        """The connection to a central has ended, which may be the leader."""
        self._is_disconnected = True

    def send_ask(self, now: float, ask: Ask) -> None:
        wants = any(
            one.requests > 0 or not one.resources
            for users in ask.users.values()
            for one in users.values()
        )
        if wants and self._unanswered is None:
            self._unanswered = now

    def tell_nothing(self, now: float, service: str, user: str) -> None:
        """The node asks for a user of whom it knows nothing."""
        known = self.user(service, user)
        if known.is_known:
            if now - known.requested > _FORGET_SLOTS * self._slot_seconds:
                self._become_unsure(known)
            self._forget(known)

    def tell_credit(self, cell: Cell, credit: Credit) -> None:
        balance = self._balance(cell)
        if balance.user.is_unsure:
            if credit.used < balance.consumed - _ROUNDING * (1.0 + balance.consumed):
                self._forget(balance.user)
            balance.user.is_unsure = False
        balance.tell(balance.granted, credit.returned)

    def tell_line(self, cell: Cell, line: Line) -> None:
        balance = self._balances.get(cell)
        if balance is not None and not balance.user.is_unsure and line.returned > balance.returned:
            balance.tell(balance.granted, line.returned)

    def _forget(self, user: _User) -> None:
        user.is_known = user.is_unsure = False
        for balance in user.cells:
            balance.forget()

    # Requests

    def user(self, service: str, name: str) -> _User:
        user = self._users.get((service, name))
        if user is None:
            user = self._users[service, name] = _User()
        return user

    def admit(self, now: float, window: int, cell: Cell, cost: float, count: int) -> str | None:
        """Requests have passed and ended at once. Returns what is wrong with it."""
        balance = self._balances.get(cell) or self._balance(cell)
        user = balance.user
        if now - user.requested > _FORGET_SLOTS * self._slot_seconds:
            self._become_unsure(user)
        user.requested = now
        user.refused_since = None
        amount = cost * count
        balance.consumed = used = balance.consumed + amount
        balance.has_cost = True
        if user.running and user.window == window:
            used += balance.reserved
        if used <= balance.limit or not cell.is_always_limited:
            return None
        return self._judge(now, balance, used - balance.limit, amount, cost)

    def start(self, now: float, window: int, cells: list[Cell]) -> str | None:
        """A request has passed whose cost is counted when it ends. Returns what is wrong."""
        if not cells:
            return None
        wrong = None
        user = self.user(*cells[0].key[:2])
        if now - user.requested > _FORGET_SLOTS * self._slot_seconds:
            self._become_unsure(user)
        self._begin_window(user, window)
        user.requested = now
        user.refused_since = None
        user.running += user.is_known  # who is unknown has nothing reserved, but by the fallback
        for cell in cells:
            balance = self._balance(cell)
            cost = _EXACT * (cell.least if balance.has_cost else min(1.0, cell.least))
            used = balance.consumed + balance.reserved + cost
            if user.is_known:
                balance.reserved += cost
            if used > balance.limit and cell.is_always_limited and wrong is None:
                wrong = self._judge(now, balance, used - balance.limit, cost, cost)
        return wrong

    def end(self, window: int, service: str, name: str, costs: list[tuple[Cell, float]]) -> None:
        """A request has ended whose cost was not counted when it passed."""
        user = self.user(service, name)
        self._begin_window(user, window)
        for cell, cost in costs:
            balance = self._balance(cell)
            balance.consumed += cost
            balance.has_cost = True
            if user.running:
                balance.reserved -= balance.reserved / user.running
        user.running = max(0, user.running - 1)

    def _begin_window(self, user: _User, window: int) -> None:
        if window != user.window:
            user.window = window
            user.running = 0
            for balance in user.cells:
                balance.reserved = 0.0

    def is_alone(self, now: float) -> bool:
        """Whether the node may take it that no leader is there."""
        now += 1e-9 * abs(now)
        return (
            self.epoch < 0
            or self._is_disconnected
            or now >= self._heard + _SILENT_SLOTS * self._slot_seconds
            or (self._unanswered is not None and now >= self._unanswered + _SILENT_SECONDS)
        )

    def _alone_seconds(self, now: float) -> float:
        """For how long the node was without a leader, up to now."""
        return self._alone + (now - self._heard if self.is_alone(now) else 0.0)

    def _become_unsure(self, user: _User) -> None:
        user.is_unsure = user.is_known
        for balance in user.cells:
            balance.consumed_before = balance.consumed

    def _balance(self, cell: Cell) -> _Balance:
        balance = self._balances.get(cell)
        if balance is None:
            user = self.user(*cell.key[:2])
            balance = self._balances[cell] = _Balance(cell, user)
            user.cells.append(balance)
        return balance

    def _judge(
        self, now: float, balance: _Balance, over: float, amount: float, cost: float
    ) -> str | None:
        """Whether requests may pass that exceed the credit by `over`, with what passed before."""
        unit, user = balance.cell.unit, balance.user
        slack = _ROUNDING * unit + 1e-9 * balance.granted
        if user.is_known and over <= slack:
            return None
        if user.is_known and user.may_float and over <= cost + slack:
            return None
        if user.is_known and not user.is_unsure and not self.is_alone(now):
            return f"{over:g} more than its credit of {balance.limit:g}"
        share = self._share(balance)
        if share == math.inf:
            return None
        most = max(share, unit)
        has_shares = bool(self._newcomers)
        if balance.allowance is None or has_shares != balance.has_shares:
            balance.allowance = most  # the fallback has one of its own
            balance.has_shares = has_shares
            balance.accrued, balance.accrued_alone = now, self._alone_seconds(now)
        alone = self._alone_seconds(now)
        is_told = user.is_known and not user.is_unsure
        seconds = alone - balance.accrued_alone if is_told else now - balance.accrued
        balance.accrued, balance.accrued_alone = now, alone
        accrued = share * seconds / self._slot_seconds
        balance.allowance = min(balance.allowance + accrued, most) - min(over, amount)
        if balance.allowance >= -(unit + slack):
            return None
        return (
            f"{over:g} more than its credit of {balance.limit:g}, and {-balance.allowance:g} more "
            f"than an allowance of {share:g} per slot"
        )

    def _share(self, balance: _Balance) -> float:
        """What may pass in each slot without a grant."""
        service, _, resource = balance.cell.key
        safe = max(balance.safe, balance.safe_before) if balance.user.is_known else 0.0
        if balance.user.is_known and not balance.user.is_unsure:
            return safe
        newcomers = self._newcomers.get(service)
        if not newcomers:
            return _FALLBACK * self._slot_seconds * balance.cell.unit
        return max(safe, newcomers.get(resource, math.inf))
