"""Objects used in ways nobody should: useless is fine, a crash of the interpreter is not."""

import copy
import gc
import pickle
from typing import Any

import pytest

from sluicegate import (
    FixedWindow,
    Keyed,
    LeakyBucket,
    ManualClock,
    RateLimiter,
    SlidingCounter,
    SlidingWindow,
    SluicegateError,
    Snowflake,
    TokenBucket,
)

COMPILED: dict[type, tuple[Any, ...]] = {
    TokenBucket: (5, 5),
    LeakyBucket: (5, 5),
    RateLimiter: (5,),
    FixedWindow: (5, 1),
    SlidingWindow: (5, 1),
    SlidingCounter: (5, 1),
    Keyed: ("5/second",),
    Snowflake: (),
}


@pytest.mark.parametrize("kind", COMPILED)
def test_an_object_without_init_does_not_crash(kind: type) -> None:
    raw = kind.__new__(kind)
    for name in dir(raw):
        if name.startswith("__") and name not in ("__enter__", "__len__", "__repr__"):
            continue
        for arguments in ((), ("a",), (1,), (0,), ("a", 1)):
            try:
                answer = getattr(raw, name)
                answer = answer(*arguments) if callable(answer) else answer
            except (ValueError, TypeError, AttributeError, SluicegateError):
                continue
            if hasattr(answer, "close"):
                answer.close()
    del raw
    gc.collect()


@pytest.mark.parametrize("kind", COMPILED)
def test_an_object_may_be_made_anew_and_is_then_new(kind: type) -> None:
    clock = ManualClock(1_700_000_000)
    limiter = kind(*COMPILED[kind], clock=clock)
    fresh = repr(limiter)
    for _ in range(3):
        if isinstance(limiter, Keyed):
            limiter.allow("a", 5)
        elif isinstance(limiter, Snowflake):
            limiter.next()
        else:
            limiter.try_acquire()
        limiter.__init__(*COMPILED[kind], clock=clock)
    assert repr(limiter) == fresh


@pytest.mark.parametrize("kind", COMPILED)
def test_a_subclass_may_have_arguments_of_its_own(kind: type) -> None:
    class Named(kind):  # type: ignore[misc, valid-type]
        def __init__(self, name: str) -> None:
            super().__init__(*COMPILED[kind])
            self.name = name

    assert Named("x").name == "x"


@pytest.mark.parametrize("kind", COMPILED)
def test_a_limiter_cannot_be_copied_into_a_second_limit(kind: type) -> None:
    limiter = kind(*COMPILED[kind])
    for copying in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            copying(limiter)


def test_a_key_nested_without_end_is_refused(clock: ManualClock) -> None:
    deep: Any = ()
    for _ in range(100_000):
        deep = (deep,)
    keyed = Keyed("1/second", clock=clock)
    with pytest.raises(TypeError, match="at most 8 tuples deep"):
        keyed.allow(deep)
    assert keyed.allow((((((((("a",),),),),),),),))  # type: ignore[arg-type]
