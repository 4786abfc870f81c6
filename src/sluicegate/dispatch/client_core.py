"""`ClientCore`: the calls of one client that wait for a response, without I/O.

A call is *new* until it was sent, then *sent*, then *queued* once Redis has told its id. It ends
with the first of: a response, a refusal, a failure, its deadline, or its caller's cancellation.
Whatever comes for it later is ignored. At its deadline it is *expiring* for a moment: Redis is told
to cancel it, and the answer says where the time went, or that the response is on its way. A call
that is not queued by then has that moment, too: only a Redis that is silent for it as well is
taken to be unavailable.

Deadlines are in seconds of the caller's monotonic clock. One timer serves all calls:
`next_deadline` says for when.
"""

from heapq import heapify, heappop, heappush
from typing import Any, Generic, NamedTuple, TypeVar

from sluicegate.dispatch.errors import Busy, Duplicate, HandlerFailed, NoWorkers, TimedOut
from sluicegate.dispatch.keys import TaskId
from sluicegate.dispatch.messages import BUSY, DUPLICATE, Cancelled, Enqueued, Outgoing
from sluicegate.dispatch.wire import BUSY as BUSY_STATUS
from sluicegate.dispatch.wire import FAILED, OK, TIMED_OUT, Response
from sluicegate.errors import SluicegateError, Unavailable

__all__ = ["Call", "ClientCore", "Expired"]

GRACE = 0.02  # seconds past the deadline in which Redis may tell where the time went

_Waiter = TypeVar("_Waiter")


class Call(Generic[_Waiter]):
    """One call. `waiter` is whatever the shell completes: a future."""

    __slots__ = ("began_at", "correlation_id", "deadline", "id", "key", "outgoing", "waiter")

    def __init__(
        self,
        correlation_id: str,
        outgoing: Outgoing,
        key: str,
        began_at: float,
        deadline: float,
        waiter: _Waiter,
    ) -> None:
        self.correlation_id = correlation_id
        self.outgoing = outgoing
        self.key = key  # the caller's idempotency key, or empty
        self.began_at = began_at
        self.deadline = deadline
        self.waiter = waiter
        self.id: bytes | None = None

    @property
    def task(self) -> TaskId | None:
        return None if self.id is None else (self.outgoing.stream, self.id)


class Outcome(NamedTuple):
    """What a call's waiter is to be told: `error` if there is one, or else `result`."""

    waiter: Any
    result: Any
    error: SluicegateError | None


class Expired(NamedTuple):
    """What to do after `expire` or `close`: complete some calls, and cancel some in Redis."""

    outcomes: list[Outcome]
    cancel: list[Call[Any]]


