"""`Tally`: what one worker has counted, in a file that the demo reads while it is written.

The file is mapped into both processes, so a worker never waits for a reader, and what a killed
one has counted stays. There is one writer. All numbers are 64-bit words:

    pid, is_reporting, state, epoch, slot
    then for each of the last RING seconds: its number + 1, and for each user admitted, refused
    then for each of them again: its number + 1, and the longest pause of the worker in it, in
    microseconds (another thread writes these)

`state` is an index into the node's STATES. A worker that is started again goes on in the file.
"""

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sluicegate.demo.quota_users import USERS
from sluicegate.quota.node.core.quota_freshness import STATES

__all__ = ["RING", "Standing", "Tally"]

RING = 64  # seconds
_HEAD = 5
_ROW = 1 + 2 * len(USERS)
_PAUSES = _HEAD + RING * _ROW
_SIZE = _PAUSES + RING * 2
_WORD = 8


@dataclass(frozen=True, slots=True)
class Standing:
    """What a worker says of itself. `pid` 0: it has not started yet."""

    pid: int
    is_reporting: bool = False
    state: str = STATES[0]
    epoch: int = -1
    slot: int = -1


class Tally:
    """The counts of one worker; the file is made when it is missing."""

    def __init__(self, path: Path) -> None:
        size = _SIZE * _WORD
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map).cast("q")

    # By the worker

    def stand(self, standing: Standing) -> None:
        self._words[1] = standing.is_reporting
        self._words[2] = STATES.index(standing.state)
        self._words[3] = standing.epoch
        self._words[4] = standing.slot
        self._words[0] = standing.pid  # the last: the others are there when this is

    def count(self, second: int, user: int, *, is_admitted: bool) -> None:
        row = _HEAD + second % RING * _ROW
        words = self._words
        if words[row] != second + 1:
            words[row] = 0
            for cell in range(row + 1, row + _ROW):
                words[cell] = 0
            words[row] = second + 1
        words[row + 1 + 2 * user + (not is_admitted)] += 1

    def pause(self, begin: float, end: float) -> None:
        """The worker could not run from one moment to the other, in seconds of the traffic."""
        length = round((end - begin) * 1e6)
        words = self._words
        for second in range(max(int(begin), int(end) - RING + 1, 0), int(end) + 1):
            row = _PAUSES + second % RING * 2
            before = words[row + 1] if words[row] == second + 1 else 0
            words[row] = 0
            words[row + 1] = max(length, before)
            words[row] = second + 1

    # By the demo

    def standing(self) -> Standing:
        pid, is_reporting, state, epoch, slot = self._words[:_HEAD]
        return Standing(pid, bool(is_reporting), STATES[state], epoch, slot)

    def counts(self, second: int) -> Sequence[tuple[int, int]]:
        """Admitted and refused of each user in a second; zeros if nothing was counted."""
        row = _HEAD + second % RING * _ROW
        words = self._words[row : row + _ROW].tolist()
        if words[0] != second + 1:
            return [(0, 0)] * len(USERS)
        return list(zip(words[1::2], words[2::2], strict=True))

    def longest_pause(self, second: int) -> float:
        """The longest pause of the worker that reaches into a second; 0 if there was none."""
        number, length = self._words[_PAUSES + second % RING * 2 :][:2].tolist()
        return length / 1e6 if number == second + 1 else 0.0

    def close(self) -> None:
        self._words.release()
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
