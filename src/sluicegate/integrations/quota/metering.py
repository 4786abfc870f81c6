"""`QuotaGate` and `Meter`: a node's quota in front of a web application.

No framework, no I/O; `asgi.py` and `wsgi.py` are the shells.

    gate = QuotaGate(node, service="front", user="x-user")
    meter = gate.begin(request)              Throttled, or the request may begin
    meter = await gate.begin_async(request)  the same in a task
    meter.up += ...                          what the shell measures
    meter.add("database_read", 3)            what the application knows
    meter.finish()                           once, whatever became of the request

A request that finds no credit waits for the leader's answer, as long as one takes or `wait` says.

What is measured: `requests`, 1 for each; `traffic_up`, bytes of the request's body; and
`traffic_down`, bytes of the answer's body. Header lines are not counted: servers add and drop
some on the way, so the application's side never sees what goes over the wire. A refused
request costs nothing. All is booked when the request ends, also when the application fails or
the client has gone; a long stream is booked at its end.

A node that cannot count is no reason to turn anybody away: whatever it raises beside Throttled is
logged, once a minute, and the request goes on.

`add` finds the meter of the current request, in its task or thread; a function deep in
the application needs no request object for it.
"""

import contextvars
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Required, TypeAlias, TypedDict

from sluicegate.integrations.http.keys import bounded, by_address, header_name
from sluicegate.integrations.http.policy import as_string, whole_seconds
from sluicegate.integrations.http.request import Request
from sluicegate.integrations.http.responses import PROBLEM, TITLE, Field, RefusalResponse
from sluicegate.integrations.quota.log_throttle import LogThrottle
from sluicegate.quota import Node, Throttled, Ticket
from sluicegate.quota.node.core.waiting import check_wait

__all__ = [
    "MEASURED",
    "METER_KEY",
    "Meter",
    "QuotaBody",
    "QuotaGate",
    "QuotaOptions",
    "UserFunction",
    "add",
    "current_meter",
    "throttled_problem",
    "user_of_header",
]

METER_KEY = "sluicegate.quota"  # where a scope or environ has its meter
MEASURED = ("requests", "traffic_up", "traffic_down")

UserFunction: TypeAlias = Callable[[Request], str | None]
QuotaBody: TypeAlias = Callable[[Throttled], tuple[str, bytes]]

_MAX_NAME_BYTES = 200  # bytes of a name


class Meter:
    """What one request has cost so far. `up` and `down` are bytes of bodies.

    `ticket` is what the request has reserved; None: nothing, as it passed without a decision.
    """

    __slots__ = (
        "_added",
        "_consume",
        "_is_over",
        "_log_throttle",
        "_measured",
        "down",
        "service",
        "ticket",
        "up",
        "user",
    )

    def __init__(
        self,
        consume: Callable[[str, str, Mapping[str, float], Ticket | None], None],
        service: str,
        user: str | None,
        measured: tuple[bool, bool, bool],
        log_throttle: LogThrottle,
    ) -> None:
        self.service = service
        self.user = user
        self.up = 0
        self.down = 0
        self.ticket: Ticket | None = None
        self._consume = consume
        self._measured = measured
        self._log_throttle = log_throttle
        self._added: dict[str, float] | None = None
        self._is_over = False

    def add(self, resource: str, amount: float = 1.0) -> None:
        """The request costs `amount` more of `resource`.

        After its end, as in a task that it has left behind, that is booked at once.
        """
        if not isinstance(resource, str):
            raise TypeError(f"resource must be a str, got {resource!r}")
        if not 0 < len(resource.encode()) <= _MAX_NAME_BYTES:
            raise ValueError(f"resource must have 1 to {_MAX_NAME_BYTES} bytes, got {resource!r}")
        if not 0.0 <= amount < math.inf:
            raise ValueError(f"amount must be finite and not below 0, got {amount!r}")
        if self._is_over:
            self._book({resource: amount})
        elif self._added is None:
            self._added = {resource: amount}
        else:
            self._added[resource] = self._added.get(resource, 0.0) + amount

    def finish(self) -> None:
        """The request is over: book it. Again, it does nothing."""
        if self._is_over:
            return
        self._is_over = True
        has_requests, has_up, has_down = self._measured
        amounts: dict[str, float] = {"requests": 1.0} if has_requests else {}
        if has_up and self.up:
            amounts["traffic_up"] = self.up
        if has_down and self.down:
            amounts["traffic_down"] = self.down
        if self._added is not None:
            for resource, amount in self._added.items():
                amounts[resource] = amounts.get(resource, 0.0) + amount
        self._book(amounts)

    def _book(self, amounts: dict[str, float]) -> None:
        if self.user is None:
            return
        try:
            self._consume(self.service, self.user, amounts, self.ticket)
        except Exception as error:  # noqa: BLE001 (the answer is out already)
            self._log_throttle.log("cannot book a request", error)

    def __repr__(self) -> str:
        return f"Meter({self.service!r}, {self.user!r}, up={self.up}, down={self.down})"