class ClientCore(Generic[_Waiter]):
    def __init__(self, queue: str) -> None:
        self.queue = queue
        self._calls: dict[str, Call[_Waiter]] = {}
        self._deadlines: list[tuple[float, str]] = []  # a heap, in which ended calls stay a while
        self._expiring: dict[str, float] = {}  # until when each may still be answered
        self._to_cancel: set[str] = set()  # given up before Redis has told their ids

    @property
    def waiting(self) -> int:
        return len(self._calls)

    def add(self, call: Call[_Waiter]) -> None:
        self._calls[call.correlation_id] = call
        heappush(self._deadlines, (call.deadline, call.correlation_id))
        if len(self._deadlines) > 2 * len(self._calls) + 1024:
            self._deadlines = [one for one in self._deadlines if one[1] in self._calls]
            heapify(self._deadlines)

    def next_deadline(self) -> float | None:
        """When `expire` is to be called next."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][1] not in self._calls:
            heappop(deadlines)
        first = deadlines[0][0] if deadlines else None
        if self._expiring:
            grace = min(self._expiring.values())
            return grace if first is None else min(first, grace)
        return first

    def enqueued(
        self, calls: list[Call[_Waiter]], reply: Enqueued
    ) -> tuple[list[Outcome], list[Call[_Waiter]]]:
        """Redis has taken or refused calls. Returns refusals, and calls to cancel after all."""
        outcomes = []
        cancel = []
        for call, result in zip(calls, reply.results, strict=True):
            is_given_up = call.correlation_id in self._to_cancel
            self._to_cancel.discard(call.correlation_id)
            if isinstance(result, bytes):
                call.id = result
                if is_given_up or call.correlation_id in self._expiring:
                    cancel.append(call)
            elif call.correlation_id in self._calls:
                outcomes.append(self._end(call, error=self._refusal(call, result, reply)))
        return outcomes, cancel

    def failed(self, calls: list[Call[_Waiter]], error: SluicegateError) -> list[Outcome]:
        """Calls could not be sent, or it is not known whether they were."""
        outcomes = []
        for call in calls:
            if call.correlation_id in self._calls:
                outcomes.append(self._end(call, error=_copy(error)))
            self._to_cancel.discard(call.correlation_id)
        return outcomes

    def respond(self, response: Response) -> Outcome | None:
        """A response came; None if its call has ended."""
        call = self._calls.get(str(response.correlation_id))
        if call is None:
            return None
        if response.status == OK:
            return self._end(call, response.data)
        return self._end(call, error=self._error_of(call, response))

    def give_up(self, call: Call[_Waiter]) -> bool:
        """The caller waits no more. Whether its request must be cancelled in Redis now."""
        if self._calls.pop(call.correlation_id, None) is None:
            return False
        self._expiring.pop(call.correlation_id, None)
        if call.id is None:
            self._to_cancel.add(call.correlation_id)
            return False
        return True

    def expire(self, now: float, unavailable: Unavailable | None) -> Expired:
        """Deadlines have passed. `unavailable`: why no response can come, if so."""
        outcomes = []
        cancel = []
        for correlation_id in [one for one, until in self._expiring.items() if until <= now]:
            call = self._calls[correlation_id]
            if call.id is None:
                late = Unavailable(f"Redis did not accept a request to {self.queue!r} in time")
                outcomes.append(self._end(call, error=late))
                self._to_cancel.add(correlation_id)
            else:
                outcomes.append(self._end(call, error=self._timed_out(call, now, 0.0)))
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now:
            correlation_id = heappop(deadlines)[1]
            if correlation_id not in self._calls:
                continue
            call = self._calls[correlation_id]
            if unavailable is not None:
                outcomes.append(self._end(call, error=_copy(unavailable)))
            else:
                self._expiring[call.correlation_id] = now + GRACE
                if call.id is not None:
                    cancel.append(call)
        return Expired(outcomes, cancel)

    def cancelled(
        self, now: float, calls: list[Call[_Waiter]], reply: list[Cancelled]
    ) -> list[Outcome]:
        """Redis has cancelled requests: those that it had ended before get their response."""
        outcomes = []
        for call, (where, had) in zip(calls, reply, strict=True):
            if where and call.correlation_id in self._calls:
                outcomes.append(self._end(call, error=self._timed_out(call, now, had)))
        return outcomes

    def close(self, error: SluicegateError) -> Expired:
        """End all calls. Those whose ids are not known yet are cancelled by `enqueued`."""
        calls = list(self._calls.values())
        self._to_cancel.update(call.correlation_id for call in calls if call.id is None)
        return Expired(
            [self._end(call, error=_copy(error)) for call in calls],
            [call for call in calls if call.id is not None],
        )

    def _end(
        self, call: Call[_Waiter], result: Any = None, error: SluicegateError | None = None
    ) -> Outcome:
        del self._calls[call.correlation_id]
        self._expiring.pop(call.correlation_id, None)
        return Outcome(call.waiter, result, error)

    def _refusal(self, call: Call[_Waiter], code: int, reply: Enqueued) -> SluicegateError:
        if code == BUSY:
            return Busy(self.queue, reply.length, reply.limit)
        if code == DUPLICATE:
            return Duplicate(self.queue, call.key)
        return NoWorkers(self.queue)

    def _timed_out(self, call: Call[_Waiter], now: float, ran: float) -> TimedOut:
        total = max(now, call.deadline) - call.began_at
        ran = min(ran, total)
        return TimedOut(self.queue, total - ran, ran)

    def _dropped(self, call: Call[_Waiter], data: dict[str, Any]) -> TimedOut:
        """A worker has ended a call before its deadline, or after it."""
        waited, ran, needed = (_seconds(data, name) for name in ("waited", "ran", "needed"))
        left = max(call.deadline - call.began_at - waited - ran, 0.0) if "waited" in data else 0.0
        return TimedOut(self.queue, waited, ran, left, needed)

    def _error_of(self, call: Call[_Waiter], response: Response) -> SluicegateError:
        data = response.data if isinstance(response.data, dict) else {}
        if response.status == TIMED_OUT:
            return self._dropped(call, data)
        if response.status == BUSY_STATUS:
            return Busy(self.queue, _whole(data, "length"), _whole(data, "limit"))
        if response.status == FAILED:
            error = str(data.get("error", response.data))
            return HandlerFailed(self.queue, error, str(data.get("traceback", "")))
        return HandlerFailed(self.queue, f"invalid response: unknown status {response.status!r}")


def _seconds(data: dict[str, Any], name: str) -> float:
    value = data.get(name)
    # The upper bound is beyond any time-out, and below what a float cannot hold.
    return float(value) if isinstance(value, int | float) and 0 <= value <= 1e9 else 0.0


def _whole(data: dict[str, Any], name: str) -> int:
    value = data.get(name)
    return value if isinstance(value, int) else 0


def _copy(error: SluicegateError) -> SluicegateError:
    # One of its own for each: a shared one would gather the tracebacks of all.
    return type(error)(*error.args)
