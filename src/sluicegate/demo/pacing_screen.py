"""The screen of `sluicegate demo pacing`.

`frame` and `summary` turn the demo into text with Rich's markup, and nothing else; `show` is the
shell with the terminal. Rich is imported there alone.
"""

from typing import TYPE_CHECKING

from sluicegate.demo.pacing import BUDGET, REQUESTS, VICTIM, NodeRow, PacingDemo, checks
from sluicegate.demo.sparkline import bar_height, draw

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["frame", "show", "summary"]

_BEFORE_BARS = 9  # columns


def frame(demo: PacingDemo, width: int, bars: str) -> str:
    """The screen, in Rich's markup. `bars` are nine heights from nothing to twice the line."""
    title = "sluicegate demo pacing"
    time = f"{len(demo.passed)} of {demo.seconds} s, Ctrl-C ends it"
    wide = max(width - _BEFORE_BARS, 10)
    total, line = sum(demo.passed), demo.line(len(demo.passed))
    heights = [bar_height(passed, BUDGET) for passed in demo.passed[-wide:]]
    lines = [
        f"[bold]{title}[/]{time.rjust(width - len(title))}",
        f"[dim]A budget of {demo.target} in {demo.seconds} s, {REQUESTS:g} requests/s at four "
        f"nodes, totals in {demo.store}.[/]",
        "",
        f"line     {_progress(line, demo.target, wide - 8, bars)} {line:6.0f}",
        f"passed   {_progress(total, demo.target, wide - 8, bars)} {total:6.0f}",
        f"per s    {draw(heights, bars)}",
        "",
        f"[dim]{'node':9}{'asked/s':>8}{'passed/s':>9}{'pass rate':>11}{'share':>8}{'lag':>8}[/]",
        *map(_node, demo.nodes()),
        "",
        *(f"[dim]{event}[/]" for event in demo.events),
    ]
    return "\n".join(lines)


def _progress(amount: float, target: float, width: int, bars: str) -> str:
    """A bar that is full when the target is reached."""
    filled = min(round(amount / target * width), width)
    return f"[green]{bars[4] * filled}[/]{' ' * (width - filled)}"


def _node(node: NodeRow) -> str:
    if node.status is None:
        return f"{node.name:9}[red]dead[/]"
    return (
        f"{node.name:9}{node.asked:8}{node.passed:9}{node.status.pass_rate:11.1%}"
        f"{node.status.share:8.1%}{node.status.lag:z6.2f} s"
    )


def summary(demo: PacingDemo) -> str:
    """The closing table, in Rich's markup."""
    lines = [f"[dim]{'check':14}{'measured':>9}{'goal':>7}  met[/]"]
    for check in checks(demo):
        verdict = "[green]yes[/]" if check.is_met else "[red]no[/]"
        lines.append(f"{check.name:14}{max(check.measured, 0.0):9.2%}{check.goal:7.0%}  {verdict}")
    return "\n".join(
        [
            f"{sum(demo.passed)} of {demo.target} passed in {len(demo.passed)} of "
            f"{demo.seconds} s, by four nodes that share totals in {demo.store}.",
            *demo.events,
            "",
            *lines,
            "",
            "The measures are parts of the budget. How it works: docs/pacing.md",
            *_unsynced(demo),
        ]
    )


def _unsynced(demo: PacingDemo) -> list[str]:
    """Why more than the budget may have passed."""
    if demo.unsynced is None:
        return []
    return [
        f"{VICTIM} was killed: the up to {demo.unsynced} that it passed since its last sync are "
        "not known",
        f"to the others, so up to {demo.target + demo.unsynced} may pass instead of {demo.target}.",
    ]


def show(demo: PacingDemo, console: "Console", bars: str) -> None:
    """Draw the demo until its end."""
    from rich.live import Live
    from rich.text import Text

    with Live(console=console, screen=True, auto_refresh=False) as live:

        def draw_frame() -> None:
            text = Text.from_markup(frame(demo, console.width, bars))
            text.no_wrap, text.overflow = True, "crop"
            live.update(text, refresh=True)

        demo.run(draw_frame)
