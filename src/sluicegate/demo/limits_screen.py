"""The screen of `sluicegate demo limits`.

`frame` and `summary` turn the model into text with Rich's markup, and nothing else;
`show` is the shell with the terminal and the time. Rich is imported there alone.
"""

import itertools
from contextlib import suppress
from typing import TYPE_CHECKING

from sluicegate.clock import Clock
from sluicegate.demo.limits import BURSTING, LIMIT, PERIOD, STEADY, STEP, LimitsDemo, Row
from sluicegate.demo.sparkline import ASCII, AT_LIMIT, BLOCKS, bar_height, draw, plain

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["ASCII", "BLOCKS", "frame", "plain", "show", "summary"]

_NOTES_FROM = 33  # lines of terminal, from which on each limiter is explained
_BEFORE_BARS, _AFTER_BARS = 27, 29  # columns


def frame(demo: LimitsDemo, seconds: float, width: int, height: int, bars: str) -> str:
    """The screen, in Rich's markup. `bars` are nine heights from nothing to twice the limit."""
    bar_width = max(width - _BEFORE_BARS - _AFTER_BARS, 8)
    title, time = "sluicegate demo limits", f"{int(demo.now)} of {seconds:g} s, Ctrl-C ends it"
    below, above = range(1, AT_LIMIT + 1), range(AT_LIMIT + 1, len(bars))
    bars_head = f"passed in the last {bar_width * STEP:g} s"[:bar_width]
    lines = [
        f"[bold]{title}[/]{time.rjust(width - len(title))}",
        "",
        f"{STEADY} calls/s, and {BURSTING}/s for one second in {PERIOD:g}. "
        f"Every limit is {LIMIT}/s:",
        f"{draw(below, bars)} up to the limit, {draw(above, bars)} above it.",
        f"[dim]{'':{_BEFORE_BARS + bar_width}}{'in the last second':>21}{'now':>8}",
        f"{'':{_BEFORE_BARS}}{bars_head:{bar_width}}"
        f"{'asked':>6}{'passed':>7}{'refused':>8}{'waiting':>8}[/]",
        _line(demo.unlimited, bar_width, bars),
    ]
    for kind, rows in itertools.groupby(demo.rows, lambda row: row.gate.kind):
        lines += ["", f"[dim]{kind}[/]"]
        for row in rows:
            lines.append(_line(row, bar_width, bars))
            if height >= _NOTES_FROM:
                lines.append(f"[dim]  {row.gate.note}[/]")
    return "\n".join(lines)


def _line(row: Row, bar_width: int, bars: str) -> str:
    heights = [bar_height(count, LIMIT * STEP) for count in row.passed_per_step()[-bar_width:]]
    padding = " " * (bar_width - len(heights))
    now = row.last_second()
    return (
        f"{row.gate.name:16} [dim]{row.gate.setting:9}[/] {padding}{draw(heights, bars)}"
        f"{now.asked:6}{_against_limit(f'{now.passed:7}', now.passed)}"
        f"{now.refused or '':>8}{row.waiting or '':>8}"
    )


def _against_limit(text: str, per_second: int) -> str:
    return f"[yellow]{text}[/]" if per_second > LIMIT else text


def summary(demo: LimitsDemo) -> str:
    """The closing table, in Rich's markup."""
    lines = [
        f"[dim]{'limiter':16} {'limit':16}"
        f"{'asked':>7}{'passed':>8}{'refused':>9}{'waiting':>9}{'most in 1 s':>13}[/]"
    ]
    for row in (demo.unlimited, *demo.rows):
        limit = f"{LIMIT}/s, {row.gate.setting}" if row.gate.setting else ""
        lines.append(
            f"{row.gate.name:16} {limit:16}"
            f"{row.asked:7}{row.passed:8}{row.refused:9}{row.waiting:9}"
            f"{_against_limit(f'{row.most:13}', row.most)}"
        )
    return "\n".join([*lines, "", "How each of them works, and which to take: docs/limits.md"])


def show(demo: LimitsDemo, seconds: float, console: "Console", clock: Clock, bars: str) -> None:
    """Draw the model, step by step in the time of `clock`, until the end or Ctrl-C."""
    from rich.live import Live
    from rich.text import Text

    start = clock.now()
    live = Live(console=console, screen=True, auto_refresh=False)
    with suppress(KeyboardInterrupt), live:
        while demo.now < seconds:
            text = Text.from_markup(frame(demo, seconds, console.width, console.height, bars))
            text.no_wrap, text.overflow = True, "crop"
            live.update(text, refresh=True)
            step = min(STEP, seconds - demo.now)
            clock.sleep(max(start + demo.now + step - clock.now(), 0.0))
            demo.step(step)
