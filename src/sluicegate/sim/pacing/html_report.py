"""Pacing runs as a page: what was asked for, passed and rewarded beside the ideal line.

Each scenario has three panels over the same time: the value reached in the period against the line,
requests and passes per second, and the part of the requests that passes. `picture` is the same as
one SVG file, for documents.
"""

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

from sluicegate.sim.chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    WIDTH,
    contents,
    document,
    event_lines,
    figures_table,
    frame,
    plain_style,
    scales,
    x_at,
    y_at,
)
from sluicegate.sim.pacing.runner import Result
from sluicegate.sim.pacing.simulate import PacingOutcome
from sluicegate.sim.pacing.text_report import rows

__all__ = ["page", "picture"]

_POINTS = 900
_CAPTION = 24  # below a panel of a picture
_MOST_ABOVE = 10.0  # times the slope of the line, up to which requests are drawn
_LEGEND = (
    '<p class="dim">Simulated clusters with no coordinator. '
    '<span class="key" style="background:var(--demand)"></span>requests'
    '<span class="key" style="background:var(--fair)"></span>passes'
    '<span class="key" style="background:var(--classic)"></span>rewards'
    '<span class="key" style="border-top:2px dashed var(--limit);height:0"></span>ideal line</p>'
)


def page(outcomes: Sequence[PacingOutcome]) -> str:
    """The whole page."""
    parts = [_LEGEND]
    if len(outcomes) > 1:
        parts.append(contents([(each.scenario, each.met) for each in outcomes]))
    for outcome in outcomes:
        parts += _scenario(outcome)
    return document("Sluicegate: how well targets are paced", parts)


def picture(result: Result) -> str:
    """One run as an SVG file."""
    height = HEIGHT + _CAPTION
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {3 * height}" '
        f'font-family="system-ui, sans-serif"><style>{plain_style()}</style>',
        f'<rect width="{WIDTH}" height="{3 * height}" fill="#fff"/>',
    ]
    for number, panel in enumerate(_panels(result)):
        text = f'<text x="{LEFT}" y="{HEIGHT + 12}">{html.escape(panel.caption)}</text>'
        drawn = "".join(_draw(result, panel))
        parts.append(f'<g transform="translate(0 {number * height})">{drawn}{text}</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Panel(NamedTuple):
    lines: list[str]
    highest: float
    caption: str


def _panels(result: Result) -> list[_Panel]:
    return [_reached(result), _per_second(result), _pass_rate(result)]


def _scenario(outcome: PacingOutcome) -> list[str]:
    scenario, result = outcome.scenario, outcome.results[0]
    return [
        f'<h2 id="{html.escape(scenario.name)}">{html.escape(scenario.title)}</h2>',
        f"<p>{html.escape(scenario.about)}</p>",
        *(_figure(result, panel) for panel in _panels(result)),
        figures_table(["pacing"], rows(outcome)),
    ]


def _reached(result: Result) -> _Panel:
    """The value since the begin of the period, and the line."""
    series, target = result.series, result.scenario.target
    rewards = _since_begin(result)
    highest = 1.05 * max(target, *series.value, *rewards)
    lines = [
        _polyline("limit", series.line, highest),
        _polyline("reward", rewards, highest) if not result.scenario.rewards.are_at_once else "",
        _polyline("fair", series.value, highest),
    ]
    earned = "" if result.scenario.rewards.conversion == 1.0 else " times the conversion"
    return _Panel(lines, highest, f"passes{earned} and rewards since the period began")


def _per_second(result: Result) -> _Panel:
    series, scenario = result.series, result.scenario
    size = max(1, math.ceil(len(series.passes) / _POINTS), round(1.0 / series.width))
    seconds = size * series.width
    groups = range(0, len(series.passes) - size + 1, size)
    requests, passes, rewards = (
        [sum(values[i : i + size]) / seconds for i in groups]
        for values in (series.requests, series.passes, series.rewards)
    )
    slope = scenario.target / scenario.period / scenario.rewards.conversion
    highest = min(1.05 * max(*requests, slope, 0.0), _MOST_ABOVE * slope)
    highest = max(highest, 1.05 * max(*passes, 0.0))
    ground = HEIGHT - BOTTOM
    area = _points(requests, highest)
    lines = [
        f'<polygon class="demand" points="{LEFT},{ground} {area} {x_at(1.0):.1f},{ground}"/>',
        _polyline("reward", rewards, highest) if not scenario.rewards.are_at_once else "",
        _polyline("fair", passes, highest),
        _polyline("limit", [slope, slope], highest),
    ]
    return _Panel(lines, highest, f"requests and passes per second, over {seconds:g} s")


def _pass_rate(result: Result) -> _Panel:
    lines = [_polyline("fair", result.series.pass_rate, 1.0)]
    return _Panel(lines, 1.0, "pass rate: the part of the requests that may pass")


def _figure(result: Result, panel: _Panel) -> str:
    caption = html.escape(panel.caption)
    head = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(result.scenario.name)}: {caption}">'
    )
    drawn = "".join(_draw(result, panel))
    return f"<figure>{head}{drawn}</svg><figcaption>{caption}</figcaption></figure>"


def _draw(result: Result, panel: _Panel) -> list[str]:
    scenario = result.scenario
    return [
        *event_lines(scenario.changes, scenario.seconds),
        *panel.lines,
        frame(),
        *scales(panel.highest, scenario.seconds),
    ]


def _since_begin(result: Result) -> list[float]:
    """Rewards since the period began, in each bin."""
    found: list[float] = []
    for period in result.periods:
        total = 0.0
        for index in range(period.first_bin, period.first_bin + period.bins):
            total += result.series.rewards[index]
            found.append(total)
    return found


def _polyline(kind: str, values: Sequence[float], highest: float) -> str:
    return f'<polyline class="{kind}" points="{_points(values, highest)}"/>'


def _points(values: Sequence[float], highest: float) -> str:
    """At most some hundred of them: of more, the last of each group."""
    size = max(1, math.ceil(len(values) / _POINTS))
    chosen = values if size == 1 else values[size - 1 :: size]
    steps = max(1, len(chosen) - 1)
    return " ".join(
        f"{x_at(i / steps):.1f},{y_at(min(value, highest) / highest):.1f}"
        for i, value in enumerate(chosen)
    )
