"""`Scheduler`: the periodic tasks of a central.

    in the middle of a slot   assign, send the quotas, record the metrics of the slot before
    when it is their turn     grant credit to nodes that wait for it: a timer, which an ask may set
    after that, if it is due  write the state: the snapshot at once, the file in a thread
    ten times a second        see how late timers are; nodes ask less often while they are
    once a second             check the liveness of connections
    once a second             read the limits source; it may be slow, or hang: nothing else waits
                              for it

If the machine was paused until after the middle of a slot, its nodes may have been paused as well,
with their reports unsent. Amounts that are promised to classic nodes and not reported yet are
missing in an assignment: made at once, it would leave nothing for them in the next slot. So after a
pause the assignment waits a moment for the reports of the slot before.

Copying a large ledger for a snapshot blocks the loop for a while (0.08 s for a million cells; the
rest is done in a thread). It happens right after an assignment, when few nodes wait for an answer,
and not too often (snapshot_schedule.py).
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable

from sluicegate.errors import SluicegateError
from sluicegate.quota.central.limit_sources.sync import LimitsSync
from sluicegate.quota.central.net.registry import ConnectionRegistry
from sluicegate.quota.central.snapshot_schedule import SnapshotSchedule
from sluicegate.quota.central.state_file import StateFile

__all__ = ["Scheduler"]

_logger = logging.getLogger("sluicegate.quota")

_TURN_SECONDS = 0.003
# In slots: an assignment that is later than `_LATE` waits for reports, but at most for
# `_WAIT_FOR_REPORTS`.
_LATE, _WAIT_FOR_REPORTS = 0.05, 0.3
_POLL_SECONDS = 0.005
_LOOK_SECONDS = 0.1  # a new leader has quotas to send at once, and a standby's slots may move
_DELAY_SECONDS = 0.1  # between two looks at how late timers are


class Scheduler:
    """Runs the periodic tasks of one central."""

    def __init__(
        self,
        registry: ConnectionRegistry,
        state_file: StateFile | None,
        reap_idle: Callable[[float], None],
    ) -> None:
        self._registry = registry
        self._state_file = state_file
        self._reap_idle = reap_idle
        self._snapshots = SnapshotSchedule(registry.now())
        self._writing: asyncio.Task[bool] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._serve_timer: asyncio.TimerHandle | None = None
        self._serve_at = math.inf  # when the timer fires
        if state_file is not None:
            registry.metrics.state_file_opened()

    def start(self) -> None:
        for run in (
            self._run_slots,
            self._run_delay_checks,
            self._run_liveness_checks,
            self._run_limits_sync,
            self._log_warm,
        ):
            self._tasks.append(asyncio.create_task(run()))
        self._registry.asked = self._set_serve_timer

    async def stop(self) -> None:
        self._registry.asked = None
        if self._serve_timer is not None:
            self._serve_timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._writing is not None:
            await self._writing

    async def save(self) -> bool:
        """Write the state a last time; an assignment that is under way is finished first.

        Returns False if it could not be written.
        """
        now = self._registry.now()
        if self._registry.state.assignment_due(now) <= now:
            self._registry.state.tick(now)
        if self._state_file is None:
            return True
        return await self._write(self._state_file, self._registry.state.ledger.begin_snapshot())

    def _set_serve_timer(self) -> None:
        """Wake when the next node that waits is to be served; an ask may have made that earlier."""
        due = self._registry.state.serve_due()
        if self._serve_timer is not None and not due < self._serve_at:
            return  # it fires first, and sets the next one
        if self._serve_timer is not None:
            self._serve_timer.cancel()
        self._serve_timer = None
        self._serve_at = due
        if due < math.inf:
            delay = max(0.0, due - self._registry.now())
            self._serve_timer = asyncio.get_running_loop().call_later(delay, self._serve)

    def _serve(self) -> None:
        self._serve_timer = None
        self._serve_at = math.inf
        try:
            self._registry.deliver(self._registry.state.serve(self._registry.now()))
        except Exception:
            _logger.exception("granting failed; nodes that wait ask again")
            self._registry.state.ledger.drop_asks()
        self._set_serve_timer()

    async def _run_slots(self) -> None:
        registry = self._registry
        while True:
            now = registry.now()
            due = registry.state.assignment_due(now)
            if due > now + _LOOK_SECONDS:
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            await asyncio.sleep(max(0.0, due - now))
            if registry.now() - due > _LATE * registry.state.ledger.slot_seconds:
                await self._wait_for_reports()
            begun = registry.now()
            if begun < registry.state.assignment_due(begun):
                continue  # the timer was early
            try:
                await self._assign(begun)
            except Exception:
                # A fault in one slot must not end all assignments.
                _logger.exception("assignment failed; will retry in the next slot")

    async def _wait_for_reports(self) -> None:
        """Wait until all live nodes have reported the slot before, but not for long."""
        registry, ledger = self._registry, self._registry.state.ledger
        slot = registry.state.slot(registry.now())
        until = registry.now() + _WAIT_FOR_REPORTS * ledger.slot_seconds
        while registry.now() < until:
            late = set(ledger.live_nodes(slot)).difference(
                ledger.reported(slot - 1), ledger.reported(slot)
            )
            if not late:
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _assign(self, begun: float) -> None:
        """Assign in pieces, so that nodes get their answers meanwhile."""
        registry = self._registry
        worked = 0.0
        at = registry.now()
        while registry.state.assignment_due(begun) <= begun:
            registry.deliver(registry.state.tick_some(begun))
            if registry.now() - at > _TURN_SECONDS:
                worked += registry.now() - at
                await asyncio.sleep(0)
                at = registry.now()
        worked += registry.now() - at
        registry.metrics.assigned(worked)
        registry.metrics.record_slot(registry, registry.state.slot(begun) - 1)
        self._save_if_due(begun)

    async def _run_delay_checks(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _DELAY_SECONDS
            await asyncio.sleep(_DELAY_SECONDS)
            self._registry.state.ledger.note_delay(loop.time() - due)

    async def _run_liveness_checks(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            try:
                self._registry.check_liveness()
                self._reap_idle(self._registry.now())
            except Exception:
                _logger.exception("liveness check failed")

    async def _log_warm(self) -> None:
        warm_up = self._registry.warm_up
        await asyncio.sleep(max(0.0, warm_up.due - self._registry.now()))
        _logger.info(
            "central %s is warm: its state is from %s", self._registry.name, warm_up.source
        )

    async def _run_limits_sync(self) -> None:
        limits_sync: LimitsSync = self._registry.limits_sync
        while True:
            await asyncio.sleep(1.0)
            try:
                await limits_sync.refresh_async()
            except Exception:
                _logger.exception("limits sync failed")

    def _save_if_due(self, now: float) -> None:
        """Take a snapshot if one is due, and write it while the loop goes on."""
        ledger, slot = self._registry.state.ledger, self._registry.state.slot(now)
        if self._state_file is None:
            return
        if not self._snapshots.is_due(now, slot, ledger.nodes_changed):
            return
        if self._writing is not None and not self._writing.done():
            return
        begun = time.perf_counter()
        snapshot = ledger.begin_snapshot()
        self._snapshots.begin(now, time.perf_counter() - begun)
        self._writing = asyncio.create_task(self._write(self._state_file, snapshot))

    async def _write(self, file: StateFile, snapshot: Callable[[], bytes]) -> bool:
        begun = self._registry.now()
        epoch = self._registry.state.epoch
        try:
            size = await asyncio.to_thread(lambda: file.write(epoch, snapshot()))
        except (OSError, SluicegateError) as error:
            _logger.error("cannot write state file %s: %s", file.path, error)
            self._registry.metrics.state_failed()
            return False
        wrote = self._registry.now() - begun
        self._snapshots.end(begun, wrote)
        self._registry.metrics.state_written(wrote, size)
        return True
