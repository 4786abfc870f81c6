"""`Leadership`: makes a `CentralState` lead or follow, and says who leads.

`SoleLeadership` is that of a central without an election. It leads from its start. Its epoch must
be above any that nodes have seen, which its clock and its state file ensure. If the clock was wrong
in an earlier run, a report shows it, and the central leads on in a higher epoch.

`ElectedLeadership` does what an `Election` says. It starts as a standby. The election is asked at
each look at `CentralState.leads`, so nothing is sent without a lease, however late this task runs;
the task makes the changes of state: it leads, or it follows.

**Which epoch.** Epochs of an election grow by themselves, but nodes may know a higher one: from a
central that ran without an election (its epochs are the time), or from centrals that have lost
their disks. They would ignore the new leader for ever. `EpochFloor` collects what nodes and the
state file tell, and a new epoch is above it. The Paxos election carries the floor through its
quorum: a leader that hears of a higher epoch takes the one above with its next renewal, and all
later ones are above that. For etcd and Redis, whose numbers cannot be raised, the leader itself
counts from the floor, once the store has confirmed its lease since it heard of the higher epoch. If
the store has lost that lease, the epoch is a successor's, and to go above it would take the nodes
back. Two leaders could then use one number only if the second has heard no node that the first has
led; nodes that follow neither are not harmed, and a report raises it again.

The alternative was the wall clock as the floor of each new epoch. It needs no evidence, but one
central whose clock is a year ahead would take the epochs of the fleet a year ahead, for good; and
the clock says nothing about an epoch that came from a clock that was ahead of it. What nodes tell
is exact. Neither is believed beyond ten years ahead of this machine's clock.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from sluicegate.election.election import Election, boottime
from sluicegate.errors import ProtocolError
from sluicegate.quota.central.state import CentralState
from sluicegate.quota.messages import Quota, Report

__all__ = [
    "ElectedLeadership",
    "EpochFloor",
    "Leadership",
    "Peer",
    "SoleLeadership",
    "check_epoch",
    "epoch_bound",
]

_logger = logging.getLogger("sluicegate.quota")

# An epoch is the time of a start. No clock was more than this many seconds ahead: ten years.
_EPOCHS_AHEAD = 10 * 365 * 86_400
_WARNING_INTERVAL = 10.0


def epoch_bound(wall: float) -> int:
    """Upper bound for a plausible epoch at `wall`; larger values are rejected."""
    return int(wall) + _EPOCHS_AHEAD


def check_epoch(report: Report) -> None:
    """Raises `ProtocolError` if the epoch of a report is not plausible."""
    bound = epoch_bound(time.time())
    if report.epoch >= bound:
        raise ProtocolError(
            f"epoch of node {report.node!r} must be below {bound}, got {report.epoch}"
        )


class Peer(NamedTuple):
    """Another central, as the API shows it."""

    name: str
    url: str
    is_connected: bool | None  # None: the election does not need a connection to it


class Leadership(Protocol):
    """What a central needs to know of its leadership."""

    wins: int  # how often this central has become the leader

    @property
    def leader(self) -> str | None:
        """The name of the central that leads, as far as is known here."""

    @property
    def leader_url(self) -> str | None:
        """Where it is, if that is known."""

    @property
    def peers(self) -> list[Peer]:
        """The other centrals."""

    @property
    def service_leaders(self) -> dict[str, str]:
        """Who leads which service, as far as is known here; empty: the leader leads all."""

    def hear(self, now: float, report: Report) -> None:
        """A node reports an epoch that is above this central's."""


class _EpochWarning:
    """Logs that a node has raised the epoch; not each time, since it may do so with each report."""

    def __init__(self) -> None:
        self._next_at = -math.inf

    def log(self, now: float, report: Report, epoch: int) -> None:
        if now < self._next_at:
            return
        self._next_at = now + _WARNING_INTERVAL
        _logger.warning(
            "node %r reports epoch %d, above the leader's %d: raising the epoch",
            *(report.node, report.epoch, epoch),
        )


class SoleLeadership:
    """A central that leads from its start; the state leads already."""

    def __init__(self, state: CentralState) -> None:
        self._state = state
        self._warning = _EpochWarning()
        self.wins = 1

    @property
    def leader(self) -> str | None:
        return self._state.name if self._state.leads else None

    @property
    def leader_url(self) -> str | None:
        return None

    @property
    def peers(self) -> list[Peer]:
        return []

    @property
    def service_leaders(self) -> dict[str, str]:
        return {}

    def hear(self, now: float, report: Report) -> None:
        check_epoch(report)
        self._warning.log(now, report, self._state.epoch)
        self._state.lead(now, report.epoch + 1)


class EpochFloor:
    """The lowest epoch for a new leadership, by what is known outside of the election."""

    def __init__(self, known: int = 0) -> None:
        self._known = known

    def __call__(self) -> int:
        return self._known + 1

    def hear(self, epoch: int) -> bool:
        """An epoch is in use. Returns whether that is news."""
        is_news = epoch > self._known
        self._known = max(self._known, epoch)
        return is_news


