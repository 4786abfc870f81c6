"""`ServiceLending`: keeps a central's services in step with what the leader lends.

The rules are those of `Lender` and `Borrower`, of which each central has both: it lends while it is
the leader, and borrows while another is. This object has the clock, the timer and the way to the
peers, tells the ledger which services have come and gone, and the nodes who leads them.
"""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from sluicegate.election.election import boottime
from sluicegate.errors import ProtocolError
from sluicegate.quota.central.leadership import ElectedLeadership, epoch_bound
from sluicegate.quota.central.lending.borrower import Borrower
from sluicegate.quota.central.lending.lender import Lender
from sluicegate.quota.central.lending.messages import Borrow, Lend
from sluicegate.quota.central.state import CentralState
from sluicegate.quota.name_list import name_list

__all__ = ["PeerWay", "ServiceLending"]

_logger = logging.getLogger("sluicegate.quota")

_TICKS_PER_LEASE = 20
_BRIEF_SLOTS = 1.0  # nodes do not notice that nobody led a service for less
_HEAR_SLOTS = 1.25  # in which every node has reported


class PeerWay(Protocol):
    """The way to the peers."""

    @property
    def connected(self) -> Sequence[str]:
        """The peers that can be reached."""

    def send(self, peer: str, message: Borrow | Lend) -> None:
        """Send a message, or drop it."""


