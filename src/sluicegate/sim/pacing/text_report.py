"""The figures of pacing runs as tables: plain text for a terminal, Markdown for the docs."""

from collections.abc import Sequence

from sluicegate.sim.pacing.measures import GOALS, Bounded
from sluicegate.sim.pacing.simulate import PacingOutcome

__all__ = ["figure", "goal", "markdown", "plain", "rows"]

_ALWAYS = ("delivered", "achieved", "over", "error", "error_most", "deviation", "unrecorded")
_WIDTH = 24


def figure(name: str, value: float | None) -> str:
    """A figure as people read it: fractions as percent, `over` with its sign."""
    if value is None:
        return "-"
    if not GOALS[name].percent:
        return f"{value:.3g}"
    sign = "+" if name.startswith("over") else ""
    return f"{100.0 * value:{sign}.2f} %"


def goal(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{'<=' if GOALS[name].at_most else '>='} {figure(name, value).lstrip('+')}"


def rows(outcome: PacingOutcome) -> list[tuple[str, list[str], str, str]]:
    """(what, the figure, the goal, met or not)"""
    measures, goals = outcome.worst, outcome.scenario.goals
    missed = {one.goal for one in outcome.missed}
    bounded = {one.name for one in outcome.bounded}
    found = []
    for name, about in GOALS.items():
        value, expected = measures[name], goals.get(name)
        if expected is None and (name not in _ALWAYS or value is None):
            continue
        if name == "unrecorded" and name in bounded:
            continue  # it comes with its bound
        verdict = "" if expected is None else "no" if name in missed else "yes"
        texts = [figure(name, value)]
        found.append((about.text, texts, goal(name, expected), verdict))
    return found + [_bounded_row(one) for one in outcome.bounded]


def _bounded_row(one: Bounded) -> tuple[str, list[str], str, str]:
    if one.name == "unrecorded":
        texts = figure(one.name, one.figure), goal(one.name, one.most)
    else:
        texts = f"{100.0 * one.figure:.2f} %", f"<= {100.0 * one.most:.2f} %"
    return one.name, [texts[0]], texts[1], "yes" if one.is_met else "no"


def plain(outcome: PacingOutcome) -> str:
    """One scenario, for a terminal."""
    scenario, results = outcome.scenario, outcome.results
    first = results[0].seed
    seeds = f"seed {first}" if len(results) == 1 else f"worst of {len(results)} seeds from {first}"
    lines = [
        f"{scenario.name}: {scenario.title}",
        scenario.about,
        f"{scenario.nodes} nodes, target {scenario.target:g} per {scenario.period:g} s, "
        f"sync every {scenario.sync_interval:g} s, {scenario.seconds:g} s, {seeds}",
        "",
        f"{'':{_WIDTH}}{'pacing':>12}{'goal':>12}  met",
    ]
    for what, (text,), expected, verdict in rows(outcome):
        lines.append(f"{what:{_WIDTH}}{text:>12}{expected:>12}  {verdict}".rstrip())
    if outcome.bounded:
        lines += ["", "The goals are the worst that a cluster of its regime may have."]
    return "\n".join(lines)


def markdown(outcomes: Sequence[PacingOutcome]) -> str:
    """All scenarios in one table: what there is a goal for."""
    lines = ["| scenario | figure | pacing | goal | met |", "|---|---|---:|---:|---|"]
    for outcome in outcomes:
        what_happens = f"`{outcome.scenario.name}`: {outcome.scenario.about}"
        for what, (text,), expected, verdict in rows(outcome):
            if expected:
                expected = expected.replace("<=", "≤").replace(">=", "≥")
                lines.append(f"| {what_happens} | {what} | {text} | {expected} | {verdict} |")
                what_happens = ""
    return "\n".join(lines) + "\n"