current_meter: contextvars.ContextVar[Meter | None] = contextvars.ContextVar(
    METER_KEY, default=None
)


def add(resource: str, amount: float = 1.0) -> None:
    """The current request costs `amount` more of `resource`; outside one, nothing."""
    meter = current_meter.get()
    if meter is not None:
        meter.add(resource, amount)


class QuotaOptions(TypedDict, total=False):
    """What a middleware takes beside its application and node: `QuotaGate`'s arguments."""

    service: Required[str | Callable[[Request], str]]
    user: Required[str | UserFunction]
    resources: Iterable[str]
    expect: Callable[[Request], Mapping[str, float] | None] | None
    body: QuotaBody | None
    on_refusal: Callable[[Request, Throttled], None] | None
    wait: float | None


class QuotaGate:
    """Whose a request is, whether it may begin, and what a refusal looks like.

    `service`: its name, or a function of the request. `user`: the name of a header (of a request
    without it, the client's address is the user), or a function of the request that returns the
    user, or None for one that is not limited. `resources`: which of the measured ones are booked.
    `expect`: a function of the request that tells what it will cost; without it the node takes
    the mean of the user's last requests. `body(throttled)` makes the content type and the body of
    a refusal; `on_refusal(request, throttled)` is called for each. `wait`: for how many seconds at
    most a request waits for the leader's answer; None: as long as one takes; 0: none waits.
    """

    def __init__(
        self,
        node: Node,
        *,
        service: str | Callable[[Request], str],
        user: str | UserFunction,
        resources: Iterable[str] = MEASURED,
        expect: Callable[[Request], Mapping[str, float] | None] | None = None,
        body: QuotaBody | None = None,
        on_refusal: Callable[[Request, Throttled], None] | None = None,
        wait: float | None = None,
    ) -> None:
        if isinstance(service, str) and service not in node.services:
            raise ValueError(
                f"service must be one of the node's, {list(node.services)}, got {service!r}"
            )
        booked = list(resources)
        if isinstance(resources, str) or not set(booked) <= set(MEASURED):
            raise ValueError(
                f"resources must be a list of some of {list(MEASURED)}, got {resources!r}"
            )
        for name, function in (("user", user), ("service", service)):
            if not isinstance(function, str) and not callable(function):
                raise TypeError(f"{name} must be a str or a function, got {function!r}")
        self.counts_traffic = "traffic_up" in booked or "traffic_down" in booked
        self._measured = ("requests" in booked, "traffic_up" in booked, "traffic_down" in booked)
        self._service = service if isinstance(service, str) else None
        self._find_service = None if isinstance(service, str) else service
        self._find_user = user_of_header(user) if isinstance(user, str) else user
        self._expect = expect
        self._body = body or throttled_problem
        self._on_refusal = on_refusal
        self._services = node.services
        self._wait = check_wait(wait)
        self._throttle = node.throttle
        self._throttle_async = node.throttle_async
        self._consume = node.consume
        self._log_throttle = LogThrottle()

    def begin(self, request: Request) -> Meter:
        """The meter of a request that may begin; Throttled of one that may not."""
        meter, expect = self._identify(request)
        if meter.user is not None:
            try:
                meter.ticket = self._throttle(
                    meter.service, meter.user, expect, wait=self._wait, ticket=True
                )
            except Exception as error:  # noqa: BLE001 (see `_fail`)
                self._fail(request, error)
        return meter

    async def begin_async(self, request: Request) -> Meter:
        """As `begin`; waits without blocking the event loop."""
        meter, expect = self._identify(request)
        if meter.user is not None:
            try:
                meter.ticket = await self._throttle_async(
                    meter.service, meter.user, expect, wait=self._wait, ticket=True
                )
            except Exception as error:  # noqa: BLE001 (see `_fail`)
                self._fail(request, error)
        return meter

    def _identify(self, request: Request) -> tuple[Meter, Mapping[str, float] | None]:
        """The meter of a request, without a user if it is not limited, and its expected cost."""
        service = self._service
        if service is None:
            assert self._find_service is not None
            service = self._find_service(request)
            if service not in self._services:
                # A host has room for few of them, and whoever asks may have chosen this one.
                known = list(self._services)
                wrong = ValueError(f"service must be one of {known}, got {service!r}")
                self._log_throttle.log("request not counted", wrong)
                return self._meter(service, None), None
        user = self._find_user(request)
        expect = None
        if user is not None:
            if not (isinstance(user, str) and user.isascii() and 0 < len(user) <= _MAX_NAME_BYTES):
                user = _name(user)
            if self._expect is not None:
                expect = self._expect(request)
        return self._meter(service, user), expect

    def _meter(self, service: str, user: str | None) -> Meter:
        return Meter(self._consume, service, user, self._measured, self._log_throttle)

    def _fail(self, request: Request, error: Exception) -> None:
        """Raise a refusal again. Whatever else it is, the service goes on."""
        if not isinstance(error, Throttled):
            self._log_throttle.log("request admitted without a decision", error)
            return
        if self._on_refusal is not None:
            self._on_refusal(request, error)
        raise error

    def refusal(self, throttled: Throttled, method: str) -> RefusalResponse:
        """The answer to a request that was refused. HEAD has no body, but its length."""
        kind, body = self._body(throttled)
        seconds = str(_seconds(throttled))
        fields: list[Field] = [
            ("Retry-After", seconds),
            # Without RateLimit-Policy: a node knows its share of the limit, not the limit.
            ("RateLimit", f"{as_string(_policy(throttled))};r=0;t={seconds}"),
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
        ]
        return RefusalResponse(fields, b"" if method == "HEAD" else body)


