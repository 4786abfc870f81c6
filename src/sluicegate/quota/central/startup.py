"""Start-up of a central: reads the limits and the state file, and builds its parts from them.

The order matters. The limits are read first, because a snapshot is restored into the limits in
force; then the state file; then the central leads, with an epoch above all it has had, or is a
standby until it is elected.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluicegate.quota.central.classic.session import classic_session_factory
from sluicegate.quota.central.leadership import Leadership, SoleLeadership, epoch_bound
from sluicegate.quota.central.limit_sources import open_source
from sluicegate.quota.central.limit_sources.sync import LimitsSync
from sluicegate.quota.central.member import Member
from sluicegate.quota.central.net.connection import CLASSIC
from sluicegate.quota.central.net.registry import ConnectionRegistry
from sluicegate.quota.central.net.tokens import Tokens
from sluicegate.quota.central.state import CentralState
from sluicegate.quota.central.state_file import StateFile
from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.wire import Bounds

__all__ = ["CentralParts", "load_parts"]

_logger = logging.getLogger("sluicegate.quota")


@dataclass(frozen=True, slots=True)
class CentralParts:
    """What a central is built from: its limits, and its state of before."""

    ledger: Ledger
    limits_sync: LimitsSync
    state_file: StateFile | None
    previous_epoch: int  # of the state file; 0: none

    def build_registry(
        self,
        name: str,
        tokens: Tokens,
        max_connections: int,
        bounds: Bounds,
        member: Member | None = None,
    ) -> ConnectionRegistry:
        """Create the registry of a central that leads from now on, or is a member of an election.

        That one leads when it is elected.
        """
        now, wall = time.monotonic(), time.time()
        epoch = self._plausible_epoch(wall)
        leadership: Leadership
        if member is None:
            state = CentralState(name, self.ledger, now=now, wall=wall)
            state.lead(now, max(epoch + 1, int(wall)))
            leadership = SoleLeadership(state)
        else:
            state = CentralState(name, self.ledger, now=now, wall=wall, has_lease=member.has_lease)
            member.floor.hear(epoch)
            leadership = member.lead(state)
        registry = ConnectionRegistry(
            state,
            self.limits_sync,
            leadership,
            tokens=tokens,
            max_connections=max_connections,
            bounds=bounds,
        )
        registry.register(CLASSIC, classic_session_factory(registry))
        if member is not None:
            member.serve(registry)
        return registry

    def _plausible_epoch(self, wall: float) -> int:
        """A corrupt epoch must not live on from file to file until no number is left."""
        bound = epoch_bound(wall)
        if self.previous_epoch < bound:
            return self.previous_epoch
        _logger.error(
            "ignoring epoch %d of the state file: expected less than %d", self.previous_epoch, bound
        )
        return 0


def load_parts(
    limits: Any, make_ledger: Callable[[Any], Ledger], state: str | Path | None
) -> CentralParts:
    """Read the limits and the state; blocks."""
    source = open_source(limits)
    try:
        entries, _ = source.load()
        ledger = make_ledger(entries)
        limits_sync = LimitsSync(source, ledger)
        limits_sync.load_initial()
        file = None if state is None else StateFile(state)
        epoch = 0 if file is None else file.restore(ledger)
        if epoch:
            _logger.info("state restored from %s, epoch %d", state, epoch)
    except BaseException:
        source.close()
        raise
    return CentralParts(ledger, limits_sync, file, epoch)
