"""`Election`: what every way to elect a leader offers.

Two promises hold for all of them:

- Leadership is a lease. `is_leader` compares its deadline with the clock at each read. No timer
  has to run first, so a process that was frozen for a minute reads False when it wakes up.
- `epoch` is a fencing number: it grows with each new leadership. A leader that is frozen between
  a look at `is_leader` and what it does next acts too late, and no clock of its own can prevent
  that. Whoever receives its messages compares the epoch and ignores a lower one.
"""

import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

__all__ = ["Election", "boottime"]


def boottime() -> float:
    """Seconds on the clock that leases are measured with: it goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Election(ABC):
    """Which of several candidates leads. `async with` campaigns; leaving it releases.

    The coroutines belong to one event loop. The properties may be read in any thread; outside the
    loop's, read `epoch` before `is_leader`: the other way round it may be that of a successor.
    """

    name: str
    """This candidate."""

    @property
    @abstractmethod
    def is_leader(self) -> bool:
        """Whether this candidate leads now, by its deadline and its clock."""

    @property
    @abstractmethod
    def deadline(self) -> float:
        """Until when this candidate leads, on the clock of `boottime`; -inf if it does not."""

    @property
    @abstractmethod
    def epoch(self) -> int:
        """The fencing number of the latest leadership known here; it only grows. 0: none yet."""

    @property
    @abstractmethod
    def leader(self) -> str | None:
        """The candidate that leads as far as is known here; None: none is known."""

    @abstractmethod
    async def changed(self) -> None:
        """Wait for the next change of `is_leader`, `epoch` or `leader` after this call.

        Nothing is missed between a look at the three and this call if nothing is awaited between
        them. `close` ends the wait, too. `is_leader` turns False at the deadline, and this returns
        soon after that.
        """

    @abstractmethod
    async def start(self) -> None:
        """Begin to campaign."""

    @abstractmethod
    async def close(self) -> None:
        """Stop leading, then release the leadership. Another call does nothing."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
