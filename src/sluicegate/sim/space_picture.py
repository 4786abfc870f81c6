"""The whole space in one picture: the shortfall of random clusters, by density and load.

A dot is a cluster. To the right the limit allows more requests per node and slot, upwards more is
asked for; both axes are logarithmic. The darker a dot, the more was missing. Dots with a larger
shortfall lie on top, so that nothing bad is hidden. A cross is a run that broke an invariant.

One self-contained SVG, on a white ground of its own, so that it reads on dark pages, too.
"""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["picture"]

_WIDTH, _HEIGHT = 860, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 36, 64, 56
# A shortfall up to this has this colour: from light to dark, also for the colour-blind.
_COLOURS = (
    (0.01, "up to 1 %", "#c6dbef"),
    (0.03, "3 %", "#6baed6"),
    (0.1, "10 %", "#2171b5"),
    (0.3, "30 %", "#f16913"),
    (math.inf, "more", "#7f2704"),
)
_LOADS = (0.3, 10.0)


def picture(runs: Sequence[Mapping[str, Any]], title: str) -> str:
    """`runs` as in the JSON of `sluicegate simulate random --runs`."""
    densities = [run["per_node_slot"] for run in runs]
    span = (
        10.0 ** math.floor(math.log10(min(densities))),
        10.0 ** math.ceil(math.log10(max(densities))),
    )
    if span[0] == span[1]:
        span = span[0], 10.0 * span[0]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="#1c2430">',
        f"<title>{html.escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="22" font-size="16">{html.escape(title)}</text>',
        *_legend(runs),
        *_axes(span),
    ]
    parts += [
        _dot(run, _x(run["per_node_slot"], span), _y(run["load"]))
        for run in sorted(runs, key=_badness)
    ]
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _badness(run: Mapping[str, Any]) -> float:
    return math.inf if run["shortfall"] is None else float(run["shortfall"])


def _colour(shortfall: float) -> int:
    return next(number for number, (most, _, _) in enumerate(_COLOURS) if shortfall <= most)


def _scaled(value: float, span: tuple[float, float]) -> float:
    return math.log(value / span[0]) / math.log(span[1] / span[0])


def _x(density: float, span: tuple[float, float]) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * _scaled(density, span)


def _y(load: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * _scaled(load, _LOADS)


def _dot(run: Mapping[str, Any], x: float, y: float) -> str:
    shortfall = run["shortfall"]
    if shortfall is None:
        return (
            f'<path d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8" stroke="#c1121f" '
            f'stroke-width="2"><title>seed {run["seed"]}: no figure</title></path>'
        )
    label = f"seed {run['seed']}: {100 * shortfall:.1f} %, {run['regime']}"
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{_COLOURS[_colour(shortfall)][2]}" '
        f'stroke="#fff" stroke-width=".6"><title>{html.escape(label)}</title></circle>'
    )


def _legend(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The colours, and how many clusters have each."""
    known = [run["shortfall"] for run in runs if run["shortfall"] is not None]
    parts, x = [f'<text x="{_LEFT}" y="46" fill="#667">shortfall:</text>'], _LEFT + 70
    for number, (_, text, colour) in enumerate(_COLOURS):
        count = sum(_colour(shortfall) == number for shortfall in known)
        parts.append(f'<circle cx="{x}" cy="42" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{x + 10}" y="46">{text} ({count})</text>')
        x += 130
    return parts


def _axes(span: tuple[float, float]) -> list[str]:
    ground, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = [
        f'<rect x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" height="{ground - _TOP}" '
        'fill="none" stroke="#dde"/>'
    ]
    for exponent in range(round(math.log10(span[0])), round(math.log10(span[1])) + 1):
        x = _x(10.0**exponent, span)
        text = f"{10.0**exponent:,.10g}"
        parts.append(f'<text x="{x:.1f}" y="{ground + 18}" text-anchor="middle">{text}</text>')
    for load in (0.3, 1.0, 3.0, 10.0):
        y = _y(load) + 4
        parts.append(f'<text x="{_LEFT - 8}" y="{y:.1f}" text-anchor="end">{load:g}</text>')
    dashes = 'stroke="#98a2b3" stroke-dasharray="4 4"'
    if span[0] < 2.0 < span[1]:
        x = _x(2.0, span)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{ground}" {dashes}/>')
    y = _y(1.0)
    parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" {dashes}/>')
    middle = (_TOP + ground) / 2
    parts += [
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 12}" text-anchor="middle">'
        "requests of the limit per node and slot (dashed: 2)</text>",
        f'<text x="20" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 20 {middle})">load (dashed: the limit)</text>',
    ]
    return parts
