"""Start-up of a central: reads the limits and the state file, and builds its parts from them.

The order matters. The limits are read first, because a snapshot is restored into the limits in
force; then the state file, or the state of a peer if that is newer; then the central leads, with an
epoch above all it has had, or is a standby until it is elected.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluicegate.errors import ConfigError
from sluicegate.quota.central.classic.session import classic_session_factory
from sluicegate.quota.central.leadership import Leadership, SoleLeadership, epoch_bound
from sluicegate.quota.central.limit_sources import open_source
from sluicegate.quota.central.limit_sources.sync import LimitsSync
from sluicegate.quota.central.member import Member
from sluicegate.quota.central.net.connection import CLASSIC
from sluicegate.quota.central.net.registry import ConnectionRegistry
from sluicegate.quota.central.net.tokens import Tokens
from sluicegate.quota.central.peer_state import PeerState
from sluicegate.quota.central.state import CentralState
from sluicegate.quota.central.state_file import StateFile
from sluicegate.quota.central.warm_up import WarmUp
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
    previous_epoch: int  # of the state that was restored; 0: none
    restored_from: str | None = None  # None: nothing was

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
            WarmUp(now, self.ledger.slot_seconds, self.restored_from),
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
    limits: Any,
    make_ledger: Callable[[Any], Ledger],
    state: str | Path | None,
    fetch: Callable[[], PeerState | None] = lambda: None,
) -> CentralParts:
    """Read the limits and the state; blocks. `fetch` asks the peers for theirs."""
    source = open_source(limits)
    try:
        entries, _ = source.load()
        ledger = make_ledger(entries)
        limits_sync = LimitsSync(source, ledger)
        limits_sync.load_initial()
        file = None if state is None else StateFile(state)
        epoch, restored_from = _restore(ledger, file, fetch())
    except BaseException:
        source.close()
        raise
    return CentralParts(ledger, limits_sync, file, epoch, restored_from)


def _restore(
    ledger: Ledger, file: StateFile | None, peer: PeerState | None
) -> tuple[int, str | None]:
    """Restore the newest state there is. Returns its epoch and where it comes from."""
    own_epoch, own_slot = (0, -1) if file is None else file.newest()
    if peer is not None and peer.slot > own_slot:
        if file is not None:
            file.prepare()
        try:
            ledger.restore(peer.snapshot)
        except ConfigError as error:  # of another version, or with slots of another length
            _logger.error("cannot use the state of peer %s: %s", peer.peer, error)
        else:
            _logger.info("state taken from peer %s, epoch %d", peer.peer, peer.epoch)
            return max(own_epoch, peer.epoch), f"peer {peer.peer}"
    epoch = 0 if file is None else file.restore(ledger)
    if epoch:
        assert file is not None
        _logger.info("state restored from %s, epoch %d", file.path, epoch)
    return epoch, "state file" if ledger.has_nodes else None
