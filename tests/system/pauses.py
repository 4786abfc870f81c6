"""For how long the machine held up the processes of a story, as each of them noted it itself.

A process appends a line for each pause to a file of its own, in seconds of the wall clock, so that
what was noted until a SIGKILL is there.
"""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

__all__ = ["PauseLog", "Span", "read_pauses"]

Span = tuple[float, float]  # from, to


class PauseLog:
    """`note` is for a `PauseMeter`, which knows the monotonic clock only."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def note(self, begin: float, end: float) -> None:
        # A pause between the two readings makes it less.
        ahead = max(time.time() - time.monotonic() for _ in range(3))
        os.write(self._file, f"{json.dumps([begin + ahead, end + ahead])}\n".encode())


def read_pauses(path: Path, stopped: Iterable[Span] = ()) -> list[Span]:
    """The pauses of a process, less what the story itself has stopped it for."""
    lines = path.read_text().splitlines() if path.exists() else []
    pauses: list[Span] = [(begin, end) for begin, end in map(json.loads, lines)]
    for stop, go_on in stopped:
        pauses = [
            part
            for begin, end in pauses
            for part in ((begin, min(end, stop)), (max(begin, go_on), end))
            if part[0] < part[1]
        ]
    return pauses
