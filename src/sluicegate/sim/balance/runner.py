"""One run: real balancers, model servers, and a network with a delay, in virtual time.

Requests arrive at random (Poisson) whether or not earlier ones have ended: clients that wait for an
answer before they send again would hide the tail. Arrivals, clients, keys and work are drawn from
one stream that no policy touches, so all policies have the same requests.
"""

import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from sluicegate.balance import Balancer, make
from sluicegate.balance.health_checks import CheckSchedule
from sluicegate.sim.balance.measures import Measures, measure
from sluicegate.sim.balance.scenario import BalanceScenario, ServerEvent
from sluicegate.sim.balance.servers import ModelServer, Request, State, draw_work
from sluicegate.sim.world import World

__all__ = ["MakeBalancer", "WorldClock", "run"]

MakeBalancer = Callable[..., Balancer]  # a policy, or a function with its arguments

_STATES = {
    "return": State.UP,
    "fail fast": State.FAIL_FAST,
    "fail slow": State.FAIL_SLOW,
    "hang": State.HANG,
    "die": State.DEAD,
}


class WorldClock:
    """The time of a world."""

    __slots__ = ("_world",)

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> float:
        return self._world.now

    def sleep(self, seconds: float, /) -> None:
        raise NotImplementedError("nothing sleeps in a simulation")

    async def sleep_async(self, seconds: float, /) -> None:
        raise NotImplementedError("nothing sleeps in a simulation")


def run(scenario: BalanceScenario, policy: str | MakeBalancer, *, seed: int = 0) -> Measures:
    """Run a scenario with one policy, by its name or by what makes a balancer."""
    return _Run(scenario, policy, seed).run()


class _Run:
    def __init__(self, scenario: BalanceScenario, policy: str | MakeBalancer, seed: int) -> None:
        self._scenario = scenario
        self._world = world = World(seed)
        self._requests: list[Request] = []
        fast = scenario.servers - scenario.slow
        self._servers = [
            ModelServer(
                world,
                scenario.capacity,
                1.0 if number < fast else scenario.slow_factor,
                self._answer,
            )
            for number in range(scenario.servers)
        ]
        addresses = [f"server-{number}" for number in range(scenario.servers)]
        self._places = {address: number for number, address in enumerate(addresses)}
        seeds = random.Random(f"balancers {seed}")
        build = partial(make, policy) if isinstance(policy, str) else policy
        options: dict[str, Any] = {"health": scenario.health, "clock": WorldClock(world)}
        if scenario.load_decay is not None:
            options["load_decay"] = scenario.load_decay
        self._balancers = [
            build(addresses, seed=seeds.getrandbits(48), **options) for _ in range(scenario.clients)
        ]

    def run(self) -> Measures:
        scenario, world = self._scenario, self._world
        for event in scenario.events:
            world.at(event.at, self._happen, event)
        if scenario.check_interval is not None:
            for balancer in self._balancers:
                schedule = CheckSchedule(balancer, interval=scenario.check_interval)
                self._check(schedule)
        if scenario.report_interval is not None:
            world.at(scenario.report_interval, self._report_loads, scenario.report_interval)
        if scenario.is_in_step:
            world.at(0.0, self._arrive_in_step)
        else:
            self._plan_arrival()
        world.run(math.inf)  # until all requests have ended
        return measure(scenario, self._requests, [server.peak for server in self._servers])

    def _plan_arrival(self) -> None:
        time = self._world.now + self._world.traffic.expovariate(self._scenario.rate)
        if time < self._scenario.seconds:
            self._world.at(time, self._arrive)

    def _arrive(self) -> None:
        self._send(self._world.traffic.randrange(self._scenario.clients))
        self._plan_arrival()

    def _arrive_in_step(self) -> None:
        for client in range(self._scenario.clients):
            self._send(client)
        time = self._world.now + self._scenario.clients / self._scenario.rate
        if time < self._scenario.seconds:
            self._world.at(time, self._arrive_in_step)

    def _send(self, client: int) -> None:
        scenario, world = self._scenario, self._world
        key = world.traffic.randrange(scenario.keys)
        work = draw_work(world.traffic, scenario.service, scenario.service_seconds)
        call = self._balancers[client].use(key)
        request = Request(world.now, work, call, self._places[call.server.address])
        self._requests.append(request)
        world.at(world.now + scenario.delay, self._servers[request.place].receive, request)
        if scenario.timeout < math.inf:
            world.at(world.now + scenario.timeout, self._end, request, True)

    def _answer(self, request: Request, failed: bool, load: int) -> None:
        """A server has answered."""
        time = self._world.now + self._scenario.delay
        self._world.at(time, self._end, request, failed, load)

    def _end(self, request: Request, failed: bool, load: int | None = None) -> None:
        """The client has the answer, or gives the request up."""
        if request.has_ended:
            return
        request.has_ended, request.failed, request.finished = True, failed, self._world.now
        if load is not None and self._scenario.reports_load:
            request.call.report(load)
        request.call.end(failed=failed)

    def _happen(self, event: ServerEvent) -> None:
        server = self._servers[event.server]
        if event.what == "slow":
            server.slowness = event.factor
        elif event.what in ("fail checks", "pass checks"):
            server.passes_checks = event.what == "pass checks"
        else:
            server.change(_STATES[event.what])
            if event.what == "return":
                server.slowness = 1.0

    def _report_loads(self, interval: float) -> None:
        """Tell all clients the load of all servers."""
        for address, place in self._places.items():
            load = self._servers[place].in_progress
            for balancer in self._balancers:
                balancer.report(address, load)
        if self._world.now < self._scenario.seconds:
            self._world.at(self._world.now + interval, self._report_loads, interval)

    def _check(self, schedule: CheckSchedule) -> None:
        """Do the health checks that are due. Their answers take no time."""
        now = self._world.now
        for server, run in schedule.take_due(now):
            is_well = self._servers[self._places[server.address]].is_well
            schedule.finish(server, run, None if is_well else "the server is not well", now)
        following = schedule.next_time(now)
        if following < self._scenario.seconds:
            self._world.at(following, self._check, schedule)
