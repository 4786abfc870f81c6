"""`Rule`: which requests, whose, how much.

    Rule("100/minute", path="/api/*", methods=["POST"], key=by_address())

- A request falls under every rule that matches it, and all of them must agree.
- A rule that names GET is about HEAD, too: frameworks answer it with the same view.
- A preflight of CORS is a request like any other: who would let it pass lets everybody
  pass who writes its two headers. Put the middleware for CORS outside, which answers it.
- The functions that you give (key, cost, limit, exempt) are called before anything is
  charged. What they raise is raised: a rule that cannot tell lets nobody pass.
"""

import inspect
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from sluicegate._validate import check_positive
from sluicegate.integrations.http.keys import KeyFunction, bounded, by_address
from sluicegate.integrations.http.limiters import (
    AnyLimiter,
    capacity,
    check_compatible,
    is_async,
    is_limiter,
)
from sluicegate.integrations.http.paths import matcher
from sluicegate.integrations.http.policy import Policy, as_string
from sluicegate.integrations.http.request import Request
from sluicegate.limits import Keyed, Limit
from sluicegate.limits.limit import Key, LimitLike, as_limits

__all__ = ["Claim", "LimitFunction", "Rule", "RuleLike", "as_rules"]

LimitFunction = Callable[[Request], LimitLike | None]
Claim = tuple["Rule", Policy, Key, float]  # what a request asks of a rule

MAX_LIMITS = 1000
F = TypeVar("F", bound=Callable[..., object])


