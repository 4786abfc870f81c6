"""`DecisionEngine`: how a call is decided, by Redis, by a lease or locally. It has no socket.

Each verb is a *plan*: a generator that yields a `RedisRequest`, is sent the replies (or is
thrown `Unavailable` or `ProtocolError`), and returns the answer. `RedisKeyed` runs
plans in the calling thread, `AsyncRedisKeyed` in a task. All requests of a plan share
one deadline. What may come back:

    a reply         the answer
    NOSCRIPT        the script was flushed, or this is another server: it is sent whole, in
                    the same call; the caller does not notice
    anything else   the `CircuitBreaker` counts a failure, and `on_error` decides locally. A
                    server that is busy, loading or full has not denied anything
"""

import math
from collections.abc import Callable, Generator
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from sluicegate._validate import check_number, check_positive
from sluicegate.clock import Clock
from sluicegate.errors import ProtocolError, SluicegateError, Unavailable
from sluicegate.limits._decision import Decision
from sluicegate.limits._keyed import Keyed
from sluicegate.limits.limit import Key, LimitLike
from sluicegate.limits.redis._counters import DecisionCounters
from sluicegate.limits.redis._leases import Leases
from sluicegate.limits.redis.circuit_breaker import CircuitBreaker
from sluicegate.limits.redis.key_encoding import ESCAPED, MAX_KEY_BYTES, encode_key
from sluicegate.limits.redis.local_fallback import LocalFallback
from sluicegate.limits.redis.metrics import RedisMetrics
from sluicegate.limits.redis.node_count import NAME_TTL, NodeCount
from sluicegate.limits.redis.script import Script
from sluicegate.redis_client.resp import ErrorReply

__all__ = ["DecisionEngine", "DecisionPlan", "RedisRequest"]

_RETURNS_AT_ONCE = 1000  # leases given back in one request at the close


class RedisRequest(NamedTuple):
    """Packed commands for the server that holds `key`, and how many replies they have."""

    key: bytes
    payload: bytes
    replies: int


Answer = TypeVar("Answer")
DecisionPlan = Generator[RedisRequest, list[Any], Answer]


