"""Writes docs/accuracy.md: every scenario, ours and the classic rule, beside the goals.

    python -m sluicegate.sim.accuracy [FILE] [RUNS]

With RUNS above 1, each figure is the worst of so many random seeds. The exit code is 0 if all
goals are met; the table is written in any case. The sections below it, from "Failover" on, are
written by hand and stay as they are in FILE.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from sluicegate.sim.scenario import load, names
from sluicegate.sim.simulate import Outcome, simulate
from sluicegate.sim.text_report import markdown

__all__ = ["document", "main"]

_HEAD = """# How well limits hold

Simulated clusters with faults, our assignment (`fair`) beside the older one (`classic`). \
[The simulator](simulator.md) tells what the figures mean and how to run a scenario, or one's own. \
This page is made by `python -m sluicegate.sim.accuracy`: worst of {seeds}, from seed 0.

"""
_KEPT = "\n## Failover\n"


def document(outcomes: Sequence[Outcome], runs: int) -> str:
    """The page. What broke an invariant stands below the table."""
    seeds = f"{runs} random seeds" if runs > 1 else "one run"
    table = markdown({each.scenario.name: each.results for each in outcomes if each.results})
    broken = [f"- {each.broken}" for each in outcomes if each.broken is not None]
    tail = "\n## Broken invariants\n\n" + "\n".join(broken) + "\n" if broken else ""
    return _HEAD.format(seeds=seeds) + table + tail


def _kept(path: Path) -> str:
    """What stands in the file below the table and is not made here."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    place = text.find(_KEPT)
    return text[place:] if place >= 0 else ""


def main(arguments: Sequence[str]) -> int:
    path = Path(arguments[0] if arguments else "docs/accuracy.md")
    runs = int(arguments[1]) if len(arguments) > 1 else 1
    outcomes = simulate([load(name) for name in names()], runs=runs)
    path.write_text(document(outcomes, runs) + _kept(path), encoding="utf-8")
    return 0 if all(outcome.met for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
