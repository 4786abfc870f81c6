"""What the pages of the simulator share: style, frame, axes, and the lines of events.

A page is one self-contained HTML file: SVG and CSS inside, no script, nothing fetched from
elsewhere, dark or light as the reader's system is.
"""

import html
import re
from collections.abc import Sequence
from typing import Protocol

__all__ = [
    "BOTTOM",
    "HEIGHT",
    "LEFT",
    "MOST_EVENTS",
    "RIGHT",
    "STYLE",
    "TOP",
    "WIDTH",
    "contents",
    "document",
    "event_lines",
    "figures_table",
    "frame",
    "plain_style",
    "scales",
    "x_at",
    "y_at",
]

WIDTH, HEIGHT = 920, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 14, 28
MOST_EVENTS = 40  # lines in a picture
_LABEL_ROWS = 4
_LETTER = 6.6  # the width of one, about


class Titled(Protocol):
    """A scenario, as far as a list of contents needs it."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...


STYLE = """
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
.reward { stroke: var(--classic); stroke-width: 1.4; fill: none; }
.key { display: inline-block; width: 1.6em; height: .7em; margin: 0 .35em 0 1em; }
"""


def plain_style() -> str:
    """The light colours, without variables: for pictures outside of a page."""
    colours = dict(re.findall(r"--(\w+): (#\w+)", STYLE[: STYLE.index("@media")]))
    rules = STYLE[STYLE.index("svg {") :]
    return re.sub(r"var\(--(\w+)\)", lambda found: colours[found[1]], rules)


def document(title: str, parts: Sequence[str]) -> str:
    """A whole page of these parts."""
    head = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
    ]
    return "\n".join([*head, *parts, "</body></html>"]) + "\n"


def contents(scenarios: Sequence[tuple[Titled, bool]]) -> str:
    """The scenarios of a page, each with whether its goals are met."""
    lines = []
    for scenario, met in scenarios:
        verdict = '<span class="yes">met</span>' if met else '<span class="no">missed</span>'
        name, title = html.escape(scenario.name), html.escape(scenario.title)
        lines.append(f'<tr><td><a href="#{name}">{title}</a></td><td>{verdict}</td></tr>')
    return "<table>" + "".join(lines) + "</table>"


def figures_table(columns: Sequence[str], rows: Sequence[tuple[str, list[str], str, str]]) -> str:
    """Figures, their goals and verdicts: (what, a figure per column, the goal, met or not)."""
    heads = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    lines = [f"<tr><th></th>{heads}<th>goal</th><th>met</th></tr>"]
    for what, figures, expected, verdict in rows:
        cells = "".join(f"<td>{html.escape(text)}</td>" for text in figures)
        lines.append(
            f"<tr><td>{html.escape(what)}</td>{cells}<td>{html.escape(expected)}</td>"
            f'<td class="{verdict}">{verdict}</td></tr>'
        )
    return "<table>" + "\n".join(lines) + "</table>"


def x_at(part: float) -> float:
    """Where a part of the width is: 0 to 1."""
    return LEFT + (WIDTH - LEFT - RIGHT) * part


def y_at(part: float) -> float:
    """Where a part of the height is: 0 at the ground, 1 at the top."""
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - part)


def event_lines(events: Sequence[tuple[float, str]], seconds: float) -> list[str]:
    """A line for each event, and its name where there is room."""
    parts = []
    rows_end = [0.0] * _LABEL_ROWS
    for time, what in events[:MOST_EVENTS]:
        x = x_at(min(time / seconds, 1.0))
        parts.append(
            f'<line class="fault" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
            f"<title>{time:g} s: {html.escape(what)}</title></line>"
        )
        parts += _label(x, what, rows_end)
    return parts


def frame() -> str:
    return (
        f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
        f'height="{HEIGHT - BOTTOM - TOP}"/>'
    )


def _label(x: float, what: str, rows_end: list[float]) -> list[str]:
    """The name of an event, in the first row that has room for it; else only its line tells."""
    width = _LETTER * len(what)
    left = x + 4 if x + 4 + width <= WIDTH - RIGHT else x - 4 - width
    for row, end in enumerate(rows_end):
        if left >= max(end, LEFT):
            rows_end[row] = left + width + _LETTER
            y = TOP + 10 + 14 * row
            return [f'<text x="{left:.1f}" y="{y}">{html.escape(what)}</text>']
    return []


def scales(highest: float, seconds: float) -> list[str]:
    ground = HEIGHT - BOTTOM
    texts = []
    for part in (0.0, 0.5, 1.0):
        y = TOP + (ground - TOP) * (1 - part)
        texts.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">'
            f"{_short(part * highest)}</text>"
        )
        x = LEFT + (WIDTH - LEFT - RIGHT) * part
        anchor = ("start", "middle", "end")[round(2 * part)]
        texts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{part * seconds:g} s</text>'
        )
    return texts


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
