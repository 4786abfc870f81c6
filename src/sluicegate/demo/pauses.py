"""Measures for how long the machine did not let a process run, and logs it to a file.

A thread sleeps for a moment, again and again. When it wakes up much later than it wanted to, the
process was held up meanwhile: it was stopped, or others had the processor. Time in which the
process itself used a processor is no pause: a program that is slow by itself is not excused.

A line of the file is the begin and the end of a pause, in seconds of the monotonic clock. What was
logged before a SIGKILL stays.
"""

import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["SHORTEST_PAUSE", "TICK", "PauseLog", "PauseMeter", "Span"]

SHORTEST_PAUSE = 0.03  # seconds: a shorter delay is the scheduler's everyday work
TICK = 0.02

Span = tuple[float, float]  # from, to


class PauseMeter:
    """Appends the pauses of this process to a file, from `with` to its end."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._measure, name="pause-meter", daemon=True)

    def _measure(self) -> None:
        begin, worked = time.monotonic(), time.process_time()
        while not self._is_over.wait(TICK):
            end, works = time.monotonic(), time.process_time()
            length = end - begin - TICK - (works - worked)
            if length > SHORTEST_PAUSE:
                os.write(self._file, f"{end - length} {end}\n".encode())
            begin, worked = end, works

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()
        os.close(self._file)


class PauseLog:
    """Reads the file of a `PauseMeter` while it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def read(self) -> list[Span]:
        """The pauses that were logged since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._position += len(whole) + len(newline)
        spans = [tuple(map(float, line.split())) for line in whole.splitlines()]
        return [(begin, end) for begin, end in spans]
