"""Waits of tests, each with a deadline. One that runs out fails and shows what was seen so far."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import IO, Any

__all__ = ["PATIENCE", "Output", "wait_for", "wait_until"]

PATIENCE = 60.0  # seconds: far beyond what a busy machine needs


def wait_for(
    condition: Callable[[], Any],
    seconds: float = PATIENCE,
    seen: Callable[[], object] | None = None,
) -> Any:
    """Wait until `condition()` is true and return its value.

    At the deadline the test fails with what `seen()` returns, by default the last value.
    """
    end = time.monotonic() + seconds
    nap = 0.002
    while not (value := condition()):
        if time.monotonic() > end:
            shown = value if seen is None else seen()
            raise AssertionError(f"did not happen within {seconds:g} s; last seen: {shown!r}")
        time.sleep(nap)
        nap = min(1.5 * nap, 0.05)  # to look costs time, too
    return value


async def wait_until(condition: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """`wait_for` in a task."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"did not happen within {seconds:g} s; last seen: {value!r}")
        await asyncio.sleep(0.005)


class Output:
    """All lines that a process writes to a pipe, read by a thread, so that none waits for another.

    The pipe is in text mode. It is closed at its end, which is when the process has ended.
    """

    def __init__(self, pipe: IO[str]) -> None:
        self._lines: list[str] = []
        self._is_over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._thread.start()

    def wait_for(self, text: str, seconds: float = PATIENCE) -> str:
        """The first line that contains `text`, as soon as it is written."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._find(text) is not None, seconds)
            line = self._find(text)
            if line is None:
                why = "the output ended" if self._is_over else f"not within {seconds:g} s"
                raise AssertionError(f"no line with {text!r}: {why}; written: {self._lines}")
            return line

    def lines(self) -> list[str]:
        """What it has written so far."""
        with self._changed:
            return list(self._lines)

    def text(self, seconds: float = PATIENCE) -> str:
        """All of it, once the process has closed its end."""
        self._thread.join(seconds)
        with self._changed:
            assert self._is_over, f"it goes on after {seconds:g} s; written: {self._lines}"
            return "".join(self._lines)

    def _find(self, text: str) -> str | None:
        return next((line for line in self._lines if text in line), None)

    def _read(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
