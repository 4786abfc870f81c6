"""`sluicegate demo` between the command line and the demo: what is printed, and the exit code.

0 when each user was held to his limit, 1 when not or when the fleet did not start. When a signal
ends it early it is 128 + its number, as in a shell; but Ctrl-C at a terminal is how a person ends
it, and 0.
"""

import importlib.util
import json
import signal
import sys
from typing import TYPE_CHECKING

from sluicegate.demo import quota, quota_screen
from sluicegate.demo.bars import plain
from sluicegate.demo.fleet import Ended
from sluicegate.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["LEAST_SECONDS", "run"]

LEAST_SECONDS = quota.LEAST_SECONDS
_USUAL_SECONDS = 20.0  # where nobody can press Ctrl-C
_NEEDED = ("orjson", "prometheus_client", "starlette", "uvicorn", "websockets")


def run(seconds: float | None, as_json: bool, console: "Console | None", bars: str) -> int:
    """Run it for `seconds` (None: until a signal), drawn on the console if there is one."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the central needs more packages ({', '.join(missing)}): "
            f"pip install 'sluicegate[server,dashboard]'"
        )
    with quota.end_mark() as mark:
        if console is not None:
            console.print("[dim]starting a central and three nodes[/]")
        try:
            with quota.QuotaDemo(mark) as demo:
                if console is not None:
                    quota_screen.show(demo, seconds, console, bars)
                else:
                    sys.stderr.write(f"sluicegate demo: the central is at {demo.url}\n")
                    demo.run(_USUAL_SECONDS if seconds is None else seconds)
                # The fleet knows the rest only while it runs.
                told = quota.report(demo, mark.number)
        except Ended:
            return _exit_code(mark.number, is_held=False, is_drawn=console is not None)
        closing = quota_screen.summary(demo)
    if as_json:
        sys.stdout.write(json.dumps(told) + "\n")
    elif console is None:
        sys.stdout.write(plain(closing) + "\n")
    else:
        console.print(closing, soft_wrap=True)
    sys.stdout.flush()
    return _exit_code(mark.number, is_held=bool(told["held"]), is_drawn=console is not None)


def _exit_code(ended_by: int | None, *, is_held: bool, is_drawn: bool) -> int:
    if ended_by is None:
        return 0 if is_held else 1
    return 0 if is_drawn and ended_by == signal.SIGINT else 128 + ended_by