class ElectedLeadership:
    """Keeps a state in step with an election. `deliver` sends what a new leader announces.

    `confirmed`: for an election that does not know the floor, so that epochs are raised here: the
    lease is known to have been this central's at this time of `boottime()` or later.
    `members`: the URLs of all centrals by name.
    """

    def __init__(
        self,
        state: CentralState,
        election: Election,
        floor: EpochFloor,
        *,
        confirmed: Callable[[], float] | None = None,
        members: Mapping[str, str] | None = None,
        is_connected: Callable[[str], bool | None] = lambda peer: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.election = election
        self.wins = 0
        self.deliver: Callable[[list[tuple[str, Quota]]], None] = lambda messages: None
        self._state = state
        self._floor = floor
        self._clock = clock
        self._members = dict(members or {})
        self._is_connected = is_connected
        self._confirmed = confirmed
        self._heard_at = -math.inf  # when nodes told of the epoch below the floor, by `boottime()`
        self._term = 0  # the election's epoch of the leadership that the state is in; 0: standby
        self._warning = _EpochWarning()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    def __repr__(self) -> str:
        return f"ElectedLeadership({self._state!r}, {self.election!r})"

    @property
    def leader(self) -> str | None:
        return self.election.leader

    @property
    def leader_url(self) -> str | None:
        return self._members.get(self.election.leader or "")

    @property
    def peers(self) -> list[Peer]:
        return [
            Peer(name, url, self._is_connected(name))
            for name, url in self._members.items()
            if name != self._state.name
        ]

    @property
    def service_leaders(self) -> dict[str, str]:
        return self._state.lending.service_leaders

    def has_lease(self) -> bool:
        """Whether the leadership that the state is in still lasts.

        One that has ended and was won again is another: the state must not go on in its old epoch.
        """
        return self.election.is_leader and self.election.epoch == self._term

    def hear(self, now: float, report: Report) -> None:
        if not self._state.leads:
            self.know(report.epoch)
            return
        check_epoch(report)
        if self._floor.hear(report.epoch):
            self._heard_at = boottime()
            self._warning.log(now, report, self._state.epoch)
        self.update(now)

    def know(self, epoch: int) -> None:
        """A peer says that `epoch` is in use."""
        if epoch < epoch_bound(time.time()):
            self._floor.hear(epoch)

    def raise_epoch(self, now: float) -> None:
        """Go on in a higher epoch as soon as the election allows it. To be called until it does."""
        if self._floor.hear(self._state.epoch):
            self._heard_at = boottime()
        self.update(now)

    def update(self, now: float) -> None:
        """Do what the election says now."""
        if not self.election.is_leader:
            self._follow(now)
            return
        term = self.election.epoch
        epoch = term if self._confirmed is None else self._own_epoch(term)
        if term == self._term and (epoch <= self._state.epoch or not self._may_raise()):
            return
        if epoch <= self._state.epoch:
            _logger.error(
                "not leading: epoch %d of the election is not above %d", epoch, self._state.epoch
            )
            self._follow(now)
            return
        is_elected = not self._term  # else it goes on in a higher epoch
        self.wins += is_elected
        is_new, self._term = term != self._term, term
        self._state.lead(now, epoch)
        self._state.lending.lead(epoch, is_elected=is_elected)
        if is_new:  # else a node has raised the epoch, which is logged already
            _logger.info("central %s leads, epoch %d", self._state.name, epoch)
        self.deliver(self._state.announce(now))

    def _own_epoch(self, term: int) -> int:
        """The epoch for `term` of an election that does not know the floor.

        A new term is above the epoch in which this central led before: no report says that one
        again, so that the floor may still be at it.
        """
        epoch = max(term, self._floor())
        return epoch if term == self._term else max(epoch, self._state.epoch + 1)

    def _may_raise(self) -> bool:
        """Whether the lease was this central's after nodes told of a higher epoch.

        If not yet, the next report asks again: nodes ignore this central until it is above.
        """
        return self._confirmed is None or self._confirmed() > self._heard_at

    def _follow(self, now: float) -> None:
        known = self.election.epoch
        if self._term:
            self._term = 0
            if self._is_closing:
                _logger.info("central %s no longer leads: it stops", self._state.name)
            else:
                _logger.warning("central %s no longer leads: its lease ended", self._state.name)
        elif known <= self._state.epoch:
            return  # what it knows of the leader's clock still holds
        self._state.follow(now, known)
        self._state.lending.follow()

    async def start(self) -> None:
        """Campaign, from now on."""
        await self.election.start()
        self._task = asyncio.create_task(self._run(), name="leadership")

    async def _run(self) -> None:
        while True:
            try:
                self.update(self._clock())
            except Exception:
                _logger.exception("cannot follow the election; will retry at its next change")
            await self.election.changed()

    async def close(self) -> None:
        """Stop leading, and let another central lead."""
        self._is_closing = True
        await self.election.close()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self.update(self._clock())
