"""Hit ratios of cache policies on a trace: a table for the terminal, Markdown, JSON, and a page.

A row per policy, a column per capacity; the best policy of each column is marked. "optimal" knows
the future and is never the best: it is what there was to gain. The page has the same as a chart,
over the capacity on a log axis, drawn once for a wide window and once for a phone.
"""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sluicegate.cache.trace import Trace
from sluicegate.cache.trace_replay import OPTIMAL, Replay
from sluicegate.sim.chart import document

__all__ = ["CacheReport"]

_COLOURS = {  # light, dark
    "fifo": ("#7d8798", "#98a2b3"),
    "lru": ("#d1495b", "#ff7a85"),
    "lfu": ("#c77700", "#ffb347"),
    "clock": ("#8a6d3b", "#cda873"),
    "arc": ("#0b8ca5", "#5fd3e8"),
    "sieve": ("#b5449c", "#f08bd9"),
    "s3fifo": ("#0a7d5a", "#3ddc97"),
    "tinylfu": ("#2f5fd0", "#8fb0ff"),
    OPTIMAL: ("#1c2430", "#e6e9ef"),
}
_LABEL = 14  # the height of one
_TICK = 40  # the width of a capacity below the chart


class _Shape(NamedTuple):
    """A chart's size and margins."""

    name: str
    width: int
    height: int
    left: int = 44
    right: int = 62
    top: int = 12
    bottom: int = 42

    def x(self, part: float) -> float:
        return self.left + (self.width - self.left - self.right) * part

    def y(self, part: float) -> float:
        return self.top + (self.height - self.top - self.bottom) * (1 - part)


_SHAPES = (_Shape("wide", 920, 420), _Shape("narrow", 358, 380))


