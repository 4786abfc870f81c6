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

from sluicegate.sim.measures import STEPS, Cell
from sluicegate.sim.runner import Result
from sluicegate.sim.simulate import Outcome
from sluicegate.sim.text_report import rows

__all__ = ["page"]

_WIDTH, _HEIGHT = 920, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 14, 28
_POINTS = 600
_MOST_USERS = 6  # pictures for each scenario
_MOST_EVENTS = 40  # lines in a picture
_MOST_ABOVE = 3.0  # times the limit, up to which demand is drawn
_LABEL_ROWS = 4
_LETTER = 6.6  # the width of one, about

_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --text: #1c2430; --dim: #667; --line: #dde;
  --fair: #0a7d5a; --classic: #d1495b; --demand: #b9c2d0; --limit: #1c2430; --good: #0a7d5a;
  --bad: #c1121f; }
@media (prefers-color-scheme: dark) { :root { --ground: #14181f; --text: #e6e9ef; --dim: #98a2b3;
  --line: #2c3440; --fair: #3ddc97; --classic: #ff7a85; --demand: #4a5568; --limit: #e6e9ef;
  --good: #3ddc97; --bad: #ff7a85; } }
body { font: 15px/1.5 system-ui, sans-serif; background: var(--ground); color: var(--text);
  max-width: 960px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2.5rem 0 0; }
p { margin: .3rem 0 .6rem; } .dim, figcaption { color: var(--dim); } figure { margin: 1rem 0; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--dim); font-size: 12px; }
.frame { stroke: var(--line); fill: none; } .demand { fill: var(--demand); opacity: .45; }
.fair { stroke: var(--fair); stroke-width: 2.4; fill: none; }
.classic { stroke: var(--classic); stroke-width: 1.1; fill: none; opacity: .85; }
.limit { stroke: var(--limit); stroke-width: 1.2; stroke-dasharray: 6 4; fill: none; }
.fault { stroke: var(--dim); stroke-width: 1; stroke-dasharray: 2 3; }
table { border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums; }
td, th { padding: .15rem .9rem .15rem 0; text-align: right; font-weight: normal; }
th { color: var(--dim); } td:first-child, th:first-child { text-align: left; }
.yes { color: var(--good); } .no { color: var(--bad); font-weight: 600; }
.key { display: inline-block; width: 1.6em; height: .7em; margin: 0 .35em 0 1em; }
"""


def page(outcomes: Sequence[Outcome]) -> str:
    """The whole page."""
    title = "Sluicegate: how well limits hold"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        '<p class="dim">Simulated clusters, slot by slot. '
        '<span class="key" style="background:var(--demand)"></span>asked for'
        '<span class="key" style="background:var(--fair)"></span>passed, Sluicegate'
        '<span class="key" style="background:var(--classic)"></span>passed, classic rule'
        '<span class="key" style="border-top:2px dashed var(--limit);height:0"></span>limit</p>',
    ]
    if len(outcomes) > 1:
        parts.append(_contents(outcomes))
    for outcome in outcomes:
        parts += _scenario(outcome)
    parts.append("</body></html>")
    return "\n".join(parts) + "\n"


def _contents(outcomes: Sequence[Outcome]) -> str:
    lines = []
    for outcome in outcomes:
        verdict = (
            '<span class="yes">met</span>' if outcome.met else '<span class="no">missed</span>'
        )
        name, title = html.escape(outcome.scenario.name), html.escape(outcome.scenario.title)
        lines.append(f'<tr><td><a href="#{name}">{title}</a></td><td>{verdict}</td></tr>')
    return "<table>" + "".join(lines) + "</table>"


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
    if len(first.events) > _MOST_EVENTS:
        more = len(first.events) - _MOST_EVENTS
        parts.append(f'<p class="dim">and {more} more events, not drawn</p>')
    parts.append(_table(outcome))
    return parts


def _table(outcome: Outcome) -> str:
    heads = "".join(f"<th>{html.escape(system)}</th>" for system in outcome.results)
    lines = [f"<tr><th></th>{heads}<th>goal</th><th>met</th></tr>"]
    for what, figures, expected, verdict in rows(outcome.results):
        cells = "".join(f"<td>{html.escape(text)}</td>" for text in figures)
        lines.append(
            f"<tr><td>{html.escape(what)}</td>{cells}<td>{html.escape(expected)}</td>"
            f'<td class="{verdict}">{verdict}</td></tr>'
        )
    return "<table>" + "\n".join(lines) + "</table>"


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
    x_of = [_LEFT + (_WIDTH - _LEFT - _RIGHT) * i / max(1, len(demand)) for i in range(len(demand))]

    def y_of(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - min(value, highest) / highest)

    def line(values: Sequence[float]) -> str:
        return " ".join(
            f"{x:.1f},{y_of(value):.1f}" for x, value in zip(x_of, values, strict=False)
        )

    ground = _HEIGHT - _BOTTOM
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{html.escape(cell.user)}: asked for, passed and limit over time">',
        f'<polygon class="demand" points="{_LEFT},{ground} {line(demand)} '
        f'{x_of[-1]:.1f},{ground}"/>',
    ]
    shown = next(iter(runs.values())).events
    rows_end = [0.0] * _LABEL_ROWS
    for time, what in shown[:_MOST_EVENTS]:
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(time / scenario.seconds, 1.0)
        parts.append(
            f'<line class="fault" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{ground}">'
            f"<title>{time:g} s: {html.escape(what)}</title></line>"
        )
        parts += _label(x, what, rows_end)
    parts += [
        f'<polyline class="{system}" points="{line(passed[system])}"/>'
        for system in ("classic", "fair")  # ours last, and so on top
        if system in passed
    ]
    if finite:
        parts.append(f'<polyline class="limit" points="{line(limit)}"/>')
    parts.append(
        f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{_WIDTH - _LEFT - _RIGHT}" '
        f'height="{ground - _TOP}"/>'
    )
    parts += _scales(highest, scenario.seconds)
    parts.append("</svg>")
    mean = f", each point the mean of {group} slots" if group > 1 else ""
    caption = f"{cell.service}/{cell.user}: {cell.resource} per second{mean}"
    return f"<figure>{''.join(parts)}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _label(x: float, what: str, rows_end: list[float]) -> list[str]:
    """The name of an event, in the first row that has room for it; else only its line tells."""
    width = _LETTER * len(what)
    left = x + 4 if x + 4 + width <= _WIDTH - _RIGHT else x - 4 - width
    for row, end in enumerate(rows_end):
        if left >= max(end, _LEFT):
            rows_end[row] = left + width + _LETTER
            y = _TOP + 10 + 14 * row
            return [f'<text x="{left:.1f}" y="{y}">{html.escape(what)}</text>']
    return []


def _points(steps: Sequence[float], group: int, per_second: float) -> list[float]:
    size = group * STEPS
    return [sum(steps[i : i + size]) * per_second for i in range(0, len(steps) - size + 1, size)]


def _scales(highest: float, seconds: float) -> list[str]:
    ground = _HEIGHT - _BOTTOM
    texts = []
    for part in (0.0, 0.5, 1.0):
        y = _TOP + (ground - _TOP) * (1 - part)
        texts.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{_short(part * highest)}</text>"
        )
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * part
        anchor = ("start", "middle", "end")[round(2 * part)]
        texts.append(
            f'<text x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">'
            f"{part * seconds:g} s</text>"
        )
    return texts


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
