"""A model server: works on `capacity` requests at once; the others queue, first come, first served.

Each request brings its own work, in seconds of a server of speed 1, so all policies are compared on
the same requests. What a server may do wrong (`State`):

    UP          answers
    FAIL_FAST   answers at once, with an error: from outside it looks quick and idle
    FAIL_SLOW   does the work, and then answers with an error
    HANG        takes requests and answers none; when it is back, it has forgotten them
    DEAD        refuses connections, and those that were open break: an error at once
"""

import enum
import random
from collections import deque
from collections.abc import Callable

from sluicegate.balance import Call
from sluicegate.sim.world import World

__all__ = ["SERVICES", "ModelServer", "Request", "State", "draw_work"]

SERVICES = ("exponential", "lognormal", "constant")
_SIGMA = 1.0  # of the lognormal: its p99 is six times its mean


def draw_work(rng: random.Random, service: str, mean: float) -> float:
    """The work of a request in seconds."""
    if service == "exponential":
        return rng.expovariate(1.0 / mean)
    if service == "lognormal":
        # exp(sigma^2 / 2) is the mean of a lognormal whose median is 1.
        return mean * rng.lognormvariate(-_SIGMA * _SIGMA / 2.0, _SIGMA)
    return mean


class State(enum.Enum):
    """What a server does with requests."""

    UP = "up"
    FAIL_FAST = "fail fast"
    FAIL_SLOW = "fail slow"
    HANG = "hang"
    DEAD = "dead"


class Request:
    """One request of a client, from its arrival to its end."""

    __slots__ = ("arrived", "call", "failed", "finished", "has_ended", "place", "work")

    def __init__(self, arrived: float, work: float, call: Call, place: int) -> None:
        self.arrived = arrived
        self.work = work
        self.call = call
        self.place = place  # of its server
        self.has_ended = False
        self.finished = 0.0
        self.failed = False


class ModelServer:
    """One server. `answer(request, failed, load)` is called when a request leaves it.

    `load`: the requests in progress then, running and waiting, this one not counted.
    """

    def __init__(
        self,
        world: World,
        capacity: int,
        slowness: float,
        answer: Callable[[Request, bool, int], object],
    ) -> None:
        self._world = world
        self._capacity = capacity
        self._answer = answer
        self.slowness = slowness  # seconds for a second of work
        self.state = State.UP
        self.passes_checks = True
        self.peak = 0  # most requests in progress
        self._running: dict[Request, None] = {}
        self._waiting: deque[Request] = deque()

    @property
    def in_progress(self) -> int:
        return len(self._running) + len(self._waiting)

    @property
    def is_well(self) -> bool:
        """What a health check finds."""
        return self.passes_checks and self.state is State.UP

    def change(self, state: State) -> None:
        """From now on, be in this state."""
        if state in (State.DEAD, State.HANG) or self.state is State.HANG:
            lost = [*self._running, *self._waiting]
            self._running.clear()
            self._waiting.clear()
            if state is State.DEAD:
                for request in lost:
                    self._answer(request, True, 0)
        self.state = state

    def receive(self, request: Request) -> None:
        """A request has arrived."""
        if self.state in (State.FAIL_FAST, State.DEAD):
            self._answer(request, True, self.in_progress)
        elif self.state is State.HANG or len(self._running) >= self._capacity:
            self._waiting.append(request)
        else:
            self._begin(request)
        self.peak = max(self.peak, self.in_progress)

    def _begin(self, request: Request) -> None:
        self._running[request] = None
        self._world.at(self._world.now + request.work * self.slowness, self._finish, request)

    def _finish(self, request: Request) -> None:
        if request not in self._running:
            return  # lost meanwhile
        del self._running[request]
        while self._waiting and len(self._running) < self._capacity:
            following = self._waiting.popleft()
            if not following.has_ended:  # its client still waits
                self._begin(following)
        failed = self.state in (State.FAIL_SLOW, State.FAIL_FAST)
        self._answer(request, failed, self.in_progress)
