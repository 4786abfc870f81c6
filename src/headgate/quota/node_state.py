"""A whole end node in one object, for those who hold the clock and carry the messages themselves.

It is a `Host` whose memory has no name, so that no other process can share it, and its `Reporter`.
The simulator runs nodes by the thousand this way, and the table of cases drives one; a real node
has the same two parts, in several processes and with sockets around them (`headgate.quota.node`).

Every call is given the node's monotonic time in seconds.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from headgate.limits.checks import whole
from headgate.quota._host import Host
from headgate.quota.protocol import Ack, Quota
from headgate.quota.reporter import Reporter
from headgate.quota.throttled import Throttled

__all__ = ["NodeState"]


class NodeState(Reporter):
    """One end node: quota in hand, counters, and what the centrals know of them."""

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
    ) -> None:
        with tempfile.TemporaryDirectory(prefix="headgate-", dir=_memory()) as folder:
            # Once it is open, the memory needs no name any more.
            host = Host(
                node_id,
                shared=f"{folder}/node",
                fallback=fallback,
                slot_seconds=slot_seconds,
                lease=lease,
                reservation_seconds=reservation_seconds,
                max_users=max_users,
                clock=_Start(now, wall),
            )
            super().__init__(host, centrals, boot=whole("boot", boot, 0))

    def receive(self, now: float, central: str, message: Ack | Quota) -> None:
        """`message` has come from `central`. It serves whatever it hears of."""
        if isinstance(message, Quota):
            for service in message.services:
                self._host.head.add_service(service)
        super().receive(now, central, message)

    def throttle(
        self, now: float, service: str, user: str, expect: Mapping[str, float] | None = None
    ) -> Throttled | None:
        """Whether a request may begin: None, and its expected cost is reserved, or a refusal.

        Without `expect` the cost of each limited resource is the mean of the user's last
        requests. With it, a resource that does not stand in it is not used.
        """
        self._attend(now)
        return self._host.throttle_at(now, service, user, expect)

    def consume(self, now: float, service: str, user: str, amounts: Mapping[str, float]) -> None:
        """A request has ended and cost `amounts`."""
        self._attend(now)
        self._host.consume_at(now, service, user, amounts)

    def offer(
        self, now: float, service: str, user: str, amounts: Mapping[str, float], count: int
    ) -> int:
        """How many of `count` requests pass that come and end one after the other at `now`.

        As a loop of throttle(expect=amounts) and consume(amounts), but in a few steps whatever
        the count, unless requests of the user are running.
        """
        self._attend(now)
        return self._host.offer_at(now, service, user, amounts, count)

    def state(self, now: float, service: str, user: str) -> str:
        """What a user has in this slot: fresh, reused, safe, newcomer, free or fallback."""
        self._attend(now)
        return self._host.state(now, service, user)

    def _attend(self, now: float) -> None:
        if now >= self._turn_at:
            self._turn(now)


class _Start:
    """The clock as it stands when the node is made; later times come with each call."""

    def __init__(self, now: float, wall: float) -> None:
        self._now = now
        self._wall = wall

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
