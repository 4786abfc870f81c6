"""How a call is decided: by Redis, by a lease, or here. Without a socket.

Each verb is a *plan*: a generator that yields a `Request`, is sent the replies (or is
thrown `Unavailable` or `ProtocolError`), and returns the answer. `RedisKeyed` carries
plans out in the calling thread, `AsyncRedisKeyed` in a task. All requests of a plan share
one deadline. What may come back:

    a reply         the answer
    NOSCRIPT        the script was flushed, or this is another server: it is sent whole, in
                    the same call; the caller does not notice
    anything else   `Outage` is told, and `on_error` decides here. A server that is busy,
                    loading or full has not denied anything
"""

import math
from collections.abc import Callable, Generator
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from sluicegate._validate import positive, real
from sluicegate.clock import Clock
from sluicegate.errors import ProtocolError, SluicegateError, Unavailable
from sluicegate.limits._decision import Decision
from sluicegate.limits._keyed import Keyed
from sluicegate.limits.limit import Key, LimitLike
from sluicegate.limits.redis._counters import Tally
from sluicegate.limits.redis._leases import Leases
from sluicegate.limits.redis.circuit_breaker import Outage
from sluicegate.limits.redis.key_encoding import ESCAPED, LONGEST, encode
from sluicegate.limits.redis.local_fallback import LocalShare
from sluicegate.limits.redis.metrics import RedisMetrics
from sluicegate.limits.redis.node_count import NAME_LIVES, Census
from sluicegate.limits.redis.script import Script
from sluicegate.redis_client.resp import ErrorReply

__all__ = ["Judge", "Plan", "Request"]

_RETURNS_AT_ONCE = 1000  # leases given back in one request at the close


class Request(NamedTuple):
    """Packed commands for the server that holds `key`, and how many replies they have."""

    key: bytes
    payload: bytes
    replies: int


Answer = TypeVar("Answer")
Plan = Generator[Request, list[Any], Answer]