class CacheReport:
    """The results of a trace, by policy and capacity."""

    def __init__(self, name: str, trace: Trace, results: Sequence[Replay]) -> None:
        self.name = name
        self.trace = trace
        self.results = results
        self.rows: dict[str, list[Replay]] = {}
        for result in results:
            self.rows.setdefault(result.policy, []).append(result)
        self.capacities = [result.capacity for result in next(iter(self.rows.values()))]
        online = [row for policy, row in self.rows.items() if policy != OPTIMAL]
        columns = [[each.hits for each in column] for column in zip(*online, strict=True)]
        # Where all are alike (one policy alone, a cache that holds all), there is no best.
        self._best = [max(hits) if max(hits) > min(hits) else None for hits in columns]

    def plain(self) -> str:
        """For a terminal."""
        texts = [
            [policy, *(f"{'*' * self._is_best(each)}{_percent(each)}" for each in row)]
            for policy, row in self.rows.items()
        ]
        lines = [["hit ratio in %", *self._heads()], ["of the keys", *self._parts()], *texts]
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        written = [
            line[0].ljust(widths[0])
            + "".join(
                f"  {text:>{width}}" for text, width in zip(line[1:], widths[1:], strict=True)
            )
            for line in lines
        ]
        notes = ["", self._note("* ")] if self._is_marked() else []
        return "\n".join([f"{self.name}: {self._facts()}", "", *written, *notes])

    def markdown(self) -> str:
        heads = [
            f"{head} ({part})" for head, part in zip(self._heads(), self._parts(), strict=True)
        ]
        lines = [
            f"{self.name}: {self._facts()}",
            "",
            f"| hit ratio in % | {' | '.join(heads)} |",
            "|---|" + "---:|" * len(heads),
        ]
        for policy, row in self.rows.items():
            texts = [f"**{_percent(e)}**" if self._is_best(e) else _percent(e) for e in row]
            lines.append(f"| {policy} | {' | '.join(texts)} |")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        return {
            "trace": self.name,
            "requests": self.trace.requests,
            "distinct_keys": self.trace.distinct,
            "compulsory_misses": self.trace.distinct,
            "results": [
                {
                    "policy": each.policy,
                    "capacity": each.capacity,
                    "hits": each.hits,
                    "hit_ratio": each.hit_ratio,
                }
                for each in self.results
            ],
        }

    def page(self) -> str:
        """A self-contained HTML file."""
        note = f" {self._note('Bold: ')}." if self._is_marked() else ""
        parts = [
            f"<style>{_style()}</style>",
            f"<p>{html.escape(self.name)}: {self._facts()}.</p>",
            *(self._figure(shape) for shape in _SHAPES),
            f'<div class="scroll">{self._table()}</div>',
            f'<p class="dim">Hit ratio in %.{note} Each policy starts empty.</p>',
        ]
        return document("Sluicegate: hit ratios of cache policies", parts)

    def _facts(self) -> str:
        requests, distinct = self.trace.requests, self.trace.distinct
        return (
            f"{requests:,} requests, {distinct:,} distinct keys, so {distinct:,} compulsory misses "
            f"({100 * distinct / requests:.1f} %)"
        )

    def _note(self, mark: str) -> str:
        future = "; optimal knows the future" if OPTIMAL in self.rows else ""
        return f"{mark}the best policy at this capacity{future}"

    def _is_marked(self) -> bool:
        return any(best is not None for best in self._best)

    def _is_best(self, result: Replay) -> bool:
        place = self.capacities.index(result.capacity)
        return result.policy != OPTIMAL and result.hits == self._best[place]

    def _heads(self) -> list[str]:
        return [f"{capacity:,}" for capacity in self.capacities]

    def _parts(self) -> list[str]:
        """The capacities as parts of the distinct keys."""
        parts = [100 * size / self.trace.distinct for size in self.capacities]
        return [
            f"{part:.1f} %".replace(".0 ", " ") if part > 0.05 else f"{part:.1g} %"
            for part in parts
        ]

    def _table(self) -> str:
        heads = "".join(
            f"<th>{head}<br>{part}</th>"
            for head, part in zip(self._heads(), self._parts(), strict=True)
        )
        lines = [f"<tr><th>entries<br>of keys</th>{heads}</tr>"]
        for policy, row in self.rows.items():
            cells = "".join(
                f"<td{' class=best' if self._is_best(each) else ''}>{_percent(each)}</td>"
                for each in row
            )
            lines.append(
                f'<tr><td><span class="key {policy}"></span>{html.escape(policy)}</td>{cells}</tr>'
            )
        return "<table>" + "\n".join(lines) + "</table>"

    def _figure(self, shape: _Shape) -> str:
        highest = _scale(max(each.hit_ratio for each in self.results))
        lines = [part for row in self.rows.values() for part in self._line(shape, row, highest)]
        return (
            f'<figure class="{shape.name}"><svg viewBox="0 0 {shape.width} {shape.height}" '
            'role="img" aria-label="hit ratio over capacity, a line per policy">'
            + "".join([*_grid(shape, highest), *self._ticks(shape), *lines])
            + "".join(self._labels(shape, highest))
            + "</svg><figcaption>hit ratio over capacity in entries, and as a part of the distinct "
            "keys, on a log axis</figcaption></figure>"
        )

    def _x(self, shape: _Shape, capacity: int) -> float:
        first, last = math.log(self.capacities[0]), math.log(self.capacities[-1])
        return shape.x((math.log(capacity) - first) / (last - first) if last > first else 0.5)

    def _line(self, shape: _Shape, row: Sequence[Replay], highest: float) -> list[str]:
        points = [
            (self._x(shape, each.capacity), shape.y(each.hit_ratio / highest)) for each in row
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        policy = html.escape(row[0].policy)
        return [
            f'<polyline class="{policy}" points="{line}"/>',
            *(
                f'<circle class="{policy}" cx="{x:.1f}" cy="{y:.1f}" r="2.6">'
                f"<title>{policy}, {each.capacity:,} entries: {_percent(each)} %</title></circle>"
                for (x, y), each in zip(points, row, strict=True)
            ),
        ]

    def _labels(self, shape: _Shape, highest: float) -> list[str]:
        """The policies' names, beside the ends of their lines, apart where those are close."""
        ends = {policy: shape.y(row[-1].hit_ratio / highest) for policy, row in self.rows.items()}
        end = self._x(shape, self.capacities[-1])
        left = shape.width - shape.right + 14
        parts = []
        for policy, y in _apart(ends, shape).items():
            name = html.escape(policy)
            parts.append(
                f'<line class="lead {name}" x1="{end + 4:.1f}" y1="{ends[policy]:.1f}" '
                f'x2="{left - 3}" y2="{y:.1f}"/>'
                f'<text class="{name}" x="{left}" y="{y + 4:.1f}">{name}</text>'
            )
        return parts

    def _ticks(self, shape: _Shape) -> list[str]:
        """The capacities below the chart, as far as there is room."""
        ground = shape.y(0)
        parts = []
        last = self.capacities[-1]
        taken_from, taken_to = self._x(shape, last) - _TICK, 0.0
        for capacity, part in zip(self.capacities, self._parts(), strict=True):
            x = self._x(shape, capacity)
            parts.append(
                f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{shape.top}" y2="{ground:.1f}"/>'
            )
            if capacity == last or taken_to + _TICK / 2 <= x <= taken_from:
                taken_to = x + _TICK / 2
                parts += [
                    f'<text x="{x:.1f}" y="{ground + 16:.1f}" text-anchor="middle">'
                    f"{_short(capacity)}</text>",
                    f'<text x="{x:.1f}" y="{ground + 31:.1f}" text-anchor="middle">{part}</text>',
                ]
        return parts


def _apart(wanted: Mapping[str, float], shape: _Shape) -> dict[str, float]:
    """Heights of labels: the wanted ones, but a label apart. Those that are close move together."""
    blocks: list[tuple[float, list[str]]] = []  # the height of the first, and all from the top
    for policy in sorted(wanted, key=lambda name: wanted[name]):
        block = [policy]
        top = _block_top(block, wanted, shape)
        while blocks and blocks[-1][0] + _LABEL * len(blocks[-1][1]) > top:
            block = blocks.pop()[1] + block
            top = _block_top(block, wanted, shape)
        blocks.append((top, block))
    return {name: top + _LABEL * place for top, block in blocks for place, name in enumerate(block)}


def _block_top(block: Sequence[str], wanted: Mapping[str, float], shape: _Shape) -> float:
    """Where a block begins, so that its labels are moved least, and inside the chart."""
    moved = [wanted[name] - _LABEL * place for place, name in enumerate(block)]
    lowest = shape.y(0) - _LABEL * (len(block) - 1)
    return max(shape.top, min(sum(moved) / len(moved), lowest))


def _grid(shape: _Shape, highest: float) -> list[str]:
    parts = []
    for number in range(6):
        y = shape.y(number / 5)
        percent = f"{100 * highest * number / 5:.3g} %"
        parts.append(
            f'<line class="grid" x1="{shape.left}" x2="{shape.x(1)}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{shape.left - 6}" y="{y + 4:.1f}" text-anchor="end">{percent}</text>'
        )
    return parts


def _scale(highest: float) -> float:
    """The top of the axis: a round number, of which a fifth is one, too."""
    return next(top for top in (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0) if top >= highest)


def _percent(result: Replay) -> str:
    return f"{100 * result.hit_ratio:.1f}"


def _short(number: int) -> str:
    for least, size, letter in ((10**9, 1e9, "G"), (10**6, 1e6, "M"), (10**4, 1e3, "k")):
        if number >= least:
            return f"{number / size:.3g}{letter}"
    return f"{number:,}"


def _style() -> str:
    light = "".join(f" --{name}: {colours[0]};" for name, colours in _COLOURS.items())
    dark = "".join(f" --{name}: {colours[1]};" for name, colours in _COLOURS.items())
    lines = "".join(
        f".{name} {{ stroke: var(--{name}); }} circle.{name}, svg text.{name} "
        f"{{ fill: var(--{name}); stroke: none; }} .key.{name} {{ background: var(--{name}); }}\n"
        for name in _COLOURS
    )
    return f"""
:root {{{light} }}
@media (prefers-color-scheme: dark) {{ :root {{{dark} }} }}
polyline {{ fill: none; stroke-width: 2; stroke-linejoin: round; }}
{lines}polyline.{OPTIMAL} {{ stroke-dasharray: 6 4; stroke-width: 1.4; }}
.lead {{ stroke-width: .8; opacity: .6; }} .grid {{ stroke: var(--line); stroke-width: 1; }}
.key {{ margin-left: 0; }} .best {{ font-weight: 700; }} .scroll {{ overflow-x: auto; }}
.narrow {{ display: none; }}
@media (max-width: 600px) {{ .wide {{ display: none; }} .narrow {{ display: block; }}
  .scroll table {{ font-size: 12.5px; }} .scroll .key {{ width: .8em; }}
  .scroll td, .scroll th {{ padding-right: .3rem; white-space: nowrap; }} }}
"""
