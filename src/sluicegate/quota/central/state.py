"""`CentralState`: a central without its sockets, its ledger, leadership and clock.

Every central books every report and acknowledges it, and every central assigns in the middle
of each slot. Only the leader answers asks, serves those that wait, and sends quotas. The others
book the same totals of what is granted, used and returned, so the one that takes over goes on where
the leader stopped; nodes that were waiting ask again. Whether it leads is looked up at each use
(`leads`), not noted by a timer: a process that was frozen for longer than its lease wakes up as a
standby.

The leader may lend services to other centrals (`lending`): those grant their services as if they
led, in the leader's epoch and on its clock. `leads_service` says who grants what.

The slots are those of the leader's clock. A central that does not lead follows them: a node sends
its report of slot n at a known moment of slot n + 1 (`report_delay`), so of its reports the fastest
one is the best sample of the leader's clock; of the samples of all nodes, the latest quarter is
ignored, so that a wrong clock has no effect. When it is elected it goes on with that clock, and the
nodes see no seam. A clock that is behind costs users the refill of that time.

`now` is the monotonic time of this machine; its wall clock is read once, at the start.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Protocol

from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.messages import Ack, Ask, Quota, Report, ServiceQuota
from sluicegate.quota.stable_hash import report_delay

__all__ = ["CentralState", "Lending", "NoLending"]

_ASSIGN_AT = 0.5  # of a slot
_CLOCK_SAMPLES = 8  # of a node
_CLOCK_NODES = 32


class Lending(Protocol):
    """Which services the leader has lent, and to whom. It is asked at each use."""

    def is_lent(self, service: str) -> bool:
        """Whether a service of the leader is led elsewhere."""

    def borrowed(self) -> Collection[str]:
        """The services that a central leads in this epoch though another is the leader."""

    def keep(self, services: Iterable[str]) -> None:
        """Nodes of the leader's need these services, which know the leader alone."""

    @property
    def service_leaders(self) -> dict[str, str]:
        """Who leads which service, as far as is known here; empty: the leader leads all."""

    def lead(self, epoch: int, *, is_elected: bool) -> None:
        """This central leads in a new epoch: it was elected, or goes on."""

    def follow(self) -> None:
        """Another central leads, or none."""


class NoLending:
    """The leader leads all services."""

    def is_lent(self, service: str) -> bool:
        return False

    def borrowed(self) -> Collection[str]:
        return ()

    def keep(self, services: Iterable[str]) -> None: ...

    @property
    def service_leaders(self) -> dict[str, str]:
        return {}

    def lead(self, epoch: int, *, is_elected: bool) -> None: ...

    def follow(self) -> None: ...


