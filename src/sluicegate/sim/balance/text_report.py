"""Comparisons of policies as tables: plain text for a terminal, Markdown for the docs."""

from collections.abc import Sequence

from sluicegate.sim.balance.comparison import Comparison, Entry

__all__ = ["markdown", "plain"]

_WIDTH = 28
_CELL = 10


def plain(comparison: Comparison) -> str:
    """One scenario, for a terminal."""
    scenario = comparison.named.scenario
    columns = _columns(comparison)
    group = _CELL * len(columns)
    lines = [
        f"{comparison.name}: {comparison.named.title}",
        f"{scenario.servers} servers of {scenario.capacity} requests at once, "
        f"load {100.0 * scenario.load:g} %, {scenario.service} work of "
        f"{scenario.service_seconds:g} s, {scenario.seconds:g} s, seed {comparison.seed}",
        "",
        " " * _WIDTH + "".join(f"{_clients(count):>{group}}" for count in comparison.clients),
        " " * _WIDTH + "".join(f"{what:>{_CELL}}" for what in columns) * len(comparison.clients),
    ]
    for entry in comparison.entries:
        cells = "".join(f"{cell:>{_CELL}}" for cell in _cells(comparison, entry))
        lines.append(f"{entry.name:{_WIDTH}}{cells}")
    if scenario.events:
        lines += [
            "",
            "out after: until the server was left out; whole: from its return to its even share",
        ]
    if comparison.goal is not None:
        verdict = "met" if not comparison.missed else f"missed by {'; '.join(comparison.missed)}"
        goal = f"p99 of least_active and peak_ewma at most {comparison.goal:g} of round_robin's"
        lines += ["", f"{goal}: {verdict}"]
    return "\n".join(lines)


def markdown(comparisons: Sequence[Comparison]) -> str:
    """A table for each scenario."""
    parts = []
    for comparison in comparisons:
        columns = _columns(comparison)
        names = [f"{_clients(n)}: {columns[0]}" for n in comparison.clients]
        rest = [columns[1:]] * len(comparison.clients)
        head = [cell for name, others in zip(names, rest, strict=True) for cell in (name, *others)]
        lines = [
            f"{comparison.named.title} (load {100.0 * comparison.named.scenario.load:g} %):",
            "",
            f"| policy | {' | '.join(head)} |",
            "|---|" + "---:|" * len(head),
        ]
        lines += [
            f"| {entry.name} | {' | '.join(_cells(comparison, entry))} |"
            for entry in comparison.entries
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _columns(comparison: Comparison) -> tuple[str, ...]:
    """Where a server fails, how that is noticed is what matters, and else the tail."""
    if comparison.named.scenario.events:
        return "failed", "out after", "whole"
    return "p50", "p99", "ratio"


def _clients(count: int) -> str:
    return f"{count} client{'s' * (count > 1)}"


def _cells(comparison: Comparison, entry: Entry) -> list[str]:
    found = []
    for count, measures in entry.measures.items():
        if comparison.named.scenario.events:
            found.append(f"{100.0 * measures.failures:.2f} %")
            found += [
                "-" if after is None else f"{after} s"
                for after in (measures.left_out_after, measures.whole_after)
            ]
        else:
            ratio = comparison.ratio(entry, count)
            found += [_seconds(measures.p50), _seconds(measures.p99)]
            found.append("-" if ratio is None else f"{ratio:.3f}")
    return found


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{1000.0 * value:.0f} ms" if value < 1.0 else f"{value:.3g} s"