class DecisionEngine:
    """Decides calls: has the limits, the breaker, the leases and the local fallback."""

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
        self._max_cost = min(self._script.bursts)
        self.counters = DecisionCounters()
        self._breaker = CircuitBreaker()
        self._node_count = NodeCount(nodes)
        self._fallback = LocalFallback(limits, self._script.bursts, clock)
        self.leases = self._make_leases(lot, clock)
        self._has_fast_path = mode == "exact" and not is_cluster and self._max_cost >= 1.0

    def _make_leases(self, lot: float | None, clock: Clock | None) -> Leases | None:
        if self.mode == "exact":
            if lot is not None:
                raise ValueError(f"lot needs mode='leased', got lot={lot!r} with mode='exact'")
            return None
        if self.algorithm != "token_bucket":
            raise ValueError(
                f"mode='leased' needs algorithm='token_bucket', got {self.algorithm!r}: a window "
                "cannot count permits that are spent later than they were taken"
            )
        if lot is not None and check_positive("lot", lot) > self._max_cost:
            raise ValueError(
                f"lot must be at most {self._max_cost:g}, the largest burst, got {lot!r}"
            )
        rates = [limit.rate for limit in self.limits]
        leases = Leases(min(rates), max(rates), self._max_cost, lot, self.counters, clock)
        leases.set_node_count(self._node_count.nodes)
        return leases

    def fast_path(self, key: Key, cost: float) -> tuple[int, bytes] | None:
        """What nearly every call is: one command, one reply, without the cost of a plan.

        A ticket and the command for a str and a cost of 1 while all is well, or None. The
        caller counts the answer in `counters`, calls `request_failed`, or runs a plan after all.
        """
        breaker = self._breaker
        if (
            type(key) is not str
            or cost != 1.0
            or breaker.state != "redis"
            or not self._has_fast_path
            or self._now() >= self._node_count.due_at
        ):
            return None
        name = key.encode("utf-8", "surrogatepass")
        if name[:1] in ESCAPED or len(name) > MAX_KEY_BYTES:
            return None
        return breaker.ticket, self._script.fast_path(name)

    def request_failed(self, ticket: int, key: Key, cost: float, error: SluicegateError) -> bool:
        self._breaker.failed(ticket, self._now(), error)
        return self._decide_locally(key, cost).allowed

    def allow(self, key: Key, cost: float) -> DecisionPlan[bool]:
        cost = self.check_cost(cost)
        if self.leases is not None:
            return (yield from self._lease(key, cost)).allowed
        name = encode_key(key)
        ticket = self._breaker.request_ticket(self._now())
        if ticket:
            allowed = yield from self._query(ticket, name, "allow", cost, self._script.read_allow)
            if allowed is not None:
                self.counters.count(allowed, False)
                return allowed
        return self._decide_locally(key, cost).allowed

    def check(self, key: Key, cost: float) -> DecisionPlan[Decision]:
        cost = self.check_cost(cost, least=0.0)
        if self.leases is not None and cost > 0.0:
            return (yield from self._check_lease(self.leases, key, cost))
        name = encode_key(key)
        ticket = self._breaker.request_ticket(self._now())
        if ticket:
            read = self._script.read_decision
            decision = yield from self._query(ticket, name, "check", cost, read)
            if decision is not None:
                if cost > 0.0:
                    self.counters.count(decision.allowed, False)
                return decision
        return self._decide_locally(key, cost)

    def refund(self, key: Key, cost: float) -> DecisionPlan[None]:
        cost = check_positive("cost", cost)
        self._check_whole_cost(cost)
        name = encode_key(key)
        if self.leases is not None:
            self.leases.clear_denial(key)
        ticket = self._breaker.request_ticket(self._now())
        if ticket:
            done = yield from self._query(ticket, name, "refund", cost, self._script.read_allow)
            if done is not None:
                return
        self._fallback.refund(key, cost)

    def reset(self, key: Key) -> DecisionPlan[None]:
        name = encode_key(key)
        self._fallback.reset(key)
        if self.leases is not None:
            self.leases.drop(key)
        (reply,) = yield RedisRequest(self._routing_key(name), self._script.delete(name), 1)
        if isinstance(reply, ErrorReply):
            raise reply

    def close(self) -> DecisionPlan[None]:
        """Give back what is leased, and leave the set of nodes. Failures are ignored."""
        requests: list[RedisRequest] = []
        for key, amount in self.leases.drain() if self.leases is not None else ():
            name = encode_key(key)
            # Whole where it is the first that a server gets, which may not know the script.
            is_first = self._is_cluster or len(requests) % _RETURNS_AT_ONCE == 0
            payload = self._script.command("refund", name, amount, whole=is_first)
            requests.append(RedisRequest(self._routing_key(name), payload, 1))
        if not self._node_count.is_given:
            nodes_key = self._script.nodes_key
            requests.append(RedisRequest(nodes_key, self._script.leave(self._node_count.name), 1))
        if not self._is_cluster:
            requests = [
                RedisRequest(b"", b"".join(one.payload for one in some), len(some))
                for at in range(0, len(requests), _RETURNS_AT_ONCE)
                if (some := requests[at : at + _RETURNS_AT_ONCE])
            ]
        if self._breaker.state == "redis":
            try:
                while requests:
                    yield requests.pop()
            except (Unavailable, ProtocolError):
                return

    def metrics(self) -> RedisMetrics:
        counters, breaker, leases = self.counters, self._breaker, self.leases
        return RedisMetrics(
            state=breaker.state,
            calls=counters.allowed + counters.denied,
            allowed=counters.allowed,
            denied=counters.denied,
            decided_locally=counters.decided_locally,
            errors=breaker.errors,
            last_error=breaker.last_error,
            backoff=breaker.backoff_left(self._now()),
            nodes=self._node_count.nodes,
            leases=len(leases) if leases is not None else 0,
            lot=leases.max_lot if leases is not None else 0.0,
        )

    def describe(self) -> str:
        """The inside of a `repr`."""
        limits = "; ".join(map(str, self.limits))
        state = self._breaker.state
        trouble = f", last_error={self._breaker.last_error!r}" if state != "redis" else ""
        return (
            f"{limits!r}, algorithm={self.algorithm!r}, mode={self.mode!r}, state={state!r}, "
            f"nodes={self._node_count.nodes}{trouble}"
        )

    def after_fork(self) -> None:
        """In a forked child: a node of its own, without what the parent has leased."""
        self._breaker.renew_lock()
        self._node_count.rename()
        if self.leases is not None:
            self.leases.clear()

    def check_cost(self, cost: float, least: float = math.ulp(0.0)) -> float:
        """The cost as a float, where it could ever pass."""
        number = check_number("cost", cost)
        if not least <= number <= self._max_cost:
            raise ValueError(
                f"cost must be above 0 and at most {self._max_cost:g}, the largest amount that can "
                f"pass at once, got {cost!r}"
            )
        self._check_whole_cost(number)
        return number

    def _check_whole_cost(self, cost: float) -> None:
        if self.algorithm == "sliding_window" and cost != math.floor(cost):
            raise ValueError(f"cost must be a whole number for sliding_window, got {cost!r}")

    def _query(
        self,
        ticket: int,
        name: bytes,
        verb: str,
        cost: float,
        read: Callable[[Any], Answer],
        want: float | None = None,
    ) -> DecisionPlan[Answer | None]:
        """Ask Redis; None when it did not answer, which the breaker has counted as a failure."""
        place = self._routing_key(name)
        payload = self._script.command(verb, name, cost, want)
        is_due = self._node_count.is_due(self._now())
        try:
            if is_due and not self._is_cluster:
                reply, nodes = yield RedisRequest(place, payload + self._announcement(), 2)
                self._update_node_count(nodes)
            else:
                (reply,) = yield RedisRequest(place, payload, 1)
            if isinstance(reply, ErrorReply) and reply.code == "NOSCRIPT":
                payload = self._script.command(verb, name, cost, want, whole=True)
                (reply,) = yield RedisRequest(place, payload, 1)
            if isinstance(reply, ErrorReply):
                raise reply
            answer = read(reply)
        except (Unavailable, ProtocolError) as error:
            self._breaker.failed(ticket, self._now(), error)
            return None
        except BaseException:
            self._breaker.cancelled(ticket, self._now())
            raise
        self._breaker.succeeded(ticket)
        if is_due and self._is_cluster:
            yield from self._announce_separately()
        return answer

    def _routing_key(self, name: bytes) -> bytes:
        """The key that decides about the server in a cluster; b"" without a cluster."""
        return self._script.keys(name)[0] if self._is_cluster else b""

    def _announcement(self) -> bytes:
        return self._script.announce(self._node_count.name, NAME_TTL)

    def _announce_separately(self) -> DecisionPlan[None]:
        """In a cluster the set of the nodes is on a server of its own. It may fail."""
        try:
            (nodes,) = yield RedisRequest(self._script.nodes_key, self._announcement(), 1)
        except (Unavailable, ProtocolError):
            return
        self._update_node_count(nodes)

    def _update_node_count(self, nodes: object) -> None:
        if isinstance(nodes, int):
            self._node_count.update(nodes)
            if self.leases is not None:
                self.leases.set_node_count(self._node_count.nodes)

    def _check_lease(self, leases: Leases, key: Key, cost: float) -> DecisionPlan[Decision]:
        allowed = leases.spend(key, cost)
        if allowed is None:
            return (yield from self._lease(key, cost))
        if allowed:
            return Decision(True, self.limits[0], leases.left(key))
        index, retry_after = leases.denial(key)
        return Decision(False, self.limits[index], leases.left(key), retry_after, retry_after)

    def _lease(self, key: Key, cost: float) -> DecisionPlan[Decision]:
        """Take the next lot and spend `cost` of it."""
        leases = self.leases
        assert leases is not None
        name = encode_key(key)
        ticket = self._breaker.request_ticket(self._now())
        if not ticket:
            return self._decide_locally(key, cost)
        need, want, owns = leases.begin_request(key, cost)
        try:
            grant = yield from self._query(
                ticket, name, "lease", need, self._script.read_grant, want
            )
        except BaseException:
            if owns:
                leases.abort(key)
            raise
        if grant is None:
            if owns:
                leases.abort(key)
            return self._decide_locally(key, cost)
        self.counters.count(grant.amount > 0.0, False)
        if grant.amount > 0.0:
            if owns:
                leases.grant(key, cost, want, grant.amount, grant.in_use)
            return Decision(True, self.limits[grant.index], leases.left(key))
        pause = leases.deny(key, cost, grant.index, grant.retry_after, owns)
        return Decision(False, self.limits[grant.index], leases.left(key), pause, pause)

    def _decide_locally(self, key: Key, cost: float) -> Decision:
        """Decide by `on_error`, while Redis is unavailable."""
        if self._on_error == "local":
            self._fallback.set_node_count(self._node_count.nodes)
            decision = self._fallback.check(key, cost)
        elif self._on_error == "allow":
            decision = Decision(True, self.limits[0], self._max_cost)
        else:
            left = max(self._breaker.backoff_left(self._now()), 0.001)
            decision = Decision(False, self.limits[0], 0.0, left, left)
        if cost > 0.0:
            self.counters.count(decision.allowed, True)
        return decision


def _one_of(name: str, value: str, *known: str) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
