"""The traffic of a fleet, as data, and the moment at which it begins.

A `Traffic` is what one user sends to one node. Its times are seconds of the monotonic clock, which
all processes of a host share, since the begin. The begin is a whole second of the wall clock, where
the slots of the central begin, and is stored in the folder of the fleet: a worker that is started
again goes on with the same traffic.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["RESOURCE", "SERVICE", "Spans", "Traffic", "next_second", "read_begin", "write_begin"]

SERVICE = "front"
RESOURCE = "requests"

Spans = Sequence[tuple[float, float]]
_ALWAYS = ((0.0, math.inf),)
_BEGIN = "begin"  # file


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests per second of a user at a node, within `spans` of the time since the begin.

    The spans are repeated every `period` seconds if there is one. `costs`: what each request takes
    of each resource. `waits`: a request that finds no credit waits for the central's answer, as in
    the middlewares; else it is refused at once.
    """

    user: str
    rate: float
    spans: Spans = _ALWAYS
    period: float | None = None
    costs: Mapping[str, float] = field(default_factory=lambda: {RESOURCE: 1.0})
    waits: bool = False

    def is_on(self, t: float) -> bool:
        """Whether requests are sent at `t`."""
        if self.period is not None:
            t %= self.period
        return any(begin <= t < end for begin, end in self.spans)


def next_second(after: float = 0.0) -> float:
    """The next whole second of the wall clock in `after` seconds or later, in monotonic time."""
    wall = time.time() + after
    return time.monotonic() + after + math.ceil(wall) - wall


def write_begin(folder: Path, begin: float) -> None:
    """Let the traffic begin at a moment of the monotonic clock."""
    new = folder / f"{_BEGIN}.new"
    new.write_text(repr(begin))
    new.rename(folder / _BEGIN)


def read_begin(folder: Path) -> float | None:
    """The moment at which the traffic begins; None if that is not decided yet."""
    try:
        return float((folder / _BEGIN).read_text())
    except FileNotFoundError:
        return None
