"""`LeaseElection`: an election by a lease in a store. Redis and etcd are such stores.

One task does everything: it claims, waits, renews, and in the end releases and closes. `Candidacy`
has the rules of when. A start or a close that is cancelled leaves the rest to that task, and what
even it cannot release runs out by itself after one lease.
"""

import asyncio
import logging
from typing import Protocol

from sluicegate.election.candidacy import Candidacy, Outcome, Regressed
from sluicegate.election.change_signal import ChangeSignal
from sluicegate.election.election import Election, boottime
from sluicegate.errors import ConfigError, SluicegateError

__all__ = ["LeaseElection", "LeaseStore"]

_logger = logging.getLogger("sluicegate.election")


class LeaseStore(Protocol):
    """One incarnation of a candidate in a store. Each call has a time-out of its own.

    A call raises `Unavailable` when the store does not answer, `ProtocolError` when it sends
    something else than was asked for, `ConfigError` when it refuses what was configured.
    """

    async def claim(self, known: int, may_reset: bool) -> Outcome:
        """Take the lease if it is free or this incarnation's, with an epoch above `known`.

        A store whose own epoch is lower has lost its data: `may_reset` says to claim all the same.
        """
        ...

    async def renew(self, epoch: int) -> Outcome:
        """Renew the lease of this epoch if it still is this incarnation's."""
        ...

    async def release(self) -> None:
        """Give back what this incarnation may hold."""
        ...

    async def wait(self, seconds: float) -> None:
        """Wait until the lease may be free, for at most this many seconds."""
        ...

    async def close(self) -> None: ...


class LeaseElection(Election):
    """A candidate for the lease in a store. It campaigns once: after `close`, make a new one."""

    def __init__(self, name: str, lease: float, store: LeaseStore) -> None:
        self.name = name
        self._store = store
        self._candidacy = Candidacy(name, lease)
        self._task: asyncio.Task[None] | None = None
        self._trouble: type | None = None  # what was logged last, and has not passed
        self._last_leader: str | None = None  # the last that was logged
        self._signal = ChangeSignal(
            lambda: (self.is_leader, self.epoch, self.leader),
            lambda: self._candidacy.next_change(boottime()),
        )

    @property
    def is_leader(self) -> bool:
        return self._candidacy.is_leader(boottime())

    @property
    def deadline(self) -> float:
        return self._candidacy.deadline

    @property
    def epoch(self) -> int:
        return self._candidacy.epoch

    @property
    def leader(self) -> str | None:
        return self._candidacy.leader(boottime())

    @property
    def confirmed(self) -> float:
        """At this time of `boottime()` or later the lease was this candidate's."""
        return self._candidacy.confirmed

    async def changed(self) -> None:
        await self._signal.wait()

    async def start(self) -> None:
        """Try once to take the lease, and go on in the background.

        A store that does not answer is tried again for ever; one that refuses the user, the
        password or the certificate raises `ConfigError`.
        """
        if self._task is not None:
            raise RuntimeError(f"the election of {self.name!r} has been started already")
        tried: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = self._task = asyncio.create_task(self._run(tried), name=f"election of {self.name}")
        task.add_done_callback(_log_bug)
        try:
            await asyncio.wait({task, tried}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._stop(task)
            raise
        if task.done():
            task.result()  # raises

    async def close(self) -> None:
        if self._task is None:
            return
        self._stop(self._task)
        # Not awaited itself: a close that is cancelled must not cut off the release.
        await asyncio.wait({self._task})

    def _stop(self, task: asyncio.Task[None]) -> None:
        """Stop leading first; the task then releases the lease."""
        self._candidacy.resign()
        self._signal.check()
        task.cancel()

    async def _run(self, tried: "asyncio.Future[None]") -> None:
        try:
            await self._ask(is_first=True)
            if not tried.done():
                tried.set_result(None)
            while True:
                await self._pause()
                await self._ask()
        finally:
            self._candidacy.resign()
            self._signal.check()
            try:
                await self._store.release()
            except SluicegateError as error:
                _logger.warning(
                    "cannot release the lease of %s: %s; it runs out by itself", self.name, error
                )
            finally:
                await self._store.close()

    async def _pause(self) -> None:
        now = boottime()
        seconds = max(self._candidacy.next_at - now, 0.0)
        if self._candidacy.is_leader(now):
            await asyncio.sleep(seconds)
        else:
            await self._store.wait(seconds)

    async def _ask(self, *, is_first: bool = False) -> None:
        """Claim or renew the lease, and take in the outcome."""
        candidacy = self._candidacy
        now = boottime()
        try:
            if candidacy.is_leader(now):
                outcome = await self._store.renew(candidacy.epoch)
            else:
                outcome = await self._store.claim(candidacy.epoch, candidacy.may_reset(now))
        except SluicegateError as error:
            if is_first and isinstance(error, ConfigError):
                raise
            candidacy.fail(boottime())
            self._log_failure(error)
        else:
            if isinstance(outcome, Regressed):
                self._log_regress(outcome)
            elif self._trouble is not None:
                self._trouble = None
                _logger.info("election of %s: the store answers again", self.name)
            candidacy.apply(outcome, boottime())
        self._log_leader()
        self._signal.check()

    def _log_failure(self, error: SluicegateError) -> None:
        if self._trouble is not type(error):  # a Redis that is back may refuse the password
            self._trouble = type(error)
            _logger.warning("election of %s: %s; trying again", self.name, error)

    def _log_regress(self, outcome: Regressed) -> None:
        if self._trouble is not Regressed:
            self._trouble = Regressed
            _logger.error(
                "election of %s: the store has lost data: epoch %d is known here, it has %d; %s",
                *(self.name, self.epoch, outcome.epoch, outcome.advice),
            )

    def _log_leader(self) -> None:
        leader = self.leader
        if leader is not None and leader != self._last_leader:
            self._last_leader = leader
            _logger.info("election of %s: leader is %s, epoch %d", self.name, leader, self.epoch)
        elif leader is None and self._last_leader == self.name:
            self._last_leader = None
            _logger.warning("election of %s: no longer leads", self.name)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name!r}, leader={self.leader!r}, epoch={self.epoch}, "
            f"is_leader={self.is_leader})"
        )


def _log_bug(task: asyncio.Task[None]) -> None:
    if task.cancelled() or (error := task.exception()) is None:
        return
    if not isinstance(error, ConfigError):  # which `start` has raised
        _logger.error("an election ended by a bug", exc_info=error)
