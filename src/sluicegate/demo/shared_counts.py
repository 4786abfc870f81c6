"""`SharedCounts`: the requests that one worker counted, in a file that others read meanwhile.

The file is mapped into the memory of both processes, so a worker never waits for a reader, and
what a killed worker counted stays. There is one writer. All numbers are 64-bit words:

    pid, is_reporting, state, epoch, slot
    then a ring of the last BINS bins of time, each: its number + 1, and for each user admitted,
    refused

`state` is an index into the node's STATES. A worker that is started again goes on in the file.
"""

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sluicegate.quota.node.core.quota_freshness import STATES

__all__ = ["BINS", "BINS_PER_SECOND", "BIN_SECONDS", "SharedCounts", "WorkerStatus"]

BINS_PER_SECOND = 20
BIN_SECONDS = 1 / BINS_PER_SECOND
BINS = 120 * BINS_PER_SECOND
_HEADER = 5
_WORD = 8


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What a worker publishes about itself. `pid` 0: it has not started yet."""

    pid: int
    is_reporting: bool = False
    state: str = STATES[0]
    epoch: int = -1
    slot: int = -1


class SharedCounts:
    """The counts of one worker; the file is created if it is missing."""

    def __init__(self, path: Path, users: int) -> None:
        self._users = users
        self._row = 1 + 2 * users
        size = (_HEADER + BINS * self._row) * _WORD
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._words = memoryview(self._map).cast("q")

    # By the worker

    def publish(self, status: WorkerStatus) -> None:
        self._words[1] = status.is_reporting
        self._words[2] = STATES.index(status.state)
        self._words[3] = status.epoch
        self._words[4] = status.slot
        self._words[0] = status.pid  # the last: the others are valid when this is set

    def count(self, t: float, user: int, *, is_admitted: bool) -> None:
        """Count a request of the user with this number, `t` seconds after the begin."""
        number = int(t * BINS_PER_SECOND)
        row = _HEADER + number % BINS * self._row
        words = self._words
        if words[row] != number + 1:
            words[row] = 0
            for place in range(row + 1, row + self._row):
                words[place] = 0
            words[row] = number + 1
        words[row + 1 + 2 * user + (not is_admitted)] += 1

    # By the readers

    def status(self) -> WorkerStatus:
        pid, is_reporting, state, epoch, slot = self._words[:_HEADER]
        return WorkerStatus(pid, bool(is_reporting), STATES[state], epoch, slot)

    def bins(self, first: int, last: int) -> Iterator[list[tuple[int, int]]]:
        """Admitted and refused requests of each user, in each bin from `first` to before `last`.

        They are zero in bins in which nothing was counted, or which the ring has lost.
        """
        for number in range(first, last):
            row = _HEADER + number % BINS * self._row
            words = self._words[row : row + self._row].tolist()
            if words[0] == number + 1:
                yield list(zip(words[1::2], words[2::2], strict=True))
            else:
                yield [(0, 0)] * self._users

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
