"""`Fetcher`: when a worker fetches tasks of one queue, and how; without I/O.

    step     -> what to do next: Recover, Look, Read, Begin or Pause
    fetched  <- what came of it
    failed   <- it could not be carried out

A *look* gives what waits, the most urgent first, and returns at once. A *read* waits for tasks. It
takes a few of each priority, not a batch: should urgent tasks come together with others, only these
few of the others are ahead of the urgent ones that come into later batches. So a look comes first,
but for a worker that has just seen the queue empty: that saves an exchange for each request of a
quick handler with little load.

A batch waits for what is there: after a read that took as many as it may, and when tasks of a full
look were dropped, one more look fills it (a *refill*).

A worker of several queues fetches from one, and begins batches of it, only while those before it
are *dry*: while it waits in a read of them, or cannot reach them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sluicegate.dispatch.worker_core import FETCH_AHEAD, WorkerCore

__all__ = ["Begin", "Fetcher", "Look", "Pause", "Read", "Recover", "Step"]

_EMPTY_FOR = 0.005  # seconds for which a queue that was seen empty is taken to be so
_MOST_AWAITED = 4  # tasks of one priority in a read, whose reply is bounded in bytes
_MOST_REFILLS = 100  # before a batch begins


@dataclass(frozen=True, slots=True)
class Recover:
    """Ask for tasks of a fetch whose reply was lost: they would wait until their lease runs out."""


@dataclass(frozen=True, slots=True)
class Look:
    """Fetch tasks that wait. `wanted`: for each stream how many of it and the more urgent ones."""

    wanted: Sequence[int]


@dataclass(frozen=True, slots=True)
class Read:
    """Wait for up to `most` tasks of each stream."""

    most: int


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin the batches that are due, and ask again."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Do nothing before a batch begins or ends, or before `until`, if that is not None."""

    until: float | None


Step = Recover | Look | Read | Begin | Pause


class Fetcher:
    """`previous`: of the queue that is served before this one."""

    def __init__(self, core: WorkerCore, previous: "Fetcher | None" = None) -> None:
        self._core = core
        self._previous = previous
        self._is_last = True
        if previous is not None:
            previous._is_last = False
        self._is_waiting = False
        self._empty_at = float("-inf")  # when a fetch has last left nothing in the queue
        self._refills = 0  # in a row, for one batch
        self._may_have_lost = False
        self._has_fetched = False  # just now, and what came may have filled the pool

    @property
    def is_last(self) -> bool:
        """Whether no queue is served after this one."""
        return self._is_last

    @property
    def is_turn(self) -> bool:
        """Whether nothing waits in the queues that are served before this one."""
        return self._previous is None or self._previous._is_dry

    @property
    def _is_dry(self) -> bool:
        return self._is_waiting and self.is_turn

    def step(self, now: float, free: int, next_free_at: float | None) -> Step:
        """`free`: batches that could begin now; `next_free_at`: else when one could."""
        self._is_waiting = False
        if self._may_have_lost:
            return Recover()
        has_fetched, self._has_fetched = self._has_fetched, False
        if has_fetched and self._core.is_full:
            return self._pause(now, next_free_at)  # look for more urgent ones after a batch began
        wanted = self._core.wanted(now, free, next_free_at) if self.is_turn else ()
        if wanted:
            return self._fetch(now, wanted)
        if self._refills:
            self._refills = 0  # some of what was fetched was not dropped, and fills the pool
            return Begin()
        return self._pause(now, next_free_at)

    def fetched(self, now: float, step: Recover | Look | Read, count: int, dropped: bool) -> bool:
        """`count` tasks came, of which some were dropped. Whether batches may begin."""
        self._is_waiting = False
        if isinstance(step, Recover):
            self._may_have_lost = count > 0
            return count > 0
        may_be_more = self._may_be_more(step, count, dropped)
        is_empty = count == 0 or (isinstance(step, Read) and count < step.most)
        # With other queues behind this one, only a look tells whether it is their turn.
        is_known = is_empty and (self._is_last or isinstance(step, Look))
        self._empty_at = now if is_known else float("-inf")
        if may_be_more and self._refills < _MOST_REFILLS:
            self._refills += 1
            return False
        is_ready = count > 0 or self._refills > 0
        self._refills = 0
        self._has_fetched = True
        return is_ready

    def failed(self) -> None:
        """The step failed. The queues behind this one may be on a server that answers."""
        self._may_have_lost = True
        self._refills = 0
        self._is_waiting = True

    def _fetch(self, now: float, wanted: Sequence[int]) -> Look | Read:
        may_wait = not self._refills and not self._core.is_full
        if not may_wait or now - self._empty_at > _EMPTY_FOR:
            return Look(wanted)
        self._is_waiting = True
        return Read(min(max(wanted[-1] // len(wanted), 1), _MOST_AWAITED))

    def _may_be_more(self, step: Look | Read, count: int, dropped: bool) -> bool:
        """Whether more tasks may wait that would fit into this batch."""
        if isinstance(step, Read):
            return count >= step.most
        return dropped and count >= max(step.wanted[-1], 1)

    def _pause(self, now: float, next_free_at: float | None) -> Pause:
        is_far = next_free_at is not None and next_free_at - now > FETCH_AHEAD
        return Pause(next_free_at - FETCH_AHEAD if next_free_at is not None and is_far else None)

    def __repr__(self) -> str:
        return f"Fetcher(refills={self._refills}, is_turn={self.is_turn})"