def throttled_problem(throttled: Throttled) -> tuple[str, bytes]:
    """The usual body of a refusal: problem+json, as the limits' middleware has it."""
    name = _policy(throttled)
    members = {
        "type": PROBLEM,
        "title": TITLE,
        "status": 429,
        "detail": f"over the limit {name}; try again in {_seconds(throttled)} s",
        "violated-policies": [name],
    }
    return "application/problem+json", json.dumps(members).encode()


def user_of_header(name: str) -> UserFunction:
    """The user is what a header says, as it stands in the limits; without it, the address.

    A header is the client's own word, unless somebody in front of us has checked and set it.
    """
    name = header_name(name)
    otherwise = by_address()

    def user_of(request: Request) -> str | None:
        value = request.header(name)
        if not value:
            return str(otherwise(request))
        return value if value.isascii() else _as_utf8(value)

    return user_of


def _as_utf8(value: str) -> str:
    """Header values are read as latin-1; most who send more than ASCII mean UTF-8."""
    try:
        return value.encode("latin-1").decode()
    except ValueError:
        return value


def _name(user: str) -> str:
    """A user's name as the centrals take it: of more than 200 bytes, a digest."""
    if not isinstance(user, str):
        raise TypeError(f"the user of a request must be a str or None, got {user!r}")
    user = str(bounded(user))
    if not user:
        raise ValueError(
            "the user of a request must not be empty; return None for a request without limits"
        )
    if not user.isascii():
        # Lone surrogates have no UTF-8: no frame could carry them.
        user = user.encode(errors="replace").decode()
    return user


def _seconds(throttled: Throttled) -> int:
    return max(1, whole_seconds(throttled.retry_after))


def _policy(throttled: Throttled) -> str:
    """The resource that was short, as far as it can stand in a header field."""
    resource = throttled.resource
    return resource if resource.isascii() and resource.isprintable() else "quota"
