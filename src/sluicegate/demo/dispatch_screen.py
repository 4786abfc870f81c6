"""The screen of `sluicegate demo dispatch`.

`frame` and `summary` turn the demo into text with Rich's markup, and nothing else; `show` is the
shell with the terminal. Rich is imported there alone.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from sluicegate.demo.dispatch import CAPACITY, CLIENTS, DispatchDemo
from sluicegate.demo.dispatch_handler import BATCH
from sluicegate.demo.dispatch_tally import ANSWERED, REFUSED, TIMED_OUT, Second
from sluicegate.demo.sparkline import bar_height, draw

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["frame", "show", "summary"]

_BEFORE_BARS = 22  # columns
# Name, value of a second, its format, and what a bar of half the height is.
_ROWS: tuple[tuple[str, Callable[[Second], float], str, float], ...] = (
    ("asked/s", lambda second: second.asked, "6.0f", CAPACITY),
    ("answered/s", lambda second: second.ended[ANSWERED], "6.0f", CAPACITY),
    ("refused/s", lambda second: second.ended[REFUSED], "6.0f", CAPACITY),
    ("timed out/s", lambda second: second.ended[TIMED_OUT], "6.0f", CAPACITY),
    ("batch size", lambda second: second.mean_batch, "6.1f", BATCH),
    ("p50, ms", lambda second: 1000 * second.percentile(0.5), "6.0f", 1000.0),
    ("p99, ms", lambda second: 1000 * second.percentile(0.99), "6.0f", 1000.0),
)


def frame(demo: DispatchDemo, width: int, bars: str) -> str:
    """The screen, in Rich's markup. `bars` are nine heights, the middle one is the capacity."""
    title = "sluicegate demo dispatch"
    time = f"{demo.recorded} of {demo.seconds} s, Ctrl-C ends it"
    wide = max(width - _BEFORE_BARS, 10)
    seconds = demo.tally.seconds[: demo.recorded]
    last = demo.last_second()
    lines = [
        f"[bold]{title}[/]{time.rjust(width - len(title))}",
        f"[dim]{CLIENTS} clients, one queue, two workers that can answer {CAPACITY:g}/s in "
        f"batches of {BATCH}.[/]",
        "",
    ]
    for name, value, form, scale in _ROWS:
        heights = [bar_height(value(second), scale) for second in seconds[-wide:]]
        lines.append(f"{name:12}{value(last):{form}}    {draw(heights, bars)}")
    lines += [
        "",
        f"{'in the queue':12}{demo.tally.waiting:6}",
        *(f"{name:12}{count:6} answered" for name, count in demo.by_worker()),
        "",
        *(f"[dim]{event}[/]" for event in demo.events),
    ]
    return "\n".join(lines)


def summary(demo: DispatchDemo) -> str:
    """The closing table, in Rich's markup."""
    ended = demo.tally.ended
    is_whole = demo.recorded == demo.seconds
    time = f"{demo.seconds} s" if is_whole else f"{demo.recorded} s of {demo.seconds}"
    lines = [f"[dim]{'check':12}{'measured':>9}{'goal':>7}  met[/]"]
    for check in demo.checks():
        verdict = "[green]yes[/]" if check.is_met else "[red]no[/]"
        form = "9.0f" if check.name == "lost" else "9.2%"
        goal = "7.0f" if check.name == "lost" else "7.0%"
        lines.append(f"{check.name:12}{check.measured:{form}}{check.goal:{goal}}  {verdict}")
    return "\n".join(
        [
            f"{demo.tally.asked} calls in {time}: "
            f"{ended[ANSWERED]} answered, {ended[REFUSED]} refused, {ended[TIMED_OUT]} timed out.",
            *demo.events,
            "",
            *lines,
            "",
            "idle and timed out are parts, under overload: of what the workers could have answered",
            "and of what was accepted. How it works: docs/dispatch.md",
        ]
    )


def show(demo: DispatchDemo, console: "Console", bars: str) -> None:
    """Draw the demo until its end."""
    from rich.live import Live
    from rich.text import Text

    with Live(console=console, screen=True, auto_refresh=False) as live:

        def draw_frame() -> None:
            text = Text.from_markup(frame(demo, console.width, bars))
            text.no_wrap, text.overflow = True, "crop"
            live.update(text, refresh=True)

        demo.run(draw_frame)
