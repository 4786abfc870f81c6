"""Runs as a page: demand, what passed with each system, and the limit, drawn over time.

One self-contained HTML file: SVG and CSS inside, no script, nothing fetched from elsewhere, dark
or light as the reader's system is. Each user of each scenario has a picture. The limit is a dashed
line, what ours let through a strong line on it, what the classic rule let through a thin line
around it: whether a limit holds is seen before a figure is read.

A picture has at most `_POINTS` points; in longer runs a point is the mean of several slots, and
the figures beside it still come from every slot.
"""

import html
import math
from collections.abc import Sequence

from sluicegate.sim.chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MOST_EVENTS,
    WIDTH,
    contents,
    document,
    event_lines,
    figures_table,
    frame,
    scales,
    x_at,
    y_at,
)
from sluicegate.sim.measures import STEPS, Cell
from sluicegate.sim.runner import Result
from sluicegate.sim.simulate import Outcome
from sluicegate.sim.text_report import rows

__all__ = ["page"]

_POINTS = 600
_MOST_USERS = 6  # pictures for each scenario
_MOST_ABOVE = 3.0  # times the limit, up to which demand is drawn


def page(outcomes: Sequence[Outcome]) -> str:
    """The whole page."""
    title = "Sluicegate: how well limits hold"
    parts = [
        '<p class="dim">Simulated clusters, slot by slot. '
        '<span class="key" style="background:var(--demand)"></span>asked for'
        '<span class="key" style="background:var(--fair)"></span>passed, Sluicegate'
        '<span class="key" style="background:var(--classic)"></span>passed, classic rule'
        '<span class="key" style="border-top:2px dashed var(--limit);height:0"></span>limit</p>',
    ]
    if len(outcomes) > 1:
        parts.append(contents([(each.scenario, each.met) for each in outcomes]))
    for outcome in outcomes:
        parts += _scenario(outcome)
    return document(title, parts)


def _scenario(outcome: Outcome) -> list[str]:
    scenario = outcome.scenario
    parts = [
        f'<h2 id="{html.escape(scenario.name)}">{html.escape(scenario.title)}</h2>',
        f"<p>{html.escape(scenario.about)}</p>",
    ]
    if outcome.broken is not None:
        parts.append(f'<p class="no">{html.escape(str(outcome.broken))}</p>')
    runs = {system: results[0] for system, results in outcome.results.items()}
    if not runs:
        return parts
    first = next(iter(runs.values()))
    parts += [_figure(cell, runs) for cell in first.cells[:_MOST_USERS]]
    if len(first.cells) > _MOST_USERS:
        more = len(first.cells) - _MOST_USERS
        parts.append(f'<p class="dim">and {more} more users, not drawn</p>')
    if len(first.events) > MOST_EVENTS:
        more = len(first.events) - MOST_EVENTS
        parts.append(f'<p class="dim">and {more} more events, not drawn</p>')
    parts.append(figures_table(list(outcome.results), rows(outcome.results)))
    return parts


def _figure(cell: Cell, runs: dict[str, Result]) -> str:
    scenario = next(iter(runs.values())).scenario
    slots = len(cell.demand) // STEPS
    group = max(1, math.ceil(slots / _POINTS))  # slots in a point
    per_second = 1.0 / (group * scenario.slot_seconds)
    demand = _points(cell.demand, group, per_second)
    limit = _points(cell.allowed, group, per_second)
    passed = {}
    for system, result in runs.items():
        for other in result.cells:
            if (other.service, other.user, other.resource) == (
                cell.service,
                cell.user,
                cell.resource,
            ):
                passed[system] = _points(other.admitted, group, per_second)
    if not demand:
        return f'<p class="dim">{html.escape(cell.user)}: less than a slot, nothing is drawn</p>'
    # Demand may be far above everything else, and so may the classic rule be while it warms up:
    # they are cut off rather than flattening the rest.
    finite = [value for value in limit if value < math.inf]
    ours = max([*(1.25 * value for value in finite), *passed.get("fair", ())], default=0.0)
    most = 1.05 * max(demand)
    highest = max(ours, min(most, _MOST_ABOVE * ours) if ours else most) or 1.0
    x_of = [x_at(i / max(1, len(demand))) for i in range(len(demand))]

    def y_of(value: float) -> float:
        return y_at(min(value, highest) / highest)

    def line(values: Sequence[float]) -> str:
        return " ".join(
            f"{x:.1f},{y_of(value):.1f}" for x, value in zip(x_of, values, strict=False)
        )

    ground = HEIGHT - BOTTOM
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(cell.user)}: asked for, passed and limit over time">',
        f'<polygon class="demand" points="{LEFT},{ground} {line(demand)} '
        f'{x_of[-1]:.1f},{ground}"/>',
    ]
    parts += event_lines(next(iter(runs.values())).events, scenario.seconds)
    parts += [
        f'<polyline class="{system}" points="{line(passed[system])}"/>'
        for system in ("classic", "fair")  # ours last, and so on top
        if system in passed
    ]
    if finite:
        parts.append(f'<polyline class="limit" points="{line(limit)}"/>')
    parts.append(frame())
    parts += scales(highest, scenario.seconds)
    parts.append("</svg>")
    mean = f", each point the mean of {group} slots" if group > 1 else ""
    caption = f"{cell.service}/{cell.user}: {cell.resource} per second{mean}"
    return f"<figure>{''.join(parts)}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _points(steps: Sequence[float], group: int, per_second: float) -> list[float]:
    size = group * STEPS
    return [sum(steps[i : i + size]) * per_second for i in range(0, len(steps) - size + 1, size)]
