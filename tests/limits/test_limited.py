import asyncio
import functools
import inspect
from collections.abc import AsyncIterator

import pytest

from sluicegate import Keyed, ManualClock, RateLimited, limited


def test_a_function_is_limited(clock: ManualClock) -> None:
    @limited("2/second", clock=clock)
    def double(x: int) -> int:
        """Twice."""
        return 2 * x

    assert (double(1), double(2)) == (2, 4)
    with pytest.raises(RateLimited, match="2/second"):
        double(3)
    clock.advance(0.5)
    assert double(4) == 8
    assert (double.__name__, double.__doc__) == ("double", "Twice.")


def test_a_coroutine_function_is_limited_and_stays_one(clock: ManualClock) -> None:
    @limited("1/second", clock=clock)
    async def double(x: int) -> int:
        return 2 * x

    async def main() -> None:
        assert await double(1) == 2
        with pytest.raises(RateLimited):
            await double(2)

    assert inspect.iscoroutinefunction(double)
    asyncio.run(main())


def test_a_key_says_whose_limit_it_is(clock: ManualClock) -> None:
    @limited("1/second", key=lambda user, **_: user, clock=clock)
    def greet(user: str, *, loudly: bool = False) -> str:
        return user.upper() if loudly else user

    assert greet("ann", loudly=True) == "ANN"
    assert greet("bob") == "bob"
    with pytest.raises(RateLimited):
        greet("ann")


def test_with_a_timeout_it_waits(clock: ManualClock) -> None:
    @limited("1/second", timeout=1.0, clock=clock)
    def call() -> float:
        return clock.now()

    assert [call(), call(), call()] == pytest.approx([0.0, 1.0, 2.0])

    @limited("1/second", timeout=None, clock=clock)
    async def call_async() -> float:
        return clock.now()

    async def main() -> list[float]:
        return await asyncio.gather(call_async(), call_async(), call_async())

    assert asyncio.run(main()) == pytest.approx([2.0, 3.0, 4.0])

    @limited("1/minute", timeout=1.0, clock=clock)
    def seldom() -> None:
        pass

    seldom()
    with pytest.raises(RateLimited):
        seldom()


def test_a_block_is_limited_too(clock: ManualClock) -> None:
    user = "ann"
    gate = limited("1/second", key=lambda: user, clock=clock)
    with gate:
        pass
    with pytest.raises(RateLimited), gate:
        raise AssertionError
    user = "bob"

    async def main() -> None:
        async with gate:
            pass
        with pytest.raises(RateLimited):
            async with gate:
                raise AssertionError

    asyncio.run(main())
    assert repr(gate).startswith("Limited(Keyed('1/second'")


def test_a_limit_may_be_shared(clock: ManualClock) -> None:
    keyed = Keyed("1/second", clock=clock)
    first = limited(keyed, key=lambda: "a")(lambda: "first")
    second = limited(keyed, key=lambda: "a")(lambda: "second")
    assert first() == "first"
    with pytest.raises(RateLimited):
        second()
    with pytest.raises(TypeError, match="algorithm and clock cannot be given"):
        limited(keyed, clock=clock)


def test_wrong_arguments_raise_at_once() -> None:
    with pytest.raises(TypeError, match="key must be a function"):
        limited("1/second", key="user")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout must be"):
        limited("1/second", timeout=-1)
    with pytest.raises(ValueError, match="unknown unit"):
        limited("1/secnd")
    with pytest.raises(TypeError, match="must decorate a function"):
        limited("1/second")(3)  # type: ignore[arg-type]


def test_an_async_generator_is_limited_and_does_not_block_the_loop(clock: ManualClock) -> None:
    @limited("1/second", timeout=None, clock=clock)
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    async def main() -> list[list[int]]:
        async def collect() -> list[int]:
            return [number async for number in count(3)]

        return await asyncio.gather(collect(), collect())

    assert asyncio.run(main()) == [[0, 1, 2], [0, 1, 2]]
    assert clock.now() == pytest.approx(1.0)


def test_an_object_that_is_called_like_a_coroutine_function_is_one(clock: ManualClock) -> None:
    class Client:
        async def __call__(self, text: str) -> str:
            return text

    ask = limited("1/second", timeout=None, clock=clock)(Client())
    assert inspect.iscoroutinefunction(ask)
    assert asyncio.run(ask("hello")) == "hello"
    assert asyncio.run(limited("1/second")(functools.partial(Client(), "hi"))()) == "hi"
