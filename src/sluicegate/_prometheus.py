"""The text format of Prometheus, as far as our metrics need it."""

import math
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Labels", "Rows", "family", "histogram"]

Labels = Mapping[str, str]
Rows = Iterable[tuple[Labels, float]]


def family(name: str, kind: str, help_text: str, rows: Rows) -> list[str]:
    """The lines of a gauge or a counter; none if it has no values."""
    values = [_sample(name, labels, value) for labels, value in rows]
    return [*_head(name, kind, help_text), *values] if values else []


def histogram(
    name: str,
    help_text: str,
    rows: Iterable[tuple[Labels, Sequence[float], Sequence[int], float]],
) -> list[str]:
    """The lines of a histogram. A row has labels, upper bounds, the counts up to each, the sum.

    The last count is of the values above all bounds.
    """
    values: list[str] = []
    for labels, bounds, counts, total in rows:
        below = 0
        for bound, count in zip((*bounds, math.inf), counts, strict=True):
            below += count
            edge = "+Inf" if math.isinf(bound) else f"{bound:g}"
            values.append(_sample(f"{name}_bucket", {**labels, "le": edge}, below))
        values.append(_sample(f"{name}_sum", labels, total))
        values.append(_sample(f"{name}_count", labels, below))
    return [*_head(name, "histogram", help_text), *values] if values else []


def _head(name: str, kind: str, help_text: str) -> tuple[str, str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"


def _sample(name: str, labels: Labels, value: float) -> str:
    pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{pairs}}} {_number(value)}" if pairs else f"{name} {_number(value)}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0.0 else "-Inf"
    return f"{value:.17g}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
