"""The auditor: sees every message and every request of a run, and believes none of them.

It keeps books of its own, in plain Python and from the messages alone, and shares no code with
the ledger or the node. At each step it holds the system to six promises:

1. Nothing is granted that is not there. When a central grants more, all that is outstanding at its
   nodes is in its bucket (`central_books`).
2. Nothing is booked that was not consumed, and nodes report exactly what went through them.
3. No node lets more through for a user than its credit: what it has heard of, less what it has
   given back; besides a float, an allowance while no leader is heard or none has told of the user,
   and what nobody could foresee of a cost (`node_view`).
4. Epochs do not go back: a node that has heard a leader obeys none of an earlier epoch.
5. Nobody is refused for lasting seconds while all of their buckets have room and the leader is
   heard.
6. No two centrals lead at once, and the epoch of each leadership is above all before
   (`sim.election.audit`).

What breaks one of them raises `InvariantBroken`, with the scenario, the random seed, the time and
the facts, and the command that shows it again.

Users without a limit are not counted by nodes: of who was free for a time, a node may report less
than went through it, and it is not held to the third promise.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sluicegate.errors import SluicegateError
from sluicegate.quota.ledger.limit_entry import Entry
from sluicegate.quota.messages import Ask, Line, Quota, Report
from sluicegate.sim.audited_limits import AuditedLimits, Cell, Key
from sluicegate.sim.central_books import CentralBooks
from sluicegate.sim.machines import Machine
from sluicegate.sim.node_view import NodeView
from sluicegate.sim.scenario import Scenario
from sluicegate.sim.world import World

__all__ = ["Audit", "Cell", "InvariantBroken"]

_REPORTS = 1024  # whose lines are kept by cell: each is looked at by every central
_RECONNECT_SECONDS = 4.0  # in which nodes find a central that is back
_FORGET_REPORTS = 118  # after so many without a word of a user, a node may count anew
_LASTING_SECONDS = 3.0  # and as many slots, at least: nobody is refused for longer without a reason
_LOOKS = 0.25  # of a slot: how often a lasting refusal is looked at
_ROOM = 4.0  # requests: a bucket with less, or that is not nearly full, has no room
_NEARLY_FULL = 0.95
_SETTLED_SLOTS = 10.0  # so long a new leader may keep something for nodes it has not heard yet

Totals = Mapping[tuple[str, int], Mapping[Key, float]]


class InvariantBroken(SluicegateError):
    """A run in which something happened that must never happen."""

    def __init__(self, scenario: str, seed: int, time: float, facts: str, command: str) -> None:
        super().__init__(
            f"{facts} (scenario {scenario}, seed {seed}, at {time:.3f} s; "
            f"see it again with: {command} --seed {seed})"
        )
        self.scenario = scenario
        self.seed = seed
        self.time = time
        self.facts = facts
        self.command = command

    def __reduce__(self) -> tuple[type["InvariantBroken"], tuple[str, int, float, str, str]]:
        return type(self), (self.scenario, self.seed, self.time, self.facts, self.command)


class Audit:
    """Watches one run."""

    def __init__(self, scenario: Scenario, seed: int, world: World) -> None:
        self._scenario = scenario
        self._slot_seconds = scenario.slot_seconds
        self._lasting = max(_LASTING_SECONDS, _LASTING_SECONDS * scenario.slot_seconds)
        self._seed = seed
        self._world = world
        self._limits = AuditedLimits(scenario)
        self.cell = self._limits.cell
        self._lines: dict[int, tuple[object, list[tuple[Cell, Line]]]] = {}
        self._books: dict[str, CentralBooks] = {}
        self._disks: dict[str, CentralBooks] = {}
        self._processes: dict[str, Any] = {}  # of the centrals
        self._leader: str | None = None
        self._views: dict[str, NodeView] = {}
        self._tallies: Totals = {}
        # Of each life of a node and each cell: what it told of before it forgot the user, what it
        # told last, and in which report.
        self._told: dict[tuple[str, int], dict[Cell, tuple[float, float, int]]] = {}
        self._sequences: dict[tuple[str, int], int] = {}
        # The window of each node, and what has passed in it.
        self._windows: dict[str, tuple[int, dict[Cell, float]]] = {}

    def _broken(self, facts: str) -> InvariantBroken:
        scenario = self._scenario
        return InvariantBroken(scenario.name, self._seed, self._world.now, facts, scenario.command)

    def watch(self, tallies: Totals) -> None:
        """Be shown what really went through each life of each node."""
        self._tallies = tallies

    # What happens to machines

    def node_started(self, machine: Machine, boot: int) -> None:
        self._views[machine.name] = NodeView(boot, machine.now(), self._slot_seconds)
        self._windows.pop(machine.name, None)

    def central_started(self, name: str, process: Any, time: float, *, warm: bool) -> None:
        """A central begins, or with `warm` goes on from its last snapshot."""
        slot = time / self._slot_seconds
        self._processes[name] = process
        if warm and name in self._disks:
            self._books[name] = self._disks[name].copy()
            self._books[name].resumed = math.floor(slot) - 1
            self._books[name].reconnect_slots = math.ceil(_RECONNECT_SECONDS / self._slot_seconds)
        else:
            self._books[name] = CentralBooks(math.floor(slot), is_cold=name in self._books)

    def snapshot_written(self, name: str) -> None:
        self._disks[name] = self._books[name].copy()

    def state_taken(self, name: str, peer: str) -> None:
        """A central that starts takes the state of a peer, instead of its own snapshot."""
        self._disks[name] = self._books[peer].copy()

    def check_election(self, violations: Sequence[str]) -> None:
        """6. Centrals have voted."""
        if violations:
            raise self._broken("; ".join(violations))

    def leads(self, name: str, time: float) -> None:
        """A central leads from now on; `time`: what its clock says."""
        slot = time / self._slot_seconds
        books = self._books[name]
        if self._leader is not None:
            # Nodes have followed another: their refill is kept until they tell, as after an outage.
            books.resumed = math.floor(slot)
        self._leader = name
        books.led_since = slot

    def limits_changed(self, entries: Sequence[Entry]) -> None:
        self._limits.will_be(entries)

    # Messages

    def sent(self, source: Machine, target: str, message: Any) -> None:
        if type(message) is Quota:
            self._granted(source.name, target, message)
        elif type(message) is Report:
            self._reported(source, message)
        elif type(message) is Ask:
            self._asked(source, message)

    def _granted(self, central: str, node: str, quota: Quota) -> None:
        """1. A central grants credit."""
        slot = quota.time / self._slot_seconds
        self._limits.hear(quota.version, slot)
        for service, part in quota.services.items():
            for user, shares in part.users.items():
                for resource, share in shares.items():
                    cell = self.cell(service, user, resource)
                    self._check_grant(central, slot, node, cell, share.granted)

    def _check_grant(
        self, central: str, slot: float, node: str, cell: Cell, granted: float
    ) -> None:
        wrong = self._books[central].grant(slot, node, cell, granted)
        if wrong is not None:
            raise self._broken(f"{central}, {_name(cell)}: {wrong}")

    def _reported(self, machine: Machine, report: Report) -> None:
        """2. A node reports: what it says went through it must have, up to the end of the slot."""
        life = (report.node, report.boot)
        if self._sequences.get(life, 0) >= report.sequence:
            return  # the same, to another central
        self._sequences[life] = report.sequence
        tally = self._tallies.get(life, {})
        _, passed = self._window(machine, machine.now())
        told = self._told.setdefault(life, {})
        view = self._views[report.node]
        for cell, line in self._lines_of(report):
            real = tally.get(cell.key, 0.0)
            if not report.leaving:
                real -= passed.get(cell, 0.0)
            slack = 1e-9 * max(1.0, real)
            forgotten, last, sequence = told.get(cell, (0.0, 0.0, report.sequence))
            may_be_new = report.sequence - sequence > _FORGET_REPORTS
            if line.consumed < last or (
                may_be_new and abs(forgotten + line.consumed - real) > slack
            ):
                forgotten += last  # the node has forgotten the user, and counts anew
            total = forgotten + line.consumed
            told[cell] = (forgotten, line.consumed, report.sequence)
            if total > real + slack or (total < real - slack and cell.is_always_limited):
                raise self._broken(
                    f"{report.node} reports {total:g} {_name(cell)}, and {real:g} went through it"
                )
            view.tell_line(cell, line)

    def _asked(self, machine: Machine, ask: Ask) -> None:
        view = self._views[ask.node]
        now = machine.now()
        view.send_ask(now, ask)
        for service, users in ask.users.items():
            for user, (_, resources, _) in users.items():
                if not resources:
                    view.tell_nothing(now, service, user)
                for resource, credit in resources.items():
                    view.tell_credit(self.cell(service, user, resource), credit)

    def central_hears(self, name: str, time: float, message: Any) -> None:
        """Book what a node tells as the central should, at `time` of its clock."""
        books = self._books[name]
        slot = time / self._slot_seconds
        # What it has granted and not told yet had to be there before it hears more.
        for node, service, user, resource, granted in self._processes[name].ledger.untold_grants():
            self._check_grant(name, slot, node, self.cell(service, user, resource), granted)
        if type(message) is Report:
            lines = self._lines_of(message)
            recorded_of = self._processes[name].ledger.recorded
            for cell, _ in lines:  # a bucket that is full may be forgotten, and begin at 0 again
                recorded = books.recorded.get(cell, 0.0)
                books.recorded[cell] = recorded - recorded_of(*cell.key)
            books.hear_report(slot, message, lines)
        elif type(message) is Ask and self._processes[name].leads:
            ledger = self._processes[name].ledger
            ledger.begin(math.floor(slot))  # it notices that it stood still
            if ledger.must_report(message.node, math.floor(slot)):
                return
            limited = self._limits.limited_cells
            books.hear_ask(
                slot,
                message,
                [
                    (limited(service, user), ask)
                    for service, users in message.users.items()
                    for user, ask in users.items()
                ],
            )

    def central_heard(self, name: str, message: Any) -> None:
        """2. What a central has recorded by now was consumed, and told in a report."""
        if type(message) is not Report:
            return
        books = self._books[name]
        recorded = books.recorded
        recorded_of = self._processes[name].ledger.recorded
        for cell, _ in self._lines_of(message):
            recorded[cell] = total = recorded[cell] + recorded_of(*cell.key)
            most = min(cell.consumed, books.booked.get(cell, 0.0))
            if total > most + 1e-9 * (1.0 + most):
                raise self._broken(
                    f"{name} has recorded {total:g} {_name(cell)}, of {cell.consumed:g} that were "
                    f"consumed and {books.booked.get(cell, 0.0):g} that it was told of"
                )

    def node_hears(self, node: str, now: float, message: Any) -> None:
        view = self._views[node]
        if type(message) is not Quota:
            view.hear_ack(now, message)
            return
        if message.epoch < view.epoch:
            return
        view.hear_quota(now, message)
        for service, part in message.services.items():
            for user, shares in part.users.items():
                for resource, share in shares.items():
                    view.hear_share(self.cell(service, user, resource), share.granted, share.safe)

    def connection_lost(self, node: str) -> None:
        self._views[node].lose_connection()

    def node_heard(self, node: str, process: Any) -> None:
        """4. A node has heard something: it obeys the highest epoch."""
        known = self._views[node].epoch
        if process.epoch < known:
            raise self._broken(
                f"{node} follows epoch {process.epoch} though it has heard of epoch {known}"
            )

    # 3. Requests

    def admitted(self, machine: Machine, now: float, cell: Cell, cost: float, count: int) -> None:
        """`count` requests have passed and ended at once, each of which took `cost` of a cell."""
        if cost > cell.unit:
            cell.unit = cost
        if cost < cell.least:
            cell.least = cost
        cell.consumed += cost * count
        window, passed = self._window(machine, now)
        passed[cell] = passed.get(cell, 0.0) + cost * count
        if cell.rate is not None:
            wrong = self._views[machine.name].admit(now, window, cell, cost, count)
            if wrong is not None:
                raise self._broken(f"{machine.name} let {_name(cell)} through: {wrong}")

    def started(
        self, machine: Machine, now: float, service: str, user: str, costs: Mapping[str, float]
    ) -> None:
        """A request has passed whose cost is counted when it ends."""
        cells = []
        for resource, cost in costs.items():
            cell = self.cell(service, user, resource)
            cell.unit = max(cell.unit, cost)
            cell.least = min(cell.least, cost)
            if cell.rate is not None:
                cells.append(cell)
        window, _ = self._window(machine, now)
        wrong = self._views[machine.name].start(now, window, cells)
        if wrong is not None:
            raise self._broken(f"{machine.name} let a request of {service}/{user} through: {wrong}")

    def consumed(
        self, machine: Machine, service: str, user: str, costs: Mapping[str, float]
    ) -> None:
        """A request has ended whose cost was not counted when it passed."""
        window, passed = self._window(machine, machine.now())
        cells = [(self.cell(service, user, resource), cost) for resource, cost in costs.items()]
        for cell, cost in cells:
            cell.consumed += cost
            passed[cell] = passed.get(cell, 0.0) + cost
        self._views[machine.name].end(window, service, user, cells)

    def _window(self, machine: Machine, now: float) -> tuple[int, dict[Cell, float]]:
        """A node's window, and what was counted since it began: that is in no report yet."""
        _, window = machine.process.slot_and_window(now)
        known = self._windows.get(machine.name)
        if known is None or known[0] != window:
            known = self._windows[machine.name] = (window, {})
        return known

    # 5. Refusals

    def refused(self, machine: Machine, now: float, service: str, name: str) -> None:
        """A request was refused."""
        view = self._views[machine.name]
        user = view.user(service, name)
        if now < user.looked + _LOOKS * self._slot_seconds:
            return
        is_lasting = now < user.looked + self._slot_seconds
        user.looked = now
        if not is_lasting or not self._has_room(machine.name, view, now, service, name):
            user.refused_since = None
        elif user.refused_since is None:
            user.refused_since = now
        elif now >= user.refused_since + self._lasting:
            raise self._broken(
                f"{machine.name} has refused all requests of {service}/{name} for "
                f"{now - user.refused_since:g} s, though all of its buckets had room"
            )

    def _has_room(self, node: str, view: NodeView, now: float, service: str, user: str) -> bool:
        """Whether the leader hears the node and the node the leader, and there is something for
        the user."""
        books = self._books[self._leader] if self._leader is not None else None
        if books is None or view.is_alone(now) or not books.is_heard(node):
            return False
        if books.time < books.led_since + _SETTLED_SLOTS:
            return False
        return all(
            books.available(cell) >= min(_ROOM * cell.unit, _NEARLY_FULL * cell.capacity)
            and cell.capacity > 0.0
            for cell in self._limits.limited_cells(service, user)
        )

    # When all is over

    def recorded(self, central: str, key: Key) -> float:
        """All that a central has recorded, also in buckets that it has forgotten since."""
        return self._books[central].recorded.get(self.cell(*key), 0.0)

    def lost(self, name: str, key: Key, down: Collection[str]) -> float:
        """What went through nodes that crashed, or are `down`, and this central never heard of."""
        heard = self._books[name].heard
        cell = self.cell(*key)
        lost = 0.0
        for (node, boot), tally in self._tallies.items():
            if boot < self._views[node].boot or node in down:
                lost += tally.get(key, 0.0) - heard.get((node, boot), {}).get(cell, 0.0)
        return lost

    # Names

    def _lines_of(self, report: Report) -> list[tuple[Cell, Line]]:
        """The lines of a report by cell. Most often all centrals are sent the same."""
        known = self._lines.get(id(report.lines))
        if known is not None:
            return known[1]
        if len(self._lines) >= _REPORTS:
            self._lines.clear()
        lines = [
            (self.cell(service, user, resource), line)
            for service, users in report.lines.items()
            for user, resources in users.items()
            for resource, line in resources.items()
        ]
        self._lines[id(report.lines)] = report.lines, lines  # which keeps the number from others
        return lines


def _name(cell: Cell) -> str:
    service, user, resource = cell.key
    return f"{resource} of {service}/{user}"
