"""`Gate`: decides a request by its rules. No framework, no I/O.

A verdict is reached in two steps. First every matching rule says what the request asks
of it: whose key, how much. That runs the caller's own functions, and nothing is charged
if one of them raises. Then the limiters are asked, one after the other. Several rules
are all or nothing: when one refuses, or its limiter fails, what the others charged is
given back. That holds over several gates, too: a middleware and the limit of a view find
each other through the `state` of the request.

The second step is a plan, a generator that yields calls and is sent their answers. So
one text serves limiters that answer at once and those that must be awaited. Where no
limiter is of coroutines, event loops too take the way without `await`.

Rules in shadow come last and each for itself: they count only requests that passed, and
a refusal of theirs is noted and changes nothing.
"""

import inspect
import math
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, cast

from sluicegate.integrations.http.limiters import Limiter, capacity
from sluicegate.integrations.http.paths import normalize_path
from sluicegate.integrations.http.policy import Policy
from sluicegate.integrations.http.request import Request
from sluicegate.integrations.http.rules import Claim, Rule
from sluicegate.limits import Decision
from sluicegate.limits.limit import Key

__all__ = ["Gate", "OnRefusal", "Outcome", "Verdict"]

Call = tuple[Callable[[Key, float], Any], Key, float]
GatePlan = Generator[Call, Any, "Verdict"]

CHARGED_KEY = "sluicegate.charged"  # in `Request.state`: what other gates charged this request


class Outcome:
    """What one rule said. `can_pass` is false if the cost is above what ever passes at once."""

    __slots__ = ("can_pass", "cost", "decision", "key", "policy", "rule")

    def __init__(
        self,
        rule: Rule,
        policy: Policy,
        key: Key,
        cost: float,
        decision: Decision,
        can_pass: bool = True,
    ) -> None:
        self.rule = rule
        self.policy = policy
        self.key = key
        self.cost = cost
        self.decision = decision
        self.can_pass = can_pass

    def __repr__(self) -> str:
        return f"Outcome({self.rule.name!r}, key={self.key!r}, cost={self.cost:g}, {self.decision})"


OnRefusal = Callable[[Request, Outcome], None]


class Verdict:
    """What all rules said.

    `passed` are the outcomes of rules that charged the request, `refused` the one that
    refused it, `shadowed` those in shadow that would have. After a refusal `passed` is
    empty: it was given back.
    """

    __slots__ = ("passed", "refused", "shadowed")

    def __init__(
        self, passed: list[Outcome], refused: Outcome | None, shadowed: Sequence[Outcome]
    ) -> None:
        self.passed = passed
        self.refused = refused
        self.shadowed = shadowed

    def __repr__(self) -> str:
        return f"Verdict(passed={self.passed}, refused={self.refused}, shadowed={self.shadowed})"