class Rule:
    """Which requests, whose, how much.

    - `limit`: "100/minute", a `Limit`, several; or a limiter that is ready (`Keyed`,
      `SharedKeyed`, `AsyncRedisKeyed`...), to be shared with others; or a function of the
      request that returns a limit, or None for no limit.
    - `name`: the policy's name in the answers; left out, it is made of methods and path,
      or of the limit.
    - `path`, `methods`: left out, all. `paths.py` says how paths are compared.
    - `key`: whose limit it is, a function of the request: the client's address.
    - `cost`: units, or a function of the request, which may return 0: free. A request that
      costs more than ever passes at once is refused for good: 429 without `Retry-After`.
    - `exempt`: a function; requests that it is true of are not counted.
    - `shadow`: counts, and tells `on_refusal` and the shadow header, but refuses nothing.
    - `make`: makes a limiter of limits, where `limit` does not bring one. A function may
      return at most 1,000 different limits, each with a limiter (and counts) of its own.
    """

    def __init__(
        self,
        limit: LimitLike | AnyLimiter | LimitFunction,
        *,
        name: str | None = None,
        path: str | None = None,
        methods: Iterable[str] | None = None,
        key: KeyFunction | None = None,
        cost: float | Callable[[Request], float] = 1.0,
        exempt: Callable[[Request], bool] | None = None,
        shadow: bool = False,
        make: Callable[[tuple[Limit, ...]], AnyLimiter] = Keyed,
    ) -> None:
        self.path = path
        self.methods = _methods(methods)
        self.name = _derived_name(limit, self.methods, path) if name is None else name
        as_string(self.name)
        self.shadow = shadow
        self._key = by_address() if key is None else _function("key", key)
        self._exempt = None if exempt is None else _function("exempt", exempt)
        self._cost = cost if callable(cost) else check_positive("cost", cost)
        self._path_matches = None if path is None else matcher(path)
        self._make = make
        self._limit_of: LimitFunction | None = None
        self._policy: Policy | None = None
        self._policies: dict[tuple[Limit, ...], Policy] = {}
        self._policies_lock = threading.Lock()
        self._is_in_event_loop: bool | None = None
        if is_limiter(limit):
            self._policy = self._make_policy(limit)  # type: ignore[arg-type]
        elif callable(limit):
            self._limit_of = limit
        else:
            self._policy = self._make_policy(make(as_limits(limit)))  # type: ignore[arg-type]

    def __repr__(self) -> str:
        about = [repr(self.name), "dynamic" if self._policy is None else self._policy.text]
        about += [f"path={self.path!r}"] if self.path else []
        about += [f"methods={sorted(self.methods)}"] if self.methods else []
        about += ["shadow"] if self.shadow else []
        return f"Rule({', '.join(about)})"

    @property
    def limiters(self) -> tuple[AnyLimiter, ...]:
        """What it counts in: one limiter, or for a function those that it needed so far."""
        if self._policy is not None:
            return (self._policy.limiter,)
        return tuple(policy.limiter for policy in self._policies.values())

    @property
    def needs_event_loop(self) -> bool:
        """Whether any answer must be awaited. Unknown for a function, so taken as possible."""
        return self._policy is None or is_async(self._policy.limiter)

    def bind(self, *, in_event_loop: bool) -> None:
        """Called once by the integration; TypeError if a limiter cannot work there."""
        for limiter in self.limiters:
            check_compatible(limiter, in_event_loop=in_event_loop)
        self._is_in_event_loop = in_event_loop

    def claim(self, request: Request, method: str, path: str) -> Claim | None:
        """What the request asks of this rule; None if it does not fall under it.

        `path` is plain; it and `method` are given because they are the same for all rules
        of a request.
        """
        if self._path_matches is not None and not self._path_matches(path):
            return None
        if self.methods is not None and method not in self.methods:
            return None
        if self._exempt is not None:
            is_exempt = self._exempt(request)
            if inspect.iscoroutine(is_exempt):  # which is true, whatever it would say
                is_exempt.close()
                raise TypeError(f"exempt must not be async, got {is_exempt!r}")
            if is_exempt:
                return None
        policy = self._policy
        if policy is None:
            policy = self._policy_for(request)
            if policy is None:
                return None
        key = self._key(request)
        if type(key) is not str or len(key) > 50:  # 200 bytes at the most
            key = bounded(key)
        cost = self._cost
        return self, policy, key, (cost(request) if callable(cost) else cost)

    def _policy_for(self, request: Request) -> Policy | None:
        limit = None if self._limit_of is None else self._limit_of(request)
        if limit is None:
            return None
        limits = as_limits(limit)
        policy = self._policies.get(limits)
        if policy is not None:
            return policy
        with self._policies_lock:
            if limits not in self._policies:
                if len(self._policies) >= MAX_LIMITS:
                    raise ValueError(
                        f"the limit function of rule {self.name!r} returned more than "
                        f"{MAX_LIMITS} different limits, the last one {limit!r}; "
                        "dropping one would forgive what was used of it"
                    )
                policy = self._make_policy(self._make(limits))
                if self._is_in_event_loop is not None:
                    check_compatible(policy.limiter, in_event_loop=self._is_in_event_loop)
                self._policies[limits] = policy
            return self._policies[limits]

    def _make_policy(self, limiter: AnyLimiter) -> Policy:
        if not callable(self._cost) and self._cost > capacity(limiter):
            raise ValueError(
                f"cost {self._cost:g} could never pass: {limiter!r} allows at most "
                f"{capacity(limiter):g} at once"
            )
        return Policy(self.name, limiter)


def _methods(methods: Iterable[str] | None) -> frozenset[str] | None:
    if methods is None:
        return None
    if isinstance(methods, str):
        raise TypeError(f"methods must be a list, like [{methods!r}], got {methods!r}")
    named = frozenset(method.upper() for method in methods)
    if not named:
        raise ValueError("methods must not be empty; leave it out for all methods")
    return named | {"HEAD"} if "GET" in named else named


def _derived_name(limit: object, methods: frozenset[str] | None, path: str | None) -> str:
    """ "POST /api/*", or "100/minute" where it is about all requests."""
    name = " ".join(sorted(methods or ()) + ([path] if path else []))
    if not name and isinstance(limit, str | Limit):
        name = "; ".join(map(str, as_limits(limit)))
    return "".join(mark if " " <= mark <= "~" else "?" for mark in name or "default")


def _function(name: str, function: F) -> F:
    if not callable(function):
        raise TypeError(f"{name} must be a function of the request, got {function!r}")
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{name} must not be async, got {function!r}")
    return function


RuleLike = Rule | LimitLike | AnyLimiter | LimitFunction


def as_rules(rules: Iterable[RuleLike]) -> list[Rule]:
    """Rules as they are; anything else is the limit of a rule about all requests."""
    return [rule if isinstance(rule, Rule) else Rule(rule) for rule in rules]