class CentralState:
    """One central: its ledger, whether it leads, and which slot it is on the leader's clock.

    `has_lease` says whether it may still lead; a central without an election always may.
    """

    def __init__(
        self,
        name: str,
        ledger: Ledger,
        *,
        now: float,
        wall: float,
        has_lease: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name = name
        self.ledger = ledger
        self.epoch = 0
        self.lending: Lending = NoLending()
        self._has_lease = has_lease
        self._is_elected = False
        self._offset = wall - now
        self._samples: dict[str, deque[float]] = {}  # of each node, the newest last
        self._latest: dict[str, float] = {}  # of each node, the latest clock of its samples
        self._assigned = self.slot(now) - 1
        self._assignment_steps: Iterator[None] | None = None  # of the assignment under way
        self._unsent: list[str] = []  # the nodes whose quotas of it are not sent yet

    def __repr__(self) -> str:
        role = "active" if self.leads else "standby"
        return f"CentralState({self.name}, {role}, epoch={self.epoch}, {self.ledger!r})"

    # The clock

    def time(self, now: float) -> float:
        """The leader's clock, as far as it is known here."""
        return now + self._offset

    def slot(self, now: float) -> int:
        return math.floor(self.time(now) / self.ledger.slot_seconds)

    def due(self, now: float) -> float:
        """When `tick` has something to do next."""
        return min(self.assignment_due(now), self.serve_due())

    def assignment_due(self, now: float) -> float:
        """When the next assignment is due, or the rest of the one under way."""
        if self._is_ticking:
            return now
        middle = (self._assigned + 1 + _ASSIGN_AT) * self.ledger.slot_seconds
        return middle - self._offset

    def serve_due(self) -> float:
        """When those that wait for credit are to be served; infinite: nobody waits for us."""
        return self.ledger.serve_due() - self._offset if self.grants else math.inf

    def _follow_clock(self, now: float, report: Report) -> None:
        node, slot_seconds = report.node, self.ledger.slot_seconds
        begun = report.slot if report.leaving else report.slot + 1  # by the time it was sent
        sent = begun * slot_seconds
        if report.since and not report.leaving:
            # Else it is the first report to us, or the last: these are sent at any moment.
            sent += report_delay(node, slot_seconds)
        samples = self._samples.pop(node, None) or deque(maxlen=_CLOCK_SAMPLES)
        samples.append(sent - now)
        self._samples[node] = samples
        self._latest[node] = max(samples)
        if len(self._samples) > _CLOCK_NODES:
            oldest = next(iter(self._samples))
            del self._samples[oldest], self._latest[oldest]
        offsets = sorted(self._latest.values())
        # The latest clock is the nearest, but for those that are ahead: of three, one may be.
        ignored = max(1, len(offsets) // 4) if len(offsets) > 2 else 0
        self._offset = offsets[len(offsets) - 1 - ignored]
        self._assigned = min(self._assigned, self.slot(now))

    # Leading

    @property
    def leads(self) -> bool:
        """Whether this central is the active one now."""
        return self._is_elected and self._has_lease()

    @property
    def grants(self) -> bool:
        """Whether this central leads any service now, its own or a borrowed one."""
        return self.leads or bool(self.lending.borrowed())

    def leads_service(self, service: str) -> bool:
        """Whether this central leads a service now."""
        if self.leads:
            return not self.lending.is_lent(service)
        return service in self.lending.borrowed()

    def lead(self, now: float, epoch: int) -> None:
        """Become the active central. `epoch` must be higher than any before."""
        if epoch <= self.epoch:
            raise ValueError(f"epoch must be above {self.epoch}, got {epoch!r}")
        # This central's clock is the leader's now.
        if self._is_elected:
            self.ledger.begin(self.slot(now))  # it goes on in a higher epoch
        else:
            self.ledger.take_over(self.time(now))
        self._is_elected = True
        self.epoch = epoch

    def follow(self, now: float, epoch: int | None = None) -> None:
        """Stop sending quotas: another central leads, in `epoch` if it is known, or none does."""
        self._is_elected = False
        self.epoch = max(self.epoch, epoch or 0)
        self._samples.clear()
        self._latest.clear()
        self.ledger.drop_asks()

    def take_services(self, now: float, services: Collection[str]) -> None:
        """Lead these services, too: another central has led them so far."""
        self.ledger.take_over(self.time(now), services)

    def announce(self, now: float) -> list[tuple[str, Quota]]:
        """A Quota without users for each live node: nothing is granted, but it says who leads.

        Nodes that have lost the leader before learn it in this message, and not in the next slot.
        Their safe shares are those of the last assignment: `tick` sends them next.
        """
        if not self.grants:
            return []
        slot = self.slot(now)
        services = {
            service: ServiceQuota({}, self.ledger.newcomers(slot, service))
            for service in self.ledger.services
            if self.leads_service(service)
        }
        quota = self._make_quota(now, slot, services, whole=False)
        nodes = self.ledger.live_nodes(slot)
        if self._assignment_steps is None:
            self._unsent = nodes[::-1]
        return [(node, quota) for node in nodes]

    # Messages

    def receive(self, now: float, message: Report | Ask) -> list[tuple[str, Ack | Quota]]:
        """Process a message of a node; returns the messages to send, each with its node."""
        if isinstance(message, Ask):
            return self._answer_ask(now, message)
        if not self.leads and message.epoch >= max(1, self.epoch):
            self._follow_clock(now, message)
        slot = self.slot(now)
        was_live = self.ledger.is_live(message.node, slot)
        self.ledger.book(slot, message)
        ack = Ack(
            self.name,
            self.leads,
            self.epoch,
            message.boot,
            self.ledger.booked(message.node, message.boot),
            message.sent,
            self.time(now),
        )
        answer: list[tuple[str, Ack | Quota]] = [(message.node, ack)]
        has_shares = was_live or message.epoch >= 0
        if self.grants and not has_shares and self.ledger.is_live(message.node, slot):
            # A new node must not wait for the next assignment: it is told now who leads, and what
            # newcomers have, and can ask for the rest. One that has heard a leader has safe shares.
            answer.append((message.node, self._quota(now, slot, message.node)))
        return answer

    def _answer_ask(self, now: float, ask: Ask) -> list[tuple[str, Ack | Quota]]:
        if not self.grants:
            return []
        led = {
            service: users for service, users in ask.users.items() if self.leads_service(service)
        }
        answers = [*self._amendments(now, self.ledger.ask(self.time(now), ask._replace(users=led)))]
        if len(led) < len(ask.users) and self.leads and not answers:
            # Another central leads it and will say so; the node only has to hear the leader.
            return [(ask.node, self._make_quota(now, self.slot(now), {}, whole=False))]
        return [*answers]

    def _amendments(
        self, now: float, answers: dict[str, dict[str, ServiceQuota]]
    ) -> Iterator[tuple[str, Quota]]:
        for node, services in answers.items():
            yield node, self._make_quota(now, self.slot(now), services, whole=False)

    def serve(self, now: float) -> list[tuple[str, Quota]]:
        """Grant credit to those that wait and whose turn it is; returns what to send."""
        if self.serve_due() > now:
            return []
        return [*self._amendments(now, self.ledger.serve(self.time(now)))]

    def tick(self, now: float) -> list[tuple[str, Quota]]:
        """Serve those that wait, and assign at the middle of a slot; returns the quotas to send."""
        quotas = self.tick_some(now)
        while self._is_ticking:
            quotas.extend(self.tick_some(now))
        return quotas

    def tick_some(self, now: float) -> list[tuple[str, Quota]]:
        """As `tick`, but a part of some milliseconds or one quota only.

        Then `due` is at once, for the rest of it. Messages may be received between two calls.
        """
        return [*self.serve(now), *self._assign_some(now)]

    def _assign_some(self, now: float) -> list[tuple[str, Quota]]:
        if not self._is_ticking:
            slot = math.floor(self.time(now) / self.ledger.slot_seconds - _ASSIGN_AT)
            if slot <= self._assigned:
                return []
            self._assigned = slot
            if not self.leads and not self.ledger.has_nodes:
                return []  # the leader's clock is not known yet
            self._assignment_steps = self.ledger.assigning(slot)
        if self._assignment_steps is not None:
            for _ in self._assignment_steps:
                return []
            self._assignment_steps = None
            self._unsent = self.ledger.live_nodes(self._assigned)[::-1]
        if not self.grants:
            self._unsent = []
        if not self._unsent:
            return []
        node = self._unsent.pop()
        return [(node, self._quota(now, self._assigned + 1, node))]

    @property
    def _is_ticking(self) -> bool:
        return self._assignment_steps is not None or bool(self._unsent)

    def _quota(self, now: float, slot: int, node: str) -> Quota:
        services = self.ledger.quota(slot - 1, node, self.leads_service)
        return self._make_quota(now, slot, services, whole=True)

    def _make_quota(
        self, now: float, slot: int, services: dict[str, ServiceQuota], *, whole: bool
    ) -> Quota:
        return Quota(
            self.name,
            self.epoch,
            self.ledger.version,
            slot,
            self.time(now),
            self.ledger.nodes(self.slot(now)),
            whole,
            self.ledger.interval,
            services,
        )
