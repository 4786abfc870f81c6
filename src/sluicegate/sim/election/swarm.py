"""A random run of an election: members with faults, drawn by number.

    outcome = run(17)
    outcome.violations, outcome.counts

Everything is drawn from the seed: three or five members, some with a witness; the lease, the rates
of their clocks, the network; and what happens: members are killed and start again, frozen, stopped
in good order and cut off, the leader more often than others. In some runs everybody is cut off from
everybody, and nobody may lead. Then the faults end, and a leader must emerge and stay.
"""

import random
from collections.abc import Callable

from sluicegate.election.paxos.messages import Accept, Accepted, Message, Release
from sluicegate.election.paxos.timing import Timing
from sluicegate.sim.election.audit import Audit
from sluicegate.sim.election.member import Member
from sluicegate.sim.election.network import Network, Quality
from sluicegate.sim.swarm_runs import Outcome
from sluicegate.sim.world import World

__all__ = ["run"]

_NAMES = ("a", "b", "c", "d", "e")


def run(seed: int) -> Outcome:
    """Run the swarm of this number."""
    return _Swarm(seed).run()


class _Swarm:
    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.draw = draw = random.Random(f"election swarm {seed}")
        lease = draw.choice((1.0, 2.0))
        self.timing = Timing(lease, attempt=lease * draw.choice((0.05, 0.1, 0.25)))
        self.audit = Audit(self.world, self.timing)
        self.calm = Quality(self.timing.attempt * draw.choice((0.005, 0.02, 0.08)))
        self.network = Network(self.world, self._draw_quality(), self.audit.counts)
        self.members = self._draw_members()
        self.audit.members = self.members
        by_name = {member.name: member for member in self.members}

        def deliver(sender: str, to: str, message: Message) -> None:
            by_name[to].receive(sender, message)

        self.network.deliver = deliver
        self.seconds = lease * draw.uniform(5.0, 12.0)
        self.is_restless = draw.random() < 0.7
        for member in self.members:
            member.jitter.is_eager = self.is_restless
        self.cuts_everybody = draw.random() < 0.3
        self._plan_faults()

    def run(self) -> Outcome:
        self.world.run(self.seconds)
        if self.cuts_everybody:
            self._check_without_majority()
        self._check_recovery()
        return Outcome(self.world.seed, self._facts(), self.audit.violations, self.audit.counts)

    def _draw_quality(self) -> Quality:
        draw = self.draw
        return Quality(
            self.calm.delay,
            loss=draw.choice((0.0, 0.02, 0.1, 0.3)),
            double=draw.choice((0.0, 0.1)),
            late=draw.choice((0.0, 0.02, 0.1, 0.4)),
            latest=self.timing.lease * draw.choice((0.05, 0.3, 1.5)),
            late_kinds=draw.choice(((), (), (Accept,), (Release,), (Accept, Release), (Accepted,))),
        )

    def _draw_members(self) -> list[Member]:
        draw, error = self.draw, self.timing.clock_error
        kind = draw.choice(("three", "three", "three", "witness", "five"))
        names = _NAMES[: 5 if kind == "five" else 3]
        # In some swarms the clocks differ as much as they may: one is slow, or one is fast.
        rates = [1.0 + error * draw.uniform(-1.0, 1.0) for _ in names]
        if draw.random() < 0.5:
            sign = draw.choice((-1.0, 1.0))
            rates = [1.0 - sign * error for _ in names]
            rates[draw.randrange(len(names))] = 1.0 + sign * error
        return [
            Member(
                self.world,
                self.network,
                self.audit,
                name,
                names,
                self.timing,
                is_candidate=kind != "witness" or name != names[-1],
                rate=rate,
            )
            for name, rate in zip(names, rates, strict=True)
        ]

    # Faults

    def _plan_faults(self) -> None:
        draw = self.draw
        most = draw.choice((1, 4, 8))
        acts: tuple[Callable[[], None], ...] = (
            *(self._kill, self._kill_voter, self._freeze, self._cut),
            *(self._stop, self._stop_winner),
        )
        for act in acts:
            for _ in range(draw.randint(0, most)):
                # Not before the first could lead.
                begin = self.timing.quarantine
                self.world.at(draw.uniform(begin, self.seconds), act)
        for _ in range(draw.choice((0, 20, 60)) if self.is_restless else 0):
            self.world.at(draw.uniform(0.0, self.seconds), self._prod)

    def _victim(self) -> Member | None:
        faults = self.world.faults
        alive = [member for member in self.members if member.is_alive and not member.is_frozen]
        leader = self._leader()
        if leader in alive and faults.random() < 0.5:
            return leader
        return faults.choice(alive) if alive else None

    def _leader(self) -> Member | None:
        return next((member for member in self.members if member.is_leader), None)

    def _away(self) -> float:
        """How long a fault lasts: often just longer than a lease, or not at all."""
        lease, faults = self.timing.lease, self.world.faults
        return lease * faults.choice((0.0, faults.uniform(0.0, 1.0), faults.uniform(1.0, 1.1), 2.0))

    def _prod_after_fault(self) -> None:
        """Let candidates try when it hurts: right after a fault, and when leases are about to end.

        By themselves they wait for what they have heard of the leader. Nothing may depend on that.
        """
        if not self.is_restless:
            return
        faults, lease, now = self.world.faults, self.timing.lease, self.world.now
        for _ in range(3):
            self.world.at(now + lease * faults.uniform(0.0, 0.1), self._prod)
        leader = self._leader()
        if leader is not None and leader.proposer is not None:
            end = leader.true_time(leader.proposer.deadline)
            for _ in range(6):
                self.world.at(end + lease * faults.uniform(-0.05, 0.03), self._prod)

    def _prod(self) -> None:
        if self.world.now < self.seconds:
            self.audit.counts["prods"] += 1
            self.world.faults.choice(self.members).prod()

    def _kill(self) -> None:
        member = self._victim()
        if member is not None:
            self.audit.counts["killed"] += 1
            self.audit.counts["leaders killed"] += member.is_leader
            self._prod_after_fault()
            member.kill()
            self.world.at(self.world.now + self._away(), member.boot)

    def _kill_voter(self) -> None:
        """It dies right after its next vote, and starts again at once."""
        self.world.faults.choice(self.members).dies_after_vote = True

    def _stop_winner(self) -> None:
        """Those that win next stop soon after, while attempts of others are under way."""
        for member in self.members:
            member.stops_after_win = self.world.faults.random() < 0.5

    def _stop(self) -> None:
        member = self._victim()
        if member is not None:
            self.audit.counts["stopped"] += 1
            self.audit.counts["leaders stopped"] += member.is_leader
            self._prod_after_fault()
            member.stop()
            self.world.at(self.world.now + self._away(), member.boot)

    def _freeze(self) -> None:
        member = self._victim()
        if member is not None:
            self.audit.counts["frozen"] += 1
            self.audit.counts["leaders frozen"] += member.is_leader
            self._prod_after_fault()
            member.freeze(self._away())

    def _cut(self) -> None:
        """Cut the network in two, or one way between two members."""
        faults, leader = self.world.faults, self._leader()
        names = [member.name for member in self.members]
        faults.shuffle(names)
        self.audit.counts["cuts"] += 1
        self._prod_after_fault()
        if leader is not None and faults.random() < 0.4:
            names.remove(leader.name)
            self.network.isolate(([leader.name], names))
        elif faults.random() < 0.3:
            self.network.cut = frozenset({(names[0], names[1]), (names[0], names[2])})
        else:
            place = faults.randint(1, len(names) - 1)
            self.network.isolate((names[:place], names[place:]))
        self.world.at(self.world.now + self._away(), self.network.heal)

    # The end

    def _check_without_majority(self) -> None:
        """All hear only themselves; what is on its way arrives, and is of attempts before that."""
        timing = self.timing
        self.audit.counts["without majority"] += 1
        self.network.quality = self.calm
        # Cuts that were planned before may end in the middle: this one is made anew each time.
        end = self.world.now + timing.exclusion + timing.attempt
        self._run_isolated(end)
        self.audit.check_nobody_leads()
        self._run_isolated(end + timing.lease)
        self.audit.check_nobody_leads()

    def _run_isolated(self, end: float) -> None:
        while self.world.now < end:
            self.network.isolate([member.name] for member in self.members)
            self.world.run(min(self.world.next_time + 1e-9, end))

    def _check_recovery(self) -> None:
        """A leader emerges within a quarantine, an exclusion and ten attempts."""
        timing = self.timing
        self.network.quality = self.calm
        start = self.world.now
        for member in self.members:
            member.jitter.is_eager = False
            member.dies_after_vote = member.stops_after_win = False
            if member.is_frozen:
                member.kill()
            member.boot()
        end = start + timing.quarantine + timing.exclusion + 10.0 * timing.attempt
        while self.world.now < end and not any(member.is_leader for member in self.members):
            self.network.heal()
            self.world.run(self.world.now + timing.attempt / 4.0)
        self.audit.check_leader(self.world.now - start)
        self._check_stability()

    def _check_stability(self) -> None:
        """What is late still arrives, and may disturb a leader once; then it stays."""
        timing = self.timing
        self.network.heal()
        self.world.run(self.world.now + self.timing.lease * 1.5 + timing.lease)
        leader = next((member for member in self.members if member.is_leader), None)
        if leader is None:
            self.audit.check_leader(0.0)
        else:
            epoch = leader.proposer.epoch if leader.proposer is not None else 0
            self.world.run(self.world.now + timing.lease)
            self.audit.check_stays(leader, epoch)

    def _facts(self) -> str:
        rates = ", ".join(f"{member.name}: {member.rate:.4f}" for member in self.members)
        witnesses = [member.name for member in self.members if not member.is_candidate]
        return f"clocks {rates}; witnesses: {witnesses}; {self.timing}, {self.network.quality}"
