"""`cached`: a function's values, kept in a cache; a missing one is computed by one caller only.

@cached
def user(number): ...

@cached(10_000, ttl=60)
async def price(item): ...

@cached(cache=lru, key=lambda session, name: name)      several functions, one cache
def rows(session, name): ...

This file makes keys and wraps functions; single_flight.py explains how the others wait.
"""

import functools
import inspect
from collections.abc import Callable, Hashable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from sluicegate._validate import check_positive
from sluicegate.cache._cache import Cache
from sluicegate.cache.policies import POLICIES, make
from sluicegate.cache.single_flight import MISSING, TaskFlights, ThreadFlights
from sluicegate.clock import Clock

__all__ = ["Cached", "cached"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_CAPACITY = 1024
_POLICY = "arc"  # never far from the best, whatever the traffic is: see docs/cache.md


class Cached(Protocol[P, R_co]):
    """What `cached` returns: the function, and what can be done with its values."""

    @property
    def cache(self) -> Any:
        """The cache itself: `f.cache.stats()`, `f.cache.clear()`."""

    @property
    def __wrapped__(self) -> Callable[P, R_co]:
        """The function that was decorated: it computes at each call."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def key(self, *args: P.args, **kwargs: P.kwargs) -> Hashable:
        """The key of these arguments in the cache."""

    def forget(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Drop the value of these arguments. If it is being computed, it will not be kept."""

    @overload
    def __get__(self, instance: None, owner: type, /) -> "Cached[P, R_co]": ...
    @overload
    def __get__(
        self: "Cached[Concatenate[Any, Q], R_co]", instance: object, owner: type | None = None, /
    ) -> Callable[Q, R_co]: ...


class _Mark:
    """A part of keys that is equal to nothing else."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name}>"


_KEYWORDS = _Mark("keywords")  # parts positional arguments from named ones


@overload
def cached(capacity: Callable[P, R]) -> Cached[P, R]: ...  # the function, for `@cached`
@overload
def cached(
    capacity: int | None = None,
    *,
    policy: str | None = None,
    ttl: float | None = None,
    key: Callable[..., Hashable] | None = None,
    clock: Clock | None = None,
) -> Callable[[Callable[P, R]], Cached[P, R]]: ...
@overload
def cached(
    *,
    cache: Any,
    ttl: float | None = None,
    key: Callable[..., Hashable] | None = None,
) -> Callable[[Callable[P, R]], Cached[P, R]]: ...
def cached(
    capacity: Any = None,
    *,
    cache: Any = None,
    policy: str | None = None,
    ttl: float | None = None,
    key: Callable[..., Hashable] | None = None,
    clock: Clock | None = None,
) -> Any:
    """Keep what a function returns, and call it once for all that miss the same key at once.

    `capacity` values are kept by the policy (1024 by "arc"), each for `ttl` seconds.
    With `cache`, they are kept in a cache of yours, which other functions may share.

    The key is `key(*args, **kwargs)`. Left out, it is the positional arguments, then the
    named ones in the order of their names; so `f(1)` and `f(x=1)` are two keys, and equal
    arguments (1, 1.0, True) are one. In a shared cache such a key also has a part for its
    function, but keys from `key` are used as they are: equal ones share a value. Of a
    method, `self` is an argument, and is kept alive by the cache: give a `key` if that is
    not wanted.

    Exceptions are not kept; all who wait get the one that was raised. None is a value.
    """
    if isinstance(capacity, classmethod | staticmethod):
        raise TypeError(f"put @{type(capacity).__name__} outside of @cached, got {capacity!r}")
    if callable(capacity):  # @cached
        if any(option is not None for option in (cache, policy, ttl, key, clock)):
            raise TypeError(f"options go before the function: cached(...)({capacity!r})")
        return _wrap(capacity, make(_POLICY, _CAPACITY), None, _arguments)
    if key is not None and not callable(key):
        raise TypeError(f"key must be a function of the arguments, got {key!r}")
    if ttl is not None:
        check_positive("ttl", ttl)
    if cache is None:
        make(_POLICY if policy is None else policy, _CAPACITY if capacity is None else capacity)
    else:
        if not isinstance(cache, Cache):
            raise TypeError(f"cache must be one of {', '.join(POLICIES)}, got {cache!r}")
        if capacity is not None or policy is not None or clock is not None:
            raise TypeError("capacity, policy and clock cannot be given with a cache")

    def decorate(function: Callable[..., Any]) -> Any:
        if cache is None:
            values = make(
                _POLICY if policy is None else policy,
                _CAPACITY if capacity is None else capacity,
                ttl=ttl,
                clock=clock,
            )
            return _wrap(function, values, None, key or _arguments)
        return _wrap(function, cache, ttl, key or _owned_arguments(function))

    return decorate


def _wrap(
    function: Callable[..., Any], cache: Any, ttl: float | None, key_of: Callable[..., Hashable]
) -> Any:
    _check_function(function)
    flights: ThreadFlights | TaskFlights
    if _is_coroutine_function(function):
        flights = TaskFlights(function, cache, ttl)
        wrapper = _async_wrapper(function, cache, flights, key_of)
    else:
        flights = ThreadFlights(function, cache, ttl)
        wrapper = _sync_wrapper(function, cache, flights, key_of)

    def forget(*args: Any, **kwargs: Any) -> None:
        flights.forget(key_of(*args, **kwargs))

    cast(Any, wrapper).cache = cache
    cast(Any, wrapper).key = key_of
    cast(Any, wrapper).forget = forget
    return wrapper


def _sync_wrapper(
    function: Callable[..., Any],
    cache: Any,
    flights: ThreadFlights,
    key_of: Callable[..., Hashable],
) -> Callable[..., Any]:
    look_up, load = cache.get, flights.load
    has_plain_keys = key_of is _arguments

    @functools.wraps(function)
    def cached_sync(*args: Any, **kwargs: Any) -> Any:
        key = args if has_plain_keys and not kwargs else key_of(*args, **kwargs)
        value = look_up(key, MISSING)
        return load(key, args, kwargs) if value is MISSING else value

    return cached_sync


def _async_wrapper(
    function: Callable[..., Any], cache: Any, flights: TaskFlights, key_of: Callable[..., Hashable]
) -> Callable[..., Any]:
    look_up, load = cache.get, flights.load
    has_plain_keys = key_of is _arguments

    @functools.wraps(function)
    async def cached_async(*args: Any, **kwargs: Any) -> Any:
        key = args if has_plain_keys and not kwargs else key_of(*args, **kwargs)
        value = look_up(key, MISSING)
        return await load(key, args, kwargs) if value is MISSING else value

    return cached_async


def _arguments(*args: Any, **kwargs: Any) -> Hashable:
    """The default key, in a cache of the function's own."""
    return (*args, _KEYWORDS, *sorted(kwargs.items())) if kwargs else args


def _owned_arguments(function: Callable[..., Any]) -> Callable[..., Hashable]:
    """The default key in a cache that others may share: no two functions have equal ones."""
    owner = _Mark(getattr(function, "__qualname__", repr(function)))

    def key_of(*args: Any, **kwargs: Any) -> Hashable:
        return (owner, _arguments(*args, **kwargs))

    return key_of


def _check_function(function: Callable[..., Any]) -> None:
    if not callable(function):
        raise TypeError(f"cached(...) must decorate a function, got {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"cached cannot keep what the generator {function!r} yields, which can be read once: "
            "return a list"
        )


def _is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Also for objects whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )
