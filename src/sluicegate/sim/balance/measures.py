"""How well requests were balanced: figures out of when each arrived, ended, where, and how.

    p50, p99, p999   seconds from arrival to answer, of the requests that succeeded
    goodput          requests per second that succeeded
    failures         the part of the requests that failed
    shares           the part of the requests that each server got
    peak             most requests that were in progress at one server, at any time
    left_out_after   whole seconds from the first fault until its server got next to no requests
    whole_after      whole seconds from the first return until that server got its even share

Requests of the warm-up count for none of these but `peak`. A run goes on until all have ended, so
those that wait at a slow server are not lost to the figures.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sluicegate.sim.balance.scenario import RETURNS, BalanceScenario, ServerEvent
from sluicegate.sim.balance.servers import Request

__all__ = ["Measures", "measure"]

_QUIET = 0.1  # of a server's even share: below it a server is left out
_WHOLE = 0.9
_RECENT = 3  # seconds, over which a share is taken


@dataclass(slots=True, frozen=True)
class Measures:
    """The figures of one run. None: there is no such figure."""

    requests: int
    p50: float | None
    p99: float | None
    p999: float | None
    goodput: float
    failures: float
    shares: tuple[float, ...]
    peak: int
    left_out_after: int | None
    whole_after: int | None
    by_second: tuple[tuple[int, ...], ...]  # requests for each server, by second of arrival

    def as_dict(self) -> dict[str, Any]:
        figures = asdict(self)
        del figures["by_second"]
        return figures


def measure(
    scenario: BalanceScenario, requests: Sequence[Request], peaks: Sequence[int]
) -> Measures:
    """The figures of the requests of a run."""
    by_second = [[0] * scenario.servers for _ in range(int(scenario.seconds) + 1)]
    for request in requests:
        by_second[int(request.arrived)][request.place] += 1
    counted = [request for request in requests if request.arrived >= scenario.warm_up]
    took = sorted(each.finished - each.arrived for each in counted if not each.failed)
    picked = [0] * scenario.servers
    for request in counted:
        picked[request.place] += 1
    total = max(len(counted), 1)
    rows = tuple(tuple(each) for each in by_second[: int(scenario.seconds)])
    faults = [event for event in scenario.events if event.what not in RETURNS]
    returns = [event for event in scenario.events if event.what in RETURNS]
    return Measures(
        requests=len(counted),
        p50=_quantile(took, 0.5),
        p99=_quantile(took, 0.99),
        p999=_quantile(took, 0.999),
        goodput=len(took) / (scenario.seconds - scenario.warm_up),
        failures=1.0 - len(took) / total,
        shares=tuple(count / total for count in picked),
        peak=max(peaks),
        left_out_after=_left_out_after(rows, faults[0]) if faults else None,
        whole_after=_whole_after(rows, returns[0]) if returns else None,
        by_second=rows,
    )


def _quantile(ordered: Sequence[float], part: float) -> float | None:
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else None


def _left_out_after(rows: Sequence[Sequence[int]], fault: ServerEvent) -> int | None:
    since = int(fault.at)
    for second in range(since, len(rows)):
        if _share(rows[second : second + 1], fault.server) < _QUIET:
            return second - since
    return None


def _whole_after(rows: Sequence[Sequence[int]], event: ServerEvent) -> int | None:
    since = int(event.at)
    for end in range(since + _RECENT, len(rows) + 1):
        if _share(rows[end - _RECENT : end], event.server) >= _WHOLE:
            return end - since
    return None


def _share(rows: Sequence[Sequence[int]], server: int) -> float:
    """What a server got in these seconds, as a part of an even share."""
    total = sum(map(sum, rows))
    return sum(row[server] for row in rows) * len(rows[0]) / total if total else 0.0
