"""The figures of runs as tables, for people: plain text for a terminal, Markdown for the docs.

A table has a row for each figure that a scenario has a goal for, and for those that one always
wants to see; a column for each system; the goal; and whether ours meets it. With several runs of
a system (`--runs`) the worst of each figure counts.
"""

from collections.abc import Mapping, Sequence

from sluicegate.sim.measures import GOALS, Measures, missed
from sluicegate.sim.runner import Result

__all__ = ["figure", "goal", "markdown", "plain", "rows", "worst"]

_ALWAYS = (
    "over_1",
    "over_10",
    "over_60",
    "under",
    "shortfall",
    "excess",
    "lowest_second",
    "nothing",
    "jain",
    "converged",
)
_WIDTH = 22
_MOST_USERS = 20  # whose figures the table has; the JSON has all


def worst(results: Sequence[Result]) -> Measures:
    """Of several runs of a scenario, the worst of each figure."""
    measures = Measures(messages=sum(result.measures.messages for result in results))
    measures.lost = max(result.measures.lost for result in results)
    names = [*GOALS, "sliding_1", "sliding_10", "sliding_60"]
    for name in names:
        figures = [result.measures[name] for result in results]
        known = [figure for figure in figures if figure is not None]
        if known:
            at_most = name not in GOALS or GOALS[name].at_most
            most = max(known, key=abs) if name == "unrecorded" else max(known)
            setattr(measures, name, most if at_most else min(known))
    return measures


def figure(name: str, value: float | None) -> str:
    """A figure as people read it: fractions as percent, `over` with its sign."""
    if value is None:
        return "-"
    if name in GOALS and not GOALS[name].percent:
        return f"{value:.4f}" if name == "jain" else f"{value:.3g}"
    sign = "+" if name.startswith(("over", "sliding")) else ""
    percent = 0.0 if abs(value) < 5e-5 else 100.0 * value
    return f"{percent:{sign}.2f} %" if abs(percent) < 10 else f"{percent:{sign}.0f} %"


def goal(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{'<=' if GOALS[name].at_most else '>='} {figure(name, value).lstrip('+')}"


def rows(results: Mapping[str, Sequence[Result]]) -> list[tuple[str, list[str], str, str]]:
    """(what, a figure per system, the goal, met or not)"""
    scenario = next(iter(results.values()))[0].scenario
    measures = {system: worst(runs) for system, runs in results.items()}
    rows = []
    for name, about in GOALS.items():
        values = [measures[system][name] for system in results]
        expected = scenario.goals.get(name)
        if expected is None and (name not in _ALWAYS or all(value is None for value in values)):
            continue
        verdict = ""
        if expected is not None and "fair" in measures:
            verdict = "no" if missed(measures["fair"], {name: expected}) else "yes"
        figures = [figure(name, value) for value in values]
        rows.append((about.text, figures, goal(name, expected), verdict))
    return rows


def plain(results: Mapping[str, Sequence[Result]]) -> str:
    """One scenario, for a terminal."""
    first = next(iter(results.values()))[0]
    scenario = first.scenario
    runs = len(next(iter(results.values())))
    seeds = f"seed {first.seed}" if runs == 1 else f"worst of {runs} seeds from {first.seed}"
    systems = "".join(f"{system:>12}" for system in results)
    lines = [
        f"{scenario.name}: {scenario.title}",
        scenario.about,
        f"{len(scenario.nodes)} nodes, {len(scenario.centrals)} centrals, "
        f"{scenario.seconds:g} s, {seeds}",
        "",
        f"{'':{_WIDTH}}{systems}{'goal':>12}  met",
    ]
    for what, figures, expected, verdict in rows(results):
        cells = "".join(f"{text:>12}" for text in figures)
        lines.append(f"{what:{_WIDTH}}{cells}{expected:>12}  {verdict}".rstrip())
    if first.users:
        lines += ["", *_used(first)]
    return "\n".join(lines)


def _used(result: Result) -> list[str]:
    """What the limits would have done to those in the file, the worst first."""
    users = result.users
    of = f" of {len(users)}" if len(users) > _MOST_USERS else ""
    lines = [
        f"what the limits would have done ({result.system}), "
        f"by lines refused{', the first ' + str(_MOST_USERS) if of else ''}{of}:",
        f"{'user':{_WIDTH}}{'':>12}{'asked':>12}{'passed':>12}{'refused':>12}{'':>9}",
    ]
    for used in users[:_MOST_USERS]:
        passed = used.requests - used.refused
        name = f"{used.service}/{used.user}"
        lines.append(_used_line(name, "lines", used.requests, passed))
        lines += [
            _used_line("", resource, asked, passed)
            for resource, (asked, passed) in used.amounts.items()
        ]
    return lines


def _used_line(name: str, what: str, asked: float, passed: float) -> str:
    refused = asked - passed
    part = 100.0 * refused / asked if asked else 0.0
    amounts = "".join(f"{amount:>12.10g}" for amount in (asked, passed, refused))
    return f"{name:{_WIDTH}}{what:>12}{amounts}{part:>7.1f} %"


def markdown(results: Mapping[str, Mapping[str, Sequence[Result]]]) -> str:
    """All scenarios in one table: what there is a goal for."""
    systems = list(next(iter(results.values())))
    lines = [
        f"| scenario | figure | {' | '.join(systems)} | goal | met |",
        "|---|---|" + "---:|" * len(systems) + "---:|---|",
    ]
    for name, runs in results.items():
        scenario = next(iter(runs.values()))[0].scenario
        what_happens = f"`{name}`: {scenario.about}"
        for what, figures, expected, verdict in rows(runs):
            if expected:
                expected = expected.replace("<=", "≤").replace(">=", "≥")
                cells = " | ".join([what_happens, what, *figures, expected, verdict])
                lines.append(f"| {cells} |")
                what_happens = ""
    return "\n".join(lines) + "\n"
