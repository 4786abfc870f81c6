"""Brings the parts of a central together before it listens: limits, ledger, state, epoch.

The order matters. The limits are read first, for a snapshot is taken up into the limits there
are; then the state file; then it leads, with an epoch above all it has had.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluicegate.quota.central.classic.session import classic_sessions
from sluicegate.quota.central.net.connection import CLASSIC
from sluicegate.quota.central.net.connections import Switchboard, epoch_bound
from sluicegate.quota.central.net.tokens import Tokens
from sluicegate.quota.central.sources import open_source
from sluicegate.quota.central.sources.sync import LimitsSync
from sluicegate.quota.central.state import CentralState
from sluicegate.quota.central.state_file import StateFile
from sluicegate.quota.ledger.ledger import Ledger
from sluicegate.quota.wire import Bounds

__all__ = ["Opened", "open_board"]

_logger = logging.getLogger("sluicegate.quota")


@dataclass(frozen=True, slots=True)
class Opened:
    """What was read from the disk."""

    ledger: Ledger
    keeper: LimitsSync
    state_file: StateFile | None
    epoch: int  # of the life before

    def board(self, name: str, tokens: Tokens, max_connections: int, bounds: Bounds) -> Switchboard:
        """A central that leads from now on."""
        now, wall = time.monotonic(), time.time()
        state = CentralState(name, self.ledger, now=now, wall=wall)
        state.lead(now, max(self._believed_epoch(wall) + 1, int(wall)))
        board = Switchboard(
            state, self.keeper, tokens=tokens, max_connections=max_connections, bounds=bounds
        )
        board.register(CLASSIC, classic_sessions(board))
        return board

    def _believed_epoch(self, wall: float) -> int:
        """One from nowhere must not live on from file to file until no number is left."""
        if self.epoch < epoch_bound(wall):
            return self.epoch
        _logger.error("the state file has epoch %d, which is not believed", self.epoch)
        return 0


def open_board(
    limits: Any, make_ledger: Callable[[Any], Ledger], state: str | Path | None
) -> Opened:
    """Read the limits and the state; blocks."""
    source = open_source(limits)
    try:
        entries, _ = source.load()
        ledger = make_ledger(entries)
        keeper = LimitsSync(source, ledger)
        keeper.load_initial()
        file = None if state is None else StateFile(state)
        epoch = 0 if file is None else file.restore(ledger)
    except BaseException:
        source.close()
        raise
    return Opened(ledger, keeper, file, epoch)
