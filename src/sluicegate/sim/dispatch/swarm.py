"""A random run of dispatch: workers and clients with faults, drawn by number.

    outcome = run(17)
    outcome.violations, outcome.counts

Everything is drawn from the seed: how many workers and clients, their options, how fast the handler
is, how much is asked of it, the network, and what happens: workers and clients are killed, frozen
for longer than the lease and stopped, Redis goes away, calls are cancelled, requests kill their
worker. Then the faults end, and when all is quiet a last call must be answered.
"""

import random
from dataclasses import replace

from sluicegate.sim.dispatch.audit import Audit
from sluicegate.sim.dispatch.client import ClientOptions, SimulatedClient
from sluicegate.sim.dispatch.server import Network, Server
from sluicegate.sim.dispatch.worker import SimulatedWorker, WorkerOptions
from sluicegate.sim.swarm_runs import Outcome
from sluicegate.sim.world import World

__all__ = ["run"]

_LONGEST_QUIET = 200.0  # seconds after which what is not done will never be
_LAST_CALLS = 60


def run(seed: int) -> Outcome:
    """Run the swarm of this number."""
    return _Swarm(seed).run()


class _Swarm:
    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.draw = draw = random.Random(f"swarm {seed}")
        self.is_calm = draw.random() < 0.2
        delay = draw.choice((0.0005, 0.002, 0.02))
        has_losses = not self.is_calm and draw.random() < 0.5
        self.network = Network(
            delay,
            loss=draw.choice((0.002, 0.02, 0.1)) if has_losses else 0.0,
            repeat=draw.choice((0.0, 0.05)) if not self.is_calm else 0.0,
        )
        self.has_outage = has_losses and draw.random() < 0.4
        self.server = Server(self.world, self.network)
        # A read that is on its way when the cancellation comes, that read's reply, and the next.
        told_within = 3.0 * delay + 0.001
        self.audit = Audit(self.world, has_losses=has_losses, told_within=told_within)
        self.worker_options = self._draw_worker()
        self.client_options = ClientOptions(
            max_waiting=draw.choice((5, 20, 100, 1000)),
            max_wait_seconds=draw.choice((0.0, 0.0, 0.5, 2.0)),
        )
        self.cancels = draw.choice((0.0, 0.1, 0.4))
        self.poison = 0.0 if self.is_calm else draw.choice((0.0, 0.0, 0.05))
        self.workers = [self._new_worker() for _ in range(draw.randint(1, 4))]
        self.clients = [self._new_client(number) for number in range(draw.randint(1, 3))]
        self.calls = 0
        self.load = draw.choice((0.3, 0.8, 1.5, 4.0))
        self.seconds = min(self._plan_calls(), 60.0)
        if not self.is_calm:
            self._plan_faults()
        self._watch_idle()

    def run(self) -> Outcome:
        self.world.run(self.seconds)
        self._end_faults()
        self._run_until_quiet()
        self.audit.check_answers_again(self._is_answered_again())
        self.world.run(self.world.now + 3.0 * max(self.leases) + 2.0)
        self.audit.check_quiet(self.server.model, self.workers)
        self.audit.counts["exchanges"] = self.server.exchanges
        return Outcome(self.world.seed, self._facts(), self.audit.violations, self.audit.counts)

    def _draw_worker(self) -> WorkerOptions:
        draw = self.draw
        lease = draw.choice((0.5, 1.0, 3.0))
        # In some swarms the leases of workers differ.
        self.leases = (lease,) if draw.random() < 0.7 else (lease, 0.5, 3.0)
        kind = draw.choice(("plain", "plain", "size", "cost"))
        return WorkerOptions(
            lease=lease,
            max_deliveries=draw.choice((2, 3, 4)),
            concurrency=draw.choice((1, 1, 2, 3)),
            max_batch=draw.choice((1, 2, 4, 16)),
            max_wait=draw.choice((0.0, 0.0, 0.05, 0.3)),
            by_size=kind == "size",
            max_cost=draw.choice((3.0, 20.0)) if kind == "cost" else None,
            each=10.0 ** draw.uniform(-3.0, -1.5),
            fixed=10.0 ** draw.uniform(-3.0, -0.7),
            pads=kind == "size",
            noise=draw.choice((0.0, 0.2, 1.0)),
            stalls=draw.choice((0.0, 0.0, 0.02, 0.1)),
            stall_seconds=draw.choice((1.0, 3.0)) * lease,
        )

    def _new_worker(self) -> SimulatedWorker:
        number = self.audit.counts["workers"]
        self.audit.counts["workers"] += 1
        name = f"worker {number}"
        options = replace(self.worker_options, lease=self.draw.choice(self.leases))
        return SimulatedWorker(self.world, self.server, self.audit, name, options)

    def _new_client(self, number: int) -> SimulatedClient:
        name = f"client {number}"
        return SimulatedClient(self.world, self.server, self.audit, name, self.client_options)

    def _plan_calls(self) -> float:
        """Plan the calls in bursts; return when the last has its deadline."""
        draw, options = self.draw, self.worker_options
        batch = min(options.max_batch, 4)
        capacity = batch / (options.fixed + batch * options.each * 2.0)
        rate = self.load * capacity * options.concurrency * len(self.workers)
        time, last = 0.2, 0.0
        for _ in range(draw.choice((20, 60, 150))):
            time += draw.expovariate(rate) if draw.random() < 0.8 else 0.0
            if time > 20.0:
                break
            timeout = 10.0 ** draw.uniform(-0.7, 0.9)
            self.world.at(time, self._call, draw.choice(self.clients), timeout)
            last = max(last, time + timeout)
        return last

    def _watch_idle(self) -> None:
        self.audit.check_idle(self.server.model, self.workers)
        self.world.at(self.world.now + 0.1, self._watch_idle)

    def _call(self, client: SimulatedClient, timeout: float) -> None:
        client.run(self._call_now, client, timeout)

    def _call_now(self, client: SimulatedClient, timeout: float) -> None:
        traffic = self.world.traffic
        self.calls += 1
        happens = "ok"
        if traffic.random() < 0.03:
            happens = "fail"
        elif traffic.random() < self.poison:
            happens = "poison"
        item = (self.calls, traffic.choice((1, 1, 1, 2, 8)), happens)
        key = f"key {traffic.randrange(10)}" if traffic.random() < 0.05 else ""
        call = client.call(item, timeout, traffic.choice((0, 1, 1, 1, 2)), key)
        if traffic.random() < self.cancels:
            client.after(traffic.random() * traffic.random() * timeout, client.give_up, call)

    def _plan_faults(self) -> None:
        draw, lease = self.draw, self.worker_options.lease
        end = max(self.seconds, 1.0)
        for act in (self._kill_worker, self._freeze_worker, self._stop_worker):
            for _ in range(draw.choice((0, 0, 1, 3))):
                self.world.at(draw.uniform(0.0, end), act)
        if draw.random() < 0.2:
            self.world.at(draw.uniform(0.0, end), self._kill_client)
        if draw.random() < 0.3:
            victim = draw.choice(self.clients)
            self.world.at(draw.uniform(0.0, end), victim.freeze, draw.uniform(0.1, 3.0))
        if self.has_outage:
            seconds = draw.uniform(0.1, 3.0 * lease)
            self.world.at(draw.uniform(0.0, end), self.server.go_down, seconds)

    def _some_worker(self) -> SimulatedWorker | None:
        alive = [worker for worker in self.workers if not worker.is_dead]
        return self.world.faults.choice(alive) if alive else None

    def _kill_worker(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            worker.kill()
            self.audit.counts["killed"] += 1
            self.world.at(self.world.now + self.world.faults.uniform(0.0, 3.0), self._replace)

    def _freeze_worker(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            worker.freeze(self.world.faults.uniform(0.2, 3.0) * worker.options.lease)
            self.audit.counts["frozen"] += 1

    def _stop_worker(self) -> None:
        worker = self._some_worker()
        if worker is not None:
            worker.stop()
            self.audit.counts["stopped"] += 1
            self.world.at(self.world.now + self.world.faults.uniform(0.0, 1.0), self._replace)

    def _kill_client(self) -> None:
        self.world.faults.choice(self.clients).kill()
        self.audit.counts["clients killed"] += 1

    def _replace(self) -> None:
        self.workers.append(self._new_worker())

    def _end_faults(self) -> None:
        self.server.network = Network(self.network.delay)
        self._replace()  # of all others some have died of what they ran
        if all(client.is_dead for client in self.clients):
            self.clients.append(self._new_client(len(self.clients)))

    def _run_until_quiet(self) -> None:
        end = self.world.now + _LONGEST_QUIET
        while self.world.now < end and self._is_busy():
            if all(worker.is_dead for worker in self.workers):
                self._replace()
            self.world.run(self.world.now + 0.5)

    def _is_busy(self) -> bool:
        calls = any(client.core.waiting for client in self.clients if not client.is_dead)
        held = any(worker.core.held for worker in self.workers if not worker.is_dead)
        return bool(calls or held or self.server.model.length)

    def _is_answered_again(self) -> bool:
        """One call after the other, until one is answered."""
        client = next(one for one in self.clients if not one.is_dead)
        for _ in range(_LAST_CALLS):
            before = self.audit.counts["answered"]
            self.calls += 1
            client.run(client.call, (self.calls, 1, "ok"), 5.0)
            end = self.world.now + 6.0
            while self.world.now < end:
                self.world.run(self.world.now + 0.5)
                if self.audit.counts["answered"] > before:
                    return True
        return False

    def _facts(self) -> str:
        kind = "calm" if self.is_calm else "faulty"
        return (
            f"{kind}, {len(self.clients)} clients at {self.load:g} x capacity, "
            f"{self.client_options}, {self.network}, {self.worker_options}"
        )