class Gate:
    """Rules that are settled in one place: with an event loop around, or without.

    `on_refusal(request, outcome)` is called for every refusal, also those in shadow
    (`outcome.rule.shadow`).
    """

    def __init__(
        self, rules: Iterable[Rule], *, in_event_loop: bool, on_refusal: OnRefusal | None = None
    ) -> None:
        self.rules = tuple(rules)
        if not self.rules:
            raise ValueError("expected at least one Rule, got none")
        names: set[str] = set()
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise TypeError(f"expected a Rule, got {rule!r}")
            if rule.name in names:
                raise ValueError(
                    f"two rules are named {rule.name!r}; give one of them a different name="
                )
            names.add(rule.name)
            rule.bind(in_event_loop=in_event_loop)
        _check_storage_places(self.rules)
        if inspect.iscoroutinefunction(on_refusal):
            raise TypeError(f"on_refusal must not be async, got {on_refusal!r}")
        self.must_await = in_event_loop and any(rule.needs_event_loop for rule in self.rules)
        self._looks_at_paths = any(rule.path is not None for rule in self.rules)
        self._in_order = sorted(self.rules, key=lambda rule: rule.shadow)
        self._on_refusal = on_refusal

    def decide(self, request: Request) -> Verdict:
        """Ask the rules; all limiters answer at once."""
        claims = self._claims(request)
        first_decision: Decision | None = None
        if len(claims) == 1:
            # One rule that agrees: nearly every request. To spare the plan halves the time.
            rule, policy, key, cost = claims[0]
            limiter = cast(Limiter, policy.limiter)
            try:
                first_decision = limiter.check(key, cost)
            except ValueError:
                first_decision = None  # the plan asks again, and finds out what it means
            else:
                if first_decision.allowed:
                    return _pass(request, [Outcome(rule, policy, key, cost, first_decision)])
        plan = self._check_claims(request, claims, first_decision)
        try:
            call, key, cost = next(plan)
            while True:
                try:
                    answer = call(key, cost)
                    if inspect.iscoroutine(answer):
                        # A refund of an async middleware's limiter, asked for by a view that
                        # is not async: nobody here can await it, and it stays charged.
                        answer.close()
                except BaseException as error:  # noqa: BLE001 (the plan raises it)
                    call, key, cost = plan.throw(error)
                else:
                    call, key, cost = plan.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def decide_async(self, request: Request) -> Verdict:
        """The same for limiters of which some must be awaited."""
        plan = self._check_claims(request, self._claims(request), None)
        try:
            call, key, cost = next(plan)
            while True:
                try:
                    answer = call(key, cost)
                    if inspect.isawaitable(answer):
                        answer = await answer
                except BaseException as error:  # noqa: BLE001 (the plan raises it)
                    call, key, cost = plan.throw(error)
                else:
                    call, key, cost = plan.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _claims(self, request: Request) -> list[Claim]:
        method = request.method
        path = normalize_path(request.path) if self._looks_at_paths else ""
        claims = []
        for rule in self._in_order:
            claim = rule.claim(request, method, path)
            if claim is not None:
                claims.append(claim)
        return claims

    def _check_claims(
        self, request: Request, claims: list[Claim], first_decision: Decision | None
    ) -> GatePlan:
        """`first_decision` is the answer to the first claim, if somebody has asked already."""
        passed: list[Outcome] = []
        shadowed: list[Outcome] = []
        refused = None
        try:
            for rule, policy, key, cost in claims:
                can_pass = True
                try:
                    decision = first_decision
                    if decision is None:
                        decision = yield policy.limiter.check, key, cost
                except ValueError:
                    # Costs are checked by the limiter: to do it here would cost every call.
                    if not capacity(policy.limiter, key) < cost < math.inf:
                        raise
                    can_pass = False
                    look = yield policy.limiter.check, key, 0.0
                    decision = Decision(False, look.limit, look.remaining, 0.0, look.reset_after)
                first_decision = None
                outcome = Outcome(rule, policy, key, cost, decision, can_pass)
                if decision.allowed:
                    passed.append(outcome)
                    continue
                if self._on_refusal is not None:
                    self._on_refusal(request, outcome)
                if not rule.shadow:
                    refused = outcome
                    break
                shadowed.append(outcome)
        except BaseException:
            yield from _refunds(passed)
            raise
        if refused is None:
            return _pass(request, passed, shadowed)
        for charged in (passed, *request.state.get(CHARGED_KEY, ())):
            yield from _refunds(charged)
        return Verdict([], refused, shadowed)


def _pass(request: Request, passed: list[Outcome], shadowed: Sequence[Outcome] = ()) -> "Verdict":
    """A verdict; what was charged is kept in the request's state for later gates."""
    request_state = request.state
    if CHARGED_KEY in request_state:
        request_state[CHARGED_KEY].append(passed)
    else:
        request_state[CHARGED_KEY] = [passed]
    return Verdict(passed, None, shadowed)


def _refunds(passed: list[Outcome]) -> Generator[Call, Any, None]:
    """Give all back; what goes wrong with one is raised when the others have theirs."""
    failure: Exception | None = None
    while passed:
        outcome = passed.pop()
        try:
            if outcome.cost > 0.0:
                yield outcome.policy.limiter.refund, outcome.key, outcome.cost
        except Exception as error:  # noqa: BLE001 (raised below)
            failure = failure or error
    if failure is not None:
        raise failure


def _check_storage_places(rules: Iterable[Rule]) -> None:
    """Reject two limiters that count in one place: they would charge each other's keys."""
    found: dict[object, object] = {}
    for limiter in (one for rule in rules for one in rule.limiters):
        place = getattr(limiter, "place", None)
        if place is not None and found.setdefault(place, limiter) is not limiter:
            raise ValueError(
                f"two limiters of these rules count in {place}: "
                "give one of them a different prefix="
            )