class Judge:
    """The limits, and all that is known about them here."""

    def __init__(
        self,
        limit: LimitLike,
        algorithm: str,
        mode: str,
        on_error: str,
        nodes: int | None,
        lot: float | None,
        prefix: str,
        clock: Clock | None,
        is_cluster: bool,
    ) -> None:
        limits = Keyed(limit, algorithm=algorithm, clock=clock).limits  # says what is wrong
        _one_of("mode", mode, "exact", "leased")
        _one_of("on_error", on_error, "local", "allow", "deny")
        if not isinstance(prefix, str) or "{" in prefix or "}" in prefix:
            raise ValueError(f"prefix must be a string without braces, got {prefix!r}")
        self.limits = limits
        self.algorithm = algorithm
        self.mode = mode
        self._on_error = on_error
        self._is_cluster = is_cluster
        self._now: Callable[[], float] = monotonic if clock is None else clock.now
        self._script = Script(limits, algorithm, prefix)
        self._most = min(self._script.bursts)
        self.tally = Tally()
        self._outage = Outage()
        self._census = Census(nodes)
        self._share = LocalShare(limits, self._script.bursts, clock)
        self.leases = self._make_leases(lot, clock)
        self._has_usual = mode == "exact" and not is_cluster and self._most >= 1.0

    def _make_leases(self, lot: float | None, clock: Clock | None) -> Leases | None:
        if self.mode == "exact":
            if lot is not None:
                raise ValueError(f"lot is for mode='leased', got {lot!r} in exact mode")
            return None
        if self.algorithm != "token_bucket":
            raise ValueError(
                f"mode='leased' is for algorithm='token_bucket', got {self.algorithm!r}: what is "
                "spent later than it was taken cannot be counted in a window"
            )
        if lot is not None and positive("lot", lot) > self._most:
            raise ValueError(f"lot must be at most {self._most:g}, all that fits; got {lot!r}")
        rates = [limit.rate for limit in self.limits]
        leases = Leases(min(rates), max(rates), self._most, lot, self.tally, clock)
        leases.divide(self._census.nodes)
        return leases

    def usual(self, key: Key, cost: float) -> tuple[int, bytes] | None:
        """What nearly every call is: one command, one reply, without the cost of a plan.

        A ticket and the command for a str and a cost of 1 while all is well, or None. The
        caller counts the answer in `tally`, tells `unanswered`, or makes a plan after all.
        """
        outage = self._outage
        if (
            type(key) is not str
            or cost != 1.0
            or outage.state != "redis"
            or not self._has_usual
            or self._now() >= self._census.due_at
        ):
            return None
        name = key.encode("utf-8", "surrogatepass")
        if name[:1] in ESCAPED or len(name) > LONGEST:
            return None
        return outage.ticket, self._script.usual(name)

    def unanswered(self, ticket: int, key: Key, cost: float, error: SluicegateError) -> bool:
        self._outage.failed(ticket, self._now(), error)
        return self._decide_here(key, cost).allowed

    def allow(self, key: Key, cost: float) -> Plan[bool]:
        cost = self.checked(cost)
        if self.leases is not None:
            return (yield from self._lease(key, cost)).allowed
        name = encode(key)
        ticket = self._outage.ask(self._now())
        if ticket:
            allowed = yield from self._ask(ticket, name, "allow", cost, self._script.read_allow)
            if allowed is not None:
                self.tally.count(allowed, False)
                return allowed
        return self._decide_here(key, cost).allowed

    def check(self, key: Key, cost: float) -> Plan[Decision]:
        cost = self.checked(cost, least=0.0)
        if self.leases is not None and cost > 0.0:
            return (yield from self._check_lease(self.leases, key, cost))
        name = encode(key)
        ticket = self._outage.ask(self._now())
        if ticket:
            read = self._script.read_decision
            decision = yield from self._ask(ticket, name, "check", cost, read)
            if decision is not None:
                if cost > 0.0:
                    self.tally.count(decision.allowed, False)
                return decision
        return self._decide_here(key, cost)

    def refund(self, key: Key, cost: float) -> Plan[None]:
        cost = positive("cost", cost)
        self._check_whole(cost)
        name = encode(key)
        if self.leases is not None:
            self.leases.pardon(key)
        ticket = self._outage.ask(self._now())
        if ticket:
            done = yield from self._ask(ticket, name, "refund", cost, self._script.read_allow)
            if done is not None:
                return
        self._share.refund(key, cost)

    def reset(self, key: Key) -> Plan[None]:
        name = encode(key)
        self._share.reset(key)
        if self.leases is not None:
            self.leases.drop(key)
        (reply,) = yield Request(self._place(name), self._script.forget(name), 1)
        if isinstance(reply, ErrorReply):
            raise reply

    def close(self) -> Plan[None]:
        """Give back what is leased, and leave the census. Nobody hears of a failure."""
        requests: list[Request] = []
        for key, amount in self.leases.take_all() if self.leases is not None else ():
            name = encode(key)
            # Whole where it is the first that a server gets, which may not know the script.
            is_first = self._is_cluster or len(requests) % _RETURNS_AT_ONCE == 0
            payload = self._script.command("refund", name, amount, whole=is_first)
            requests.append(Request(self._place(name), payload, 1))
        if not self._census.is_given:
            nodes_key = self._script.nodes_key
            requests.append(Request(nodes_key, self._script.leave(self._census.name), 1))
        if not self._is_cluster:
            requests = [
                Request(b"", b"".join(one.payload for one in some), len(some))
                for at in range(0, len(requests), _RETURNS_AT_ONCE)
                if (some := requests[at : at + _RETURNS_AT_ONCE])
            ]
        if self._outage.state == "redis":
            try:
                while requests:
                    yield requests.pop()
            except (Unavailable, ProtocolError):
                return

    def metrics(self) -> RedisMetrics:
        tally, outage, leases = self.tally, self._outage, self.leases
        return RedisMetrics(
            state=outage.state,
            calls=tally.allowed + tally.denied,
            allowed=tally.allowed,
            denied=tally.denied,
            decided_locally=tally.decided_locally,
            errors=outage.errors,
            last_error=outage.last_error,
            backoff=outage.left(self._now()),
            nodes=self._census.nodes,
            leases=len(leases) if leases is not None else 0,
            lot=leases.most if leases is not None else 0.0,
        )

    def describe(self) -> str:
        """The inside of a `repr`."""
        limits = "; ".join(map(str, self.limits))
        state = self._outage.state
        trouble = f", last_error={self._outage.last_error!r}" if state != "redis" else ""
        return (
            f"{limits!r}, algorithm={self.algorithm!r}, mode={self.mode!r}, state={state!r}, "
            f"nodes={self._census.nodes}{trouble}"
        )

    def forget(self) -> None:
        """In a forked child: a node of its own, without what the parent has leased."""
        self._outage.renew_lock()
        self._census.rename()
        if self.leases is not None:
            self.leases.clear()

    def checked(self, cost: float, least: float = math.ulp(0.0)) -> float:
        """The cost as a float, where it could ever pass."""
        number = real("cost", cost)
        if not least <= number <= self._most:
            raise ValueError(
                f"cost must be above 0 and at most {self._most:g}, which is all that is let "
                f"through at once; got {cost!r}"
            )
        self._check_whole(number)
        return number

    def _check_whole(self, cost: float) -> None:
        if self.algorithm == "sliding_window" and cost != math.floor(cost):
            raise ValueError(f"cost must be a whole number for sliding_window, got {cost!r}")

    def _ask(
        self,
        ticket: int,
        name: bytes,
        verb: str,
        cost: float,
        read: Callable[[Any], Answer],
        want: float | None = None,
    ) -> Plan[Answer | None]:
        """Ask Redis; None when it did not answer, and the outage has been told."""
        place = self._place(name)
        payload = self._script.command(verb, name, cost, want)
        is_due = self._census.is_due(self._now())
        try:
            if is_due and not self._is_cluster:
                reply, nodes = yield Request(place, payload + self._announcement(), 2)
                self._learn(nodes)
            else:
                (reply,) = yield Request(place, payload, 1)
            if isinstance(reply, ErrorReply) and reply.code == "NOSCRIPT":
                payload = self._script.command(verb, name, cost, want, whole=True)
                (reply,) = yield Request(place, payload, 1)
            if isinstance(reply, ErrorReply):
                raise reply
            answer = read(reply)
        except (Unavailable, ProtocolError) as error:
            self._outage.failed(ticket, self._now(), error)
            return None
        except BaseException:
            self._outage.abandoned(ticket, self._now())
            raise
        self._outage.succeeded(ticket)
        if is_due and self._is_cluster:
            yield from self._announce_apart()
        return answer

    def _place(self, name: bytes) -> bytes:
        """What decides about the server in a cluster; without one, nothing does."""
        return self._script.keys(name)[0] if self._is_cluster else b""

    def _announcement(self) -> bytes:
        return self._script.announce(self._census.name, NAME_LIVES)

    def _announce_apart(self) -> Plan[None]:
        """In a cluster the set of the nodes is on a server of its own. It may fail."""
        try:
            (nodes,) = yield Request(self._script.nodes_key, self._announcement(), 1)
        except (Unavailable, ProtocolError):
            return
        self._learn(nodes)

    def _learn(self, nodes: object) -> None:
        if isinstance(nodes, int):
            self._census.learn(nodes)
            if self.leases is not None:
                self.leases.divide(self._census.nodes)

    def _check_lease(self, leases: Leases, key: Key, cost: float) -> Plan[Decision]:
        allowed = leases.spend(key, cost)
        if allowed is None:
            return (yield from self._lease(key, cost))
        if allowed:
            return Decision(True, self.limits[0], leases.left(key))
        index, retry_after = leases.denial(key)
        return Decision(False, self.limits[index], leases.left(key), retry_after, retry_after)

    def _lease(self, key: Key, cost: float) -> Plan[Decision]:
        """Take the next lot and spend `cost` of it."""
        leases = self.leases
        assert leases is not None
        name = encode(key)
        ticket = self._outage.ask(self._now())
        if not ticket:
            return self._decide_here(key, cost)
        need, want, owns = leases.ask(key, cost)
        try:
            grant = yield from self._ask(ticket, name, "lease", need, self._script.read_grant, want)
        except BaseException:
            if owns:
                leases.give_up(key)
            raise
        if grant is None:
            if owns:
                leases.give_up(key)
            return self._decide_here(key, cost)
        self.tally.count(grant.amount > 0.0, False)
        if grant.amount > 0.0:
            if owns:
                leases.grant(key, cost, want, grant.amount, grant.in_use)
            return Decision(True, self.limits[grant.index], leases.left(key))
        pause = leases.deny(key, cost, grant.index, grant.retry_after, owns)
        return Decision(False, self.limits[grant.index], leases.left(key), pause, pause)

    def _decide_here(self, key: Key, cost: float) -> Decision:
        """Redis is away."""
        if self._on_error == "local":
            self._share.divide(self._census.nodes)
            decision = self._share.check(key, cost)
        elif self._on_error == "allow":
            decision = Decision(True, self.limits[0], self._most)
        else:
            left = max(self._outage.left(self._now()), 0.001)
            decision = Decision(False, self.limits[0], 0.0, left, left)
        if cost > 0.0:
            self.tally.count(decision.allowed, True)
        return decision


def _one_of(name: str, value: str, *known: str) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
