"""The central's heart: assigns in the middle of each slot, and all else that goes by the clock.

    in the middle of a slot   assign, send the quotas, note what the slot was like
    after it, every so often  the state is written: the snapshot at once, the file in a thread
    once a second             connections are looked after
    once a second             the limits' source is asked; it may take its time, or hang: nothing
                              else waits for it

When the machine stood still until after the middle of a slot, its nodes may have stood still as
well, with their reports unsent. What is promised and not reported yet is missing in an assignment:
made at once, it would leave nothing for anybody in the next slot. So after a pause the assignment
waits a moment for the reports of the slot before.

To copy a large ledger for a snapshot stops the loop for a while (0.08 s for a million cells; the
rest is done in a thread). It happens right after an assignment, when few wait for an answer, and
the more time it takes the more seldom: at most a hundredth of all time, and every 10 s at most.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from sluicegate.errors import SluicegateError
from sluicegate.quota.central.net.connections import Switchboard
from sluicegate.quota.central.sources.sync import LimitsSync
from sluicegate.quota.central.state_file import StateFile

__all__ = ["Pulse"]

_logger = logging.getLogger("sluicegate.quota")

_STATE_SECONDS = 10.0
_STATE_PART = 0.01  # of all time
_TURN_SECONDS = 0.003
# In slots: an assignment that is later than the first was held up, and waits for reports at most
# as long as the second.
_HELD_UP, _WAIT_FOR_REPORTS = 0.05, 0.3
_LOOK_SECONDS = 0.005


class Pulse:
    """What a central does without being asked."""

    def __init__(
        self, board: Switchboard, state_file: StateFile | None, tend: Callable[[float], None]
    ) -> None:
        self._board = board
        self._state_file = state_file
        self._tend = tend
        self._next_state = board.now() + _STATE_SECONDS
        self._writing: asyncio.Task[bool] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        if state_file is not None:
            board.metrics.keeps_state()

    def start(self) -> None:
        for beat in (self._slots, self._connections, self._limits):
            self._tasks.append(asyncio.create_task(beat()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._writing is not None:
            await self._writing

    async def save(self) -> bool:
        """Write the state, a last time; an assignment that was begun is finished first.

        False: it could not be written.
        """
        now = self._board.now()
        if self._board.state.due(now) <= now:
            self._board.state.tick(now)
        if self._state_file is None:
            return True
        return await self._write(self._state_file, self._board.state.ledger.begin_snapshot())

    async def _slots(self) -> None:
        board = self._board
        while True:
            now = board.now()
            due = board.state.due(now)
            await asyncio.sleep(max(0.0, due - now))
            if board.now() - due > _HELD_UP * board.state.ledger.slot_seconds:
                await self._wait_for_reports()
            begun = board.now()
            if begun < board.state.due(begun):
                continue  # the timer was early
            try:
                await self._assign(begun)
            except Exception:
                # A fault in one slot must not be the end of all slots.
                _logger.exception("the assignment failed; the next slot is tried again")

    async def _wait_for_reports(self) -> None:
        """Until all nodes that live have reported the slot before, but not for long."""
        board, ledger = self._board, self._board.state.ledger
        slot = board.state.slot(board.now())
        until = board.now() + _WAIT_FOR_REPORTS * ledger.slot_seconds
        while board.now() < until:
            late = set(ledger.live_nodes(slot)).difference(
                ledger.reported(slot - 1), ledger.reported(slot)
            )
            if not late:
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _assign(self, begun: float) -> None:
        """In pieces, so that nobody waits for his answer meanwhile."""
        board = self._board
        worked = 0.0
        at = board.now()
        while board.state.due(begun) <= begun:
            board.deliver(board.state.tick_some(begun))
            if board.now() - at > _TURN_SECONDS:
                worked += board.now() - at
                await asyncio.sleep(0)
                at = board.now()
        worked += board.now() - at
        board.metrics.assigned(worked, board.state.ledger.cells)
        board.metrics.slot_over(board, board.state.slot(begun) - 1)
        self._save(begun)

    async def _connections(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            try:
                self._board.tend()
                self._tend(self._board.now())
            except Exception:
                _logger.exception("the connections could not be looked after")

    async def _limits(self) -> None:
        keeper: LimitsSync = self._board.keeper
        while True:
            await asyncio.sleep(1.0)
            try:
                await keeper.refresh_async()
            except Exception:
                _logger.exception("the limits could not be looked after")

    def _save(self, now: float) -> None:
        """Take a snapshot if it is time for one, and write it while the loop goes on."""
        if self._state_file is None or now < self._next_state:
            return
        if self._writing is not None and not self._writing.done():
            return
        begun = time.perf_counter()
        snapshot = self._board.state.ledger.begin_snapshot()
        took = time.perf_counter() - begun
        self._next_state = now + max(_STATE_SECONDS, took / _STATE_PART)
        self._writing = asyncio.create_task(self._write(self._state_file, snapshot))

    async def _write(self, file: StateFile, snapshot: Callable[[], bytes]) -> bool:
        begun = self._board.now()
        epoch = self._board.state.epoch
        try:
            size = await asyncio.to_thread(lambda: file.write(epoch, snapshot()))
        except (OSError, SluicegateError) as error:
            _logger.error("the state cannot be written to %s: %s", file.path, error)
            self._board.metrics.state_failed()
            return False
        self._board.metrics.state_written(self._board.now() - begun, size)
        return True
