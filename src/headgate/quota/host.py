"""What all workers of a service on one host share: a stand-in of one process, over `NodeState`.

`Host` decides and counts; `Reporter` is for the one process that talks to the centrals.
"""

import os
import threading
import time
from collections.abc import Mapping, Sequence

from headgate.clock import Clock, SystemClock
from headgate.limits.shared.file import path_of
from headgate.quota.node_state import NodeState, NodeStatus
from headgate.quota.protocol import Ack, Ask, Quota, Report
from headgate.quota.report_book import ReportBook

__all__ = ["Host", "Reporter"]


class Host:
    """Decides on requests and counts what they cost; safe for threads."""

    def __init__(
        self,
        node_id: str,
        services: Sequence[str],
        *,
        shared: str | None = None,
        fallback: Mapping[str, float] | None = None,
        slot_seconds: float = 1.0,
        lease: int = 3,
        reservation_seconds: float = 60.0,
        max_users: int = 100_000,
        clock: Clock | None = None,
    ) -> None:
        self.path: str | None = None if shared is None else str(path_of(shared))
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._unlock)
        self._state = NodeState(
            node_id,
            int(time.time() * 1000),
            ("nobody",),
            now=self.now(),
            wall=time.time() if clock is None else clock.now(),
            slot_seconds=slot_seconds,
            lease=lease,
            fallback=fallback,
            reservation_seconds=reservation_seconds,
            max_users=max_users,
        )

    def _unlock(self) -> None:
        self._lock = threading.Lock()

    def now(self) -> float:
        return self._clock.now()

    def allows(self, service: str, user: str, expect: Mapping[str, float] | None = None) -> bool:
        with self._lock:
            return self._state.throttle(self.now(), service, user, expect) is None

    def throttle(self, service: str, user: str, expect: Mapping[str, float] | None = None) -> None:
        with self._lock:
            refused = self._state.throttle(self.now(), service, user, expect)
        if refused is not None:
            raise refused

    def consume(self, service: str, user: str, amounts: Mapping[str, float]) -> None:
        with self._lock:
            self._state.consume(self.now(), service, user, amounts)

    @property
    def has_asks(self) -> bool:
        return bool(self._state._asking)

    def close(self) -> None:
        """Nothing is open."""

    def reporter(self, centrals: Sequence[str]) -> "Reporter":
        with self._lock:
            state = self._state
            state._centrals = tuple(centrals)
            state._book = ReportBook(state.node_id, state.boot, state._centrals)
            state._reported = -1
            for users in state._users.values():
                for tally in users.values():
                    state._book.mark(tally)
        return Reporter(self)


class Reporter:
    """The side of a host that talks to the centrals; no I/O."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def outgoing(self, now: float) -> list[tuple[str, Report | Ask]]:
        with self._host._lock:
            return self._host._state.outgoing(now)

    def due(self, now: float) -> float:
        with self._host._lock:
            return self._host._state.due(now)

    def receive(self, now: float, central: str, message: Ack | Quota) -> None:
        with self._host._lock:
            self._host._state.receive(now, central, message)

    def leave(self, now: float) -> list[tuple[str, Report]]:
        with self._host._lock:
            return self._host._state.leave(now)

    def status(self, now: float) -> NodeStatus:
        with self._host._lock:
            return self._host._state.status(now)