class ServiceLending:
    """The lending of one central. `is_warm` says whether it knows enough to lead anything."""

    def __init__(
        self,
        state: CentralState,
        leadership: ElectedLeadership,
        way: PeerWay,
        *,
        lease: float,
        is_warm: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        lease_clock: Callable[[], float] = boottime,
    ) -> None:
        self._state = state
        self._leadership = leadership
        self._way = way
        self._is_warm = is_warm
        self._clock = clock
        self._lease_clock = lease_clock
        self._tick_seconds = lease / _TICKS_PER_LEASE
        self._lender = Lender(state.name, lease, lambda: state.ledger.services)
        self._borrower = Borrower(secrets.randbits(48), lease)
        self._led: frozenset[str] = frozenset()  # as of the last `_look`
        self._led_epoch = 0
        self._led_until: dict[str, tuple[int, float]] = {}  # by service: epoch and time
        self._is_resigned = False
        self._ticked_at = -math.inf
        self._ready_at = -math.inf  # when it has heard of what it has slept through
        self._task: asyncio.Task[None] | None = None
        state.lending = self

    def __repr__(self) -> str:
        return f"ServiceLending({self._lender!r}, {self._borrower!r})"

    # What the state asks

    def is_lent(self, service: str) -> bool:
        return not self._lender.leads(service)

    def borrowed(self) -> Collection[str]:
        if self._borrower.epoch != self._state.epoch:
            return ()
        return self._borrower.services(self._lease_clock())

    def keep(self, services: Iterable[str]) -> None:
        self._lender.keep(self._lease_clock(), services)

    @property
    def service_leaders(self) -> dict[str, str]:
        """Who leads which service, as far as this central knows."""
        if self._state.leads:
            return self._lender.division
        return dict.fromkeys(sorted(self.borrowed()), self._state.name)

    # What the election says

    def lead(self, epoch: int, *, is_elected: bool) -> None:
        """This central leads in a new epoch: it was elected, or goes on."""
        self._borrower.let_go()
        now = self._lease_clock()
        if is_elected:
            # Not all peers borrow: there are witnesses, and centrals that are not warm.
            known = {*self._borrower.borrowers, *self._lender.borrowers}
            peers = known.intersection(self._way.connected)
            self._send(self._lender.begin(now, epoch, peers))
            self._led = self._find_led()  # the ledger has taken all of them over
            self._led_epoch = epoch
        else:
            self._send(self._lender.go_on(now, epoch))
            self._look()
        _logger.info("services: %s", _listed(self._lender.division))

    def follow(self) -> None:
        """Another central leads, or none."""
        self._lender.stop()
        self._look()

    # Messages

    def receive(self, peer: str, message: Borrow | Lend) -> None:
        """Handle a message of a peer. Raises `ProtocolError` if its epoch is not plausible."""
        bound = epoch_bound(time.time())
        if message.epoch >= bound:
            raise ProtocolError(f"epoch must be below {bound}, got {message.epoch}")
        now = self._lease_clock()
        if isinstance(message, Borrow):
            if self._state.leads:
                seconds = self._leadership.election.deadline - now
                self._send(self._lender.receive(now, peer, message, seconds))
        else:
            self._leadership.know(message.epoch)
            self._borrower.receive(now, peer, message)
            if self._borrower.epoch > self._state.epoch and not self._state.leads:
                self._state.follow(self._clock(), self._borrower.epoch)
            self._borrow(now)
        self._look()

    def tick(self) -> None:
        """See what time has brought: to be called some times in each lease."""
        now = self._lease_clock()
        slot_seconds = self._state.ledger.slot_seconds
        if now > self._ticked_at + self._tick_seconds + slot_seconds > -math.inf:
            self._ready_at = now + _HEAR_SLOTS * slot_seconds
        self._ticked_at = now
        if self._state.leads:
            self._send(self._lender.tick(now))
            if self._lender.wants_epoch(now):
                self._leadership.raise_epoch(self._clock())
        else:
            self._borrow(now)
        self._look()

    def _borrow(self, now: float) -> None:
        """Ask the leader for services, if it is time to, or for what it has lent once more.

        A process that was frozen does not know what nodes used meanwhile, and would grant too much
        or too little: it hears them first, unless it still has a loan that would run out.
        """
        if self._state.leads or self._is_resigned or not self._is_warm():
            return
        if now < self._ready_at and not self._borrower.services(now):
            return
        leader = self._leadership.leader
        message = self._borrower.borrow(now, leader)
        if message is not None and leader is not None:
            self._way.send(leader, message)

    def _send(self, messages: Iterable[tuple[str, Lend]]) -> None:
        for peer, message in messages:
            self._way.send(peer, message)

    def _find_led(self) -> frozenset[str]:
        services = self._state.ledger.services
        if self._state.leads:
            return frozenset(service for service in services if self._lender.leads(service))
        return frozenset(services).intersection(self.borrowed())

    def _look(self) -> None:
        """See which services have come and gone."""
        led = self._find_led()
        epoch_before, self._led_epoch = self._led_epoch, self._state.epoch
        if led == self._led:
            return
        now, epoch = self._clock(), self._state.epoch
        gained, lost = led - self._led, self._led - led
        self._led = led
        for service in lost:
            self._led_until[service] = (epoch_before, now)
        if lost:
            _logger.info("no longer leads %s; epoch %d", name_list(sorted(lost)), epoch)
            self._state.ledger.drop_asks()
        if gained:
            _logger.info("leads %s; epoch %d", name_list(sorted(gained)), epoch)
            new = [service for service in gained if not self._is_back(service, now, epoch)]
            if new:
                self._state.take_services(now, new)
            self._leadership.deliver(self._state.announce(now))

    def _is_back(self, service: str, now: float, epoch: int) -> bool:
        """Whether nobody else has led it since this central did, and no node has missed it."""
        before, since = self._led_until.pop(service, (0, 0.0))
        brief = _BRIEF_SLOTS * self._state.ledger.slot_seconds
        return before >= epoch - 1 and now - since < brief

    # The timer

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="lending")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._tick_seconds)
            try:
                self.tick()
            except Exception:
                _logger.exception("lending of services failed; will retry")

    def resign(self) -> None:
        """Lead no service any more, and say so: the central stops."""
        self._is_resigned = True
        if self._task is not None:
            self._task.cancel()
        leader = self._leadership.leader
        message = self._borrower.leave(self._lease_clock())
        if leader is not None and leader != self._state.name:
            self._way.send(leader, message)
        self._look()


def _listed(division: dict[str, str]) -> str:
    by_central: dict[str, list[str]] = {}
    for service, central in sorted(division.items()):
        by_central.setdefault(central, []).append(service)
    return "; ".join(f"{central} leads {name_list(names)}" for central, names in by_central.items())
