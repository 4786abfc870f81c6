"""`PauseMeter`: for how long the machine did not let this process run.

A thread sleeps for a moment, again and again. When it wakes up much later than it wanted to, the
process was held up meanwhile: it was stopped, or others had the processor. Time in which the
process itself used a processor is no pause: a program that is slow by itself is not excused. Times
are seconds of the monotonic clock.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["SHORTEST_PAUSE", "PauseMeter"]

SHORTEST_PAUSE = 0.03  # seconds: a shorter delay is the scheduler's everyday work
_TICK = 0.02


class PauseMeter:
    """Calls `note(begin, end)` after each pause, in a thread, from `with` to its end."""

    def __init__(self, note: Callable[[float, float], None]) -> None:
        self._note = note
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._measure, name="pause-meter", daemon=True)

    def _measure(self) -> None:
        begin, worked = time.monotonic(), time.process_time()
        while not self._is_over.wait(_TICK):
            end, works = time.monotonic(), time.process_time()
            length = end - begin - _TICK - (works - worked)
            if length > SHORTEST_PAUSE:
                self._note(end - length, end)
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
