"""`Lender`: the leader's part: who leads which service. A state machine without I/O.

A division holds for one epoch. `wants_epoch` says that the services should be divided anew, since a
central has come or gone; the new division takes effect with the next epoch.

Times are seconds of this machine's `boottime`.
"""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from sluicegate.quota.central.lending.divide import divide
from sluicegate.quota.central.lending.messages import MOST_SERVICES, Borrow, Lend

__all__ = ["Lender"]

_CALM_LEASES = 2  # between two divisions, if the last one can stay as it is for so long
_KEPT_SECONDS = 60.0  # for which the leader keeps a service after `keep`


class _Loan(NamedTuple):
    incarnation: int
    sent: float  # the newest Borrow that it answers, on the borrower's clock
    until: float  # on this clock: by then it has run out on the borrower's, too


class Lender:
    """Which services this central leads while it is the leader, and which it has lent.

    `services` returns the names of all; `clock_error` is how wrong the rate of a clock may be.
    """

    def __init__(
        self,
        name: str,
        lease: float,
        services: Callable[[], Collection[str]],
        clock_error: float = 0.01,
    ) -> None:
        self.name = name
        self.epoch = 0  # 0: it does not lead
        self._lease = lease
        self._list_services = services
        self._stretch = (1.0 + clock_error) / (1.0 - clock_error)
        self._division: dict[str, str] = {}  # services without an entry are the leader's own
        self._divided_at = 0.0
        self._present: dict[str, float] = {}  # other centrals, and until when they count as there
        self._loans: dict[str, _Loan] = {}
        self._awaited: dict[str, str] = {}  # by service: who has led it, and may not have let go
        self._kept: dict[str, float] = {}  # services that must not be lent, and until when
        self._best_inputs: object = None  # of the division below, which is costly to compute
        self._best: dict[str, str] = {}

    @property
    def division(self) -> dict[str, str]:
        """The central of each service in this epoch."""
        return {
            service: self._division.get(service, self.name) for service in self._list_services()
        }

    @property
    def borrowers(self) -> tuple[str, ...]:
        """The peers that borrow, or were expected to, when they were last heard."""
        return tuple(sorted(self._present))

    def leads(self, service: str) -> bool:
        """Whether the leader itself leads a service, as far as its own lease lasts."""
        return self._division.get(service, self.name) == self.name and service not in self._awaited

    # Epochs

    def begin(self, now: float, epoch: int, peers: Iterable[str]) -> list[tuple[str, Lend]]:
        """This central was elected; `peers` are expected to borrow. Returns what to tell them.

        What earlier leaders have lent has ended with their leases.
        """
        self._loans.clear()
        self._awaited.clear()
        self._present = dict.fromkeys(peers, now + self._lease)
        self._divide(now, epoch)
        return self._call(self._present)

    def go_on(self, now: float, epoch: int) -> list[tuple[str, Lend]]:
        """It leads on in a higher epoch; returns what to tell the others."""
        before = self._division
        self._divide(now, epoch)
        for service, central in before.items():
            if central != self._division.get(service) and central in self._loans:
                self._awaited.setdefault(service, central)
        self._end_loans(now)
        return self._call(self._present)

    def stop(self) -> None:
        """It leads no more."""
        self.epoch = 0

    def keep(self, now: float, services: Iterable[str]) -> None:
        """These are not to be lent for a while: nodes need them that know the leader alone."""
        for service in set(services).intersection(self._list_services()):
            self._kept[service] = now + _KEPT_SECONDS

    def _divide(self, now: float, epoch: int) -> None:
        self.epoch = epoch
        self._division = self._best_division(now)
        self._divided_at = now

    def _best_division(self, now: float) -> dict[str, str]:
        kept = {service for service, until in self._kept.items() if now < until}
        present = {peer for peer in self._present if self._is_present(now, peer)}
        services = tuple(self._list_services())
        if (services, present, kept) != self._best_inputs:
            self._best_inputs = services, present, kept
            self._best = self._compute_division(services, present, kept)
        return self._best

    def _compute_division(
        self, services: Iterable[str], present: Iterable[str], kept: Collection[str]
    ) -> dict[str, str]:
        best = divide(services, [self.name, *present], kept, self.name)
        lent: dict[str, int] = {}
        for service, central in best.items():
            lent[central] = lent.get(central, 0) + 1
            if lent[central] > MOST_SERVICES:
                best[service] = self.name
        return best

    def wants_epoch(self, now: float) -> bool:
        """Whether the services should be divided anew: at once if some have nobody to lead them."""
        if not self.epoch:
            return False
        best = self._best_division(now)
        if best is self._division:
            return False
        moved = {
            service: central
            for service, central in self.division.items()
            if best.get(service, self.name) != central
        }
        return bool(moved) and (
            now >= self._divided_at + _CALM_LEASES * self._lease
            or any(self._must_move(now, service, central) for service, central in moved.items())
        )

    def _must_move(self, now: float, service: str, central: str) -> bool:
        if central == self.name:
            return False
        return not self._is_present(now, central) or now < self._kept.get(service, now)

    def _is_present(self, now: float, central: str) -> bool:
        """Whether a peer was heard lately, or may still lead something."""
        return now < self._present.get(central, now) or central in self._loans

    # Loans

    def tick(self, now: float) -> list[tuple[str, Lend]]:
        """See which loans have run out; returns what to send to those that may have more now."""
        if not self.epoch:
            return []
        freed = self._end_loans(now)
        self._kept = {service: until for service, until in self._kept.items() if now < until}
        self._present = {
            peer: until for peer, until in self._present.items() if self._is_present(now, peer)
        }
        return self._call(freed)

    def receive(
        self, now: float, peer: str, message: Borrow, seconds: float
    ) -> list[tuple[str, Lend]]:
        """A peer wants to lead services; the leader's own lease lasts for `seconds` more."""
        if not self.epoch or seconds <= 0.0:
            return []
        loan = self._loans.get(peer)
        is_same = loan is not None and loan.incarnation == message.incarnation
        if is_same and loan is not None and message.sent <= loan.sent:
            return []  # it was overtaken
        has_let_go = message.is_leaving or message.epoch >= self.epoch
        if is_same and has_let_go:
            # What it has of this epoch it keeps; it is lent again below, unless it leaves.
            del self._loans[peer]
            loan = None
        freed = self._end_loans(now)
        if message.is_leaving:
            self._present.pop(peer, None)
            return self._call(freed)
        self._present[peer] = now + self._lease
        services: tuple[str, ...] = ()
        if loan is None or is_same:
            services = tuple(
                service
                for service, central in self._division.items()
                if central == peer and service not in self._awaited
            )
        if services:
            until = now + seconds * self._stretch
            self._loans[peer] = _Loan(message.incarnation, message.sent, until)
        return [
            (peer, Lend(self.epoch, message.sent, seconds, services, self.borrowers)),
            *self._call(freed - {peer}),
        ]

    def _end_loans(self, now: float) -> set[str]:
        """Forget the loans that have run out; the centrals that may have more services now."""
        for peer in [peer for peer, loan in self._loans.items() if now >= loan.until]:
            del self._loans[peer]
        free = [service for service, peer in self._awaited.items() if peer not in self._loans]
        for service in free:
            del self._awaited[service]
        return {self._division.get(service, self.name) for service in free} - {self.name}

    def _call(self, peers: Iterable[str]) -> list[tuple[str, Lend]]:
        """Have them borrow now."""
        return [(peer, Lend(self.epoch, 0.0, 0.0, (), self.borrowers)) for peer in sorted(peers)]

    def __repr__(self) -> str:
        return f"Lender({self.name}, epoch={self.epoch}, {self.division})"
