"""`Server`: what is picked. `Health`: when one is left out. `ServerStatus`: how one is doing."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from sluicegate._validate import (
    check_between,
    check_number,
    check_positive,
    check_text,
    check_whole,
)
from sluicegate.errors import Unavailable

__all__ = ["MAX_LOAD", "MAX_WEIGHT", "Health", "NoServers", "Server", "ServerStatus"]

MAX_WEIGHT = 1_000_000
MAX_LOAD = 1_000_000  # requests in progress; no server has more


class NoServers(Unavailable):
    """There is no server to pick: none was given, or all are marked down."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server by its address, any text that the caller can use: a URL, `host:port`, a name.

    With a weight of 3 it takes three times the requests of one with a weight of 1.
    """

    address: str
    weight: int = 1

    def __post_init__(self) -> None:
        check_text("address", self.address)
        # A plain str and int: their hash and comparison run no code of a subclass.
        object.__setattr__(self, "address", str.__str__(self.address))
        if not isinstance(self.weight, int) or isinstance(self.weight, bool):
            raise TypeError(f"weight must be an int, got {self.weight!r}")
        if not 1 <= self.weight <= MAX_WEIGHT:
            raise ValueError(f"weight must be from 1 to {MAX_WEIGHT:,}, got {self.weight!r}")
        object.__setattr__(self, "weight", int.__int__(self.weight))


@dataclass(frozen=True, slots=True)
class Health:
    """When a balancer leaves a server out, and how it comes back.

    - `max_failures`: consecutive failed calls after which a server is ejected; 0 for never.
    - `eject_seconds`: how long the first time. Each further time is twice as long, up to
      `max_eject_seconds`, until the server has been back for as long as it was out.
    - `slow_start`: seconds in which the weight of a server that comes back grows from a tenth to
      the whole; 0 for at once.
    - `panic`: when more than this part of the servers is ejected or unhealthy, or all of them,
      that is ignored: a fault that all share is not one of the servers, and the last good ones
      would drown.
    """

    max_failures: int = 5
    eject_seconds: float = 10.0
    max_eject_seconds: float = 300.0
    slow_start: float = 10.0
    panic: float = 0.5

    def __post_init__(self) -> None:
        check_whole("max_failures", self.max_failures, 0)
        check_positive("eject_seconds", self.eject_seconds)
        if check_positive("max_eject_seconds", self.max_eject_seconds) < self.eject_seconds:
            raise ValueError(
                f"max_eject_seconds must be at least eject_seconds ({self.eject_seconds:g}), "
                f"got {self.max_eject_seconds!r}"
            )
        if not 0.0 <= check_number("slow_start", self.slow_start) < math.inf:
            raise ValueError(f"slow_start must be finite seconds >= 0, got {self.slow_start!r}")
        check_between("panic", self.panic, 0.0, 1.0)


class ServerStatus(NamedTuple):
    """What a balancer knows of one server.

    `state` is "up", "starting" (its weight still grows), "ejected", "unhealthy" or "down". In
    panic an ejected or unhealthy server is picked all the same: `is_usable`. `active` are calls in
    flight from here, `load` is what the server has reported last.
    """

    server: Server
    state: str
    is_usable: bool
    active: int
    picked: int
    failures: int
    ejected_for: float
    load: float | None
    latency: float | None
