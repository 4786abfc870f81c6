"""The load of a queue, from the metrics of a worker: to balance calls over several queues.

A program that can ask Redis has it from `QueueAdmin.status().length`. One that can only reach the
workers' metrics port reads it from there.
"""

import math
import re

__all__ = ["load_of_metrics"]

# As metrics.py writes them.
_SAMPLE = re.compile(
    r"^sluicegate_dispatch_queue_(?:waiting|running)\{(.*)\} +(\S+)(?: +[0-9]+)?[ \r]*$",
    re.MULTILINE,
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\\n]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


def load_of_metrics(text: str, queue: str) -> float | None:
    """How many requests are in `queue`, waiting or running, by the Prometheus text of one worker.

    None if it does not say: the worker serves other queues, or Redis has not answered it.
    """
    total = None
    for labels, value in _SAMPLE.findall(text):
        if _unescape(dict(_LABEL.findall(labels)).get("queue", "")) == queue:
            number = _number(value)
            if number is None:
                return None
            total = number if total is None else total + number
    return total


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0.0 <= number < math.inf else None


def _unescape(value: str) -> str:
    return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], value)
