"""The load that a server reports in its responses: `endpoint-load-metrics`, a header of ORCA.

ORCA (Open Request Cost Aggregation) is how servers tell proxies such as Envoy of their load. Its
report is text or JSON (the binary form, of gRPC, is not read):

    endpoint-load-metrics: TEXT cpu_utilization=0.3, named_metrics.in_flight=7
    endpoint-load-metrics: JSON {"cpu_utilization": 0.3, "named_metrics": {"in_flight": 7}}

Of all metrics we read and write `in_flight`: the requests in progress at the server, of all its
clients, without the one that is answered. What cannot be read is as if it were not there: a header
must not fail a request that has been answered.
"""

import json
import math
import re
from typing import Any

__all__ = ["LOAD_HEADER", "load_report", "reported_load"]

LOAD_HEADER = "endpoint-load-metrics"

_LONGEST = 4096  # characters
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{0,15})?(?:[eE][+-]?[0-9]{1,3})?"
_IN_FLIGHT = re.compile(rf"(?:^|,)[ \t]*named_metrics\.in_flight[=:][ \t]*({_NUMBER})[ \t]*(?=,|$)")


def load_report(in_flight: int) -> str:
    """The value of the header for this number of requests in progress."""
    return f"TEXT named_metrics.in_flight={in_flight}"


def reported_load(header_value: str | None) -> float | None:
    """The requests in progress that a header reports; None if it does not, or cannot be read."""
    if header_value is None or len(header_value) > _LONGEST:
        return None
    kind, _, report = header_value.strip().partition(" ")
    if kind == "TEXT":
        found = _IN_FLIGHT.findall(report)
        # Twice is an error of ORCA: which one would be right?
        return _load(float(found[0])) if len(found) == 1 else None
    if kind == "JSON":
        return _load(_in_flight_of_json(report))
    return None


def _in_flight_of_json(report: str) -> Any:
    try:
        metrics = json.loads(report)
    except (ValueError, RecursionError):
        return None
    if not isinstance(metrics, dict):
        return None
    # Protocol buffers write their JSON with names of either kind.
    named = metrics.get("named_metrics", metrics.get("namedMetrics"))
    return named.get("in_flight") if isinstance(named, dict) else None


def _load(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if 0.0 <= number < math.inf else None
