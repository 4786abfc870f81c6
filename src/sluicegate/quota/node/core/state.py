"""`NodeState`: an end node in one object, without threads and sockets.

The caller holds the clock and carries the messages. It is a `UserTable` whose memory has no name,
so that no other process can share it, and its `Reporter`. The simulator runs nodes by the thousand
this way, and tests/quota/node/core/cases.json drives one; a real node has the same two parts, in
several processes and with sockets around them (`sluicegate.quota.node`).

Every call is given the node's monotonic time in seconds.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from sluicegate._validate import check_whole
from sluicegate.quota.errors import Throttled
from sluicegate.quota.messages import Ack, Ask, Quota, Report
from sluicegate.quota.node.core._user_table import Ticket, UserTable
from sluicegate.quota.node.core.reporter import NodeStatus, Reporter

__all__ = ["NodeState"]


class NodeState:
    """One end node: quotas, counters, and which central has acknowledged them."""

    def __init__(
        self,
        node_id: str,
        boot: int,
        centrals: Sequence[str],
        *,
        now: float,
        wall: float,
        slot_seconds: float = 1.0,
        lease: int = 3,
        fallback: Mapping[str, float] | None = None,
        reservation_seconds: float = 60.0,
        max_users: int = 10_000,
        max_services: int = 64,
    ) -> None:
        with tempfile.TemporaryDirectory(prefix="sluicegate-", dir=_memory_folder()) as folder:
            # Once it is open, the memory needs no name any more.
            self._user_table = UserTable(
                node_id,
                shared=f"{folder}/node",
                fallback=fallback,
                slot_seconds=slot_seconds,
                lease=lease,
                reservation_seconds=reservation_seconds,
                max_users=max_users,
                max_services=max_services,
                clock=_StartClock(now, wall),
            )
        self._reporter = Reporter(self._user_table, centrals, boot=check_whole("boot", boot, 0))

    # Requests

    def throttle(
        self,
        now: float,
        service: str,
        user: str,
        expect: Mapping[str, float] | None = None,
        *,
        can_wait: bool = False,
        is_retry: bool = False,
        ticket: Ticket | None = None,
    ) -> Throttled | Literal[False] | None:
        """Whether a request may begin: None, and its expected cost is reserved, or a refusal.

        Without `expect` the cost of each limited resource is the mean of the user's last
        requests. With it, a resource that does not stand in it is not used. With `can_wait`,
        False: the leader is asked, and its answer may come within `wait_seconds`; then call
        again, with `is_retry`.
        """
        self._reporter.advance_to(now)
        return self._user_table.throttle_at(now, service, user, expect, can_wait, is_retry, ticket)

    @property
    def wait_seconds(self) -> float:
        """How long a request may wait for an answer of the leader; 0 while none is heard."""
        return self._user_table.header.wait_seconds

    def consume(
        self,
        now: float,
        service: str,
        user: str,
        amounts: Mapping[str, float],
        ticket: Ticket | None = None,
    ) -> None:
        """A request has ended and cost `amounts`."""
        self._reporter.advance_to(now)
        self._user_table.consume_at(now, service, user, amounts, ticket)

    def offer(
        self,
        now: float,
        service: str,
        user: str,
        amounts: Mapping[str, float],
        count: int,
        *,
        can_wait: bool = False,
        is_retry: bool = False,
    ) -> int:
        """How many of `count` requests pass that come and end one after the other at `now`.

        As a loop of throttle(expect=amounts) and consume(amounts), but in a few steps whatever
        the count, unless requests of the user are running. With `can_wait`, ~n if n have passed
        and the others are to wait.
        """
        self._reporter.advance_to(now)
        return self._user_table.offer_at(now, service, user, amounts, count, can_wait, is_retry)

    def state(self, now: float, service: str, user: str) -> str:
        """What a user has in this slot: fresh, reused, safe, newcomer, free or fallback."""
        self._reporter.advance_to(now)
        return self._user_table.state(now, service, user)

    # Messages

    def receive(self, now: float, central: str, message: Ack | Quota) -> None:
        """`message` has come from `central`. The node serves whatever it hears of."""
        if isinstance(message, Quota):
            for service in message.services:
                self._user_table.header.add_service(service)
        self._reporter.receive(now, central, message)

    def lose_connection(self, now: float, central: str) -> None:
        """The connection to `central` has ended."""
        self._reporter.lose_connection(now, central)

    def outgoing(self, now: float) -> list[tuple[str, Report | Ask]]:
        """What is to be sent now, and to which central."""
        return self._reporter.outgoing(now)

    def due(self, now: float) -> float:
        """When to call `outgoing` next, at the latest; `now` if it has messages already."""
        return self._reporter.due(now)

    def leave(self, now: float) -> list[tuple[str, Report]]:
        """The last reports: the node stops, and hands back what it was promised."""
        return self._reporter.leave(now)

    # Looking

    @property
    def boot(self) -> int:
        """The boot number of the counters."""
        return self._reporter.boot

    @property
    def epoch(self) -> int:
        """The highest leadership seen; -1: none yet."""
        return self._reporter.epoch

    def status(self, now: float) -> NodeStatus:
        """The status of the node."""
        return self._reporter.status(now)

    def slot_and_window(self, now: float) -> tuple[int, int]:
        """The slot that requests are counted in, and which of the node's own windows it is."""
        return self._reporter.slot_and_window(now)

    def __repr__(self) -> str:
        return repr(self._reporter).replace("Reporter", "NodeState", 1)


class _StartClock:
    """The clock at the time the node is made; later times come with each call."""

    def __init__(self, now: float, wall: float) -> None:
        self._now = now
        self._wall = wall

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
