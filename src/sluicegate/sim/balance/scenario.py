"""A balance scenario: servers, clients and their load, and what goes wrong.

`load` is the part of what all servers together can do, the slow ones at their own speed. Times are
seconds since the run began.
"""

import math
from dataclasses import dataclass, field

from sluicegate._validate import check_number, check_positive, check_whole
from sluicegate.balance import Health
from sluicegate.sim.balance.servers import SERVICES

__all__ = ["EVENTS", "RETURNS", "BalanceScenario", "ServerEvent"]

RETURNS = ("return", "pass checks")
EVENTS = (*RETURNS, "slow", "fail fast", "fail slow", "hang", "die", "fail checks")
_MOST_SERVERS = 1_000
_MOST_CLIENTS = 10_000


@dataclass(slots=True, frozen=True)
class ServerEvent:
    """Something happens to a server. `factor`: how slow it gets, of "slow".

    "return" makes it well and quick again, except for its health checks.
    """

    at: float
    server: int  # from 0
    what: str
    factor: float = 10.0

    def __post_init__(self) -> None:
        if self.what not in EVENTS:
            raise ValueError(f"what must be one of {', '.join(EVENTS)}, got {self.what!r}")
        check_positive("factor", self.factor)


@dataclass(slots=True, frozen=True)
class BalanceScenario:
    """Everything about a run but the policy and the random seed."""

    servers: int = 10
    slow: int = 0  # how many of them, the last ones
    slow_factor: float = 10.0
    capacity: int = 8  # requests that a server works on at once
    clients: int = 1  # each with a balancer of its own, which knows nothing of the others
    load: float = 0.6
    service: str = "exponential"
    service_seconds: float = 0.1  # the mean work of a request
    seconds: float = 60.0  # in which requests arrive
    warm_up: float = 10.0  # whose requests are not in the figures
    delay: float = 0.0005  # of the network, each way
    timeout: float = math.inf  # after which a client gives a request up as failed
    reports_load: bool = False  # with each response
    report_interval: float | None = None  # seconds, of loads that all clients hear at once
    is_in_step: bool = False  # all clients send at the same moments, in place of Poisson arrivals
    keys: int = 1_000  # different ones, for ConsistentHash
    check_interval: float | None = None  # of health checks; None: there are none
    load_decay: float | None = None  # None: as balancers have it by themselves
    health: Health = field(default_factory=Health)
    events: tuple[ServerEvent, ...] = ()

    def __post_init__(self) -> None:
        for name in ("servers", "capacity", "clients", "keys"):
            check_whole(name, getattr(self, name), 1)
        check_whole("slow", self.slow, 0)
        if self.servers > _MOST_SERVERS:
            raise ValueError(f"servers must be at most {_MOST_SERVERS:,}, got {self.servers!r}")
        if self.clients > _MOST_CLIENTS:
            raise ValueError(f"clients must be at most {_MOST_CLIENTS:,}, got {self.clients!r}")
        if self.slow > self.servers:
            raise ValueError(f"slow must be at most servers ({self.servers}), got {self.slow!r}")
        for name in ("slow_factor", "load", "service_seconds", "seconds"):
            check_positive(name, getattr(self, name))
        if self.service not in SERVICES:
            raise ValueError(f"service must be one of {', '.join(SERVICES)}, got {self.service!r}")
        if not 0.0 <= check_number("warm_up", self.warm_up) < self.seconds:
            raise ValueError(
                f"warm_up must be from 0 to below seconds ({self.seconds:g}), got {self.warm_up!r}"
            )
        if not 0.0 <= check_number("delay", self.delay) < math.inf:
            raise ValueError(f"delay must be finite seconds >= 0, got {self.delay!r}")
        if not self.timeout > 0.0:
            raise ValueError(f"timeout must be above 0, got {self.timeout!r}")
        for name in ("report_interval", "check_interval", "load_decay"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        self._check_events()

    def _check_events(self) -> None:
        for event in self.events:
            if not 0 <= event.server < self.servers:
                raise ValueError(
                    f"server of an event must be from 0 to {self.servers - 1}, got {event.server!r}"
                )
            if event.what == "hang" and self.timeout == math.inf:
                raise ValueError(f"timeout must be finite if a server hangs, got {self.timeout!r}")

    @property
    def rate(self) -> float:
        """Requests per second."""
        speed = self.servers - self.slow + self.slow / self.slow_factor
        return self.load * speed * self.capacity / self.service_seconds
