import asyncio
import functools
import gc
import inspect
import threading
import weakref
from typing import Any

import pytest

from sluicegate import ManualClock
from sluicegate.cache import Fifo, Lru, cached
from sluicegate.cache.single_flight import _part_of
from tests.harness.children import Children
from tests.harness.threads import run_in_threads, start_thread
from tests.harness.waits import PATIENCE, wait_for, wait_until


class Gate:
    """A function that can be held: it counts its calls, and waits in each until it is opened."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.opened = threading.Event()

    def __call__(self, x: Any) -> Any:
        self.calls.append(x)
        assert self.opened.wait(PATIENCE)
        return x


def waiting_threads(function: Any) -> int:
    """The calls that missed, less those that compute."""
    return function.cache.misses - len(function.__wrapped__.calls)


# What is kept


def test_a_value_is_computed_once() -> None:
    calls: list[int] = []

    @cached
    def double(x: int) -> int:
        """Twice."""
        calls.append(x)
        return 2 * x

    assert [double(1), double(1), double(2), double(1)] == [2, 2, 4, 2]
    assert calls == [1, 2]
    assert (double.cache.hits, double.cache.misses) == (2, 2)
    assert (double.__name__, double.__doc__, double.__wrapped__(3)) == ("double", "Twice.", 6)


@pytest.mark.parametrize("decorate", [cached, cached(), cached(10), cached(capacity=10)])
def test_none_is_a_value(decorate: Any) -> None:
    calls: list[int] = []
    look = decorate(calls.append)
    assert (look(1), look(1)) == (None, None)
    assert calls == [1]


def test_the_policy_the_capacity_and_the_time_to_live_are_those_of_its_cache(
    clock: ManualClock,
) -> None:
    calls: list[int] = []

    @cached(2, policy="lru", ttl=60, clock=clock)
    def note(x: int) -> int:
        calls.append(x)
        return x

    assert isinstance(note.cache, Lru)
    timeline = [  # (seconds, argument, whether it is computed)
        (0, 1, True),
        (0, 2, True),
        (0, 1, False),
        (0, 3, True),  # makes room: 2 goes
        (0, 1, False),
        (0, 2, True),
        (59, 2, False),
        (60, 2, True),
    ]
    for at, x, is_computed in timeline:
        clock.advance(at - clock.now())
        before = len(calls)
        assert note(x) == x
        assert (len(calls) > before) is is_computed, (at, x)


def test_keys_are_the_arguments_and_equal_ones_are_one() -> None:
    @cached
    def note(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    assert note.key(1, "a") == (1, "a")
    assert note.key(1, b=2, a=1) == note.key(1, a=1, b=2)
    apart = [
        note.key(),
        note.key(None),
        note.key(()),
        note.key(1),
        note.key(x=1),
        note.key(("x", 1)),
        note.key("x", 1),
        note.key(1, x=1),
        note.key(1, ("x", 1)),
        note.key(((), ("x", 1))),
    ]
    assert len(set(apart)) == len(apart)
    assert note(1) == note(True) == note(1.0)
    assert len(note.cache) == 1
    note(a=1)
    assert note.key(a=True) in note.cache
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        note([])


def test_a_key_function_says_what_is_alike() -> None:
    calls: list[str] = []

    @cached(key=lambda session, name: name.lower())
    def rows(session: object, name: str) -> str:
        calls.append(name)
        return name

    assert rows(object(), "Users") == rows([], "USERS") == "Users"
    assert rows.key([], "X") == "x"
    assert calls == ["Users"]
    assert list(rows.cache) == ["users"]


def test_forget_drops_one_value() -> None:
    numbers = iter(range(10))

    @cached
    def draw(who: str, *, twice: bool = False) -> int:
        return next(numbers)

    assert [draw("a"), draw("b"), draw("a", twice=True)] == [0, 1, 2]
    draw.forget("a")
    draw.forget("never there")
    assert [draw("a"), draw("b"), draw("a", twice=True)] == [3, 1, 2]


def test_a_method_has_its_object_in_the_key() -> None:
    class Shop:
        def __init__(self, factor: int) -> None:
            self.factor = factor
            self.calls = 0

        @cached(100)
        def price(self, item: int) -> int:
            self.calls += 1
            return self.factor * item

        @classmethod
        @cached
        def name(cls) -> str:
            return cls.__name__.lower()

    one, two = Shop(1), Shop(2)
    assert [one.price(3), two.price(3), one.price(3), two.price(item=3)] == [3, 6, 3, 6]
    assert (one.calls, two.calls) == (1, 2)  # by position and by name are two keys
    Shop.price.forget(one, 3)
    one.price(3)
    assert one.calls == 2
    assert Shop.name() == Shop.name() == "shop"


def test_functions_may_share_a_cache_and_do_not_mix_their_values(clock: ManualClock) -> None:
    shared: Lru[Any, Any] = Lru(100, clock=clock)

    @cached(cache=shared)
    def one(x: int) -> str:
        return f"one {x}"

    @cached(cache=shared, ttl=5)
    def two(x: int) -> str:
        return f"two {x} at {clock.now():g}"

    assert [one(1), two(1), one(1), two(1)] == ["one 1", "two 1 at 0", "one 1", "two 1 at 0"]
    assert one.cache is two.cache is shared
    assert len(shared) == 2
    clock.advance(6)
    assert (one(1), two(1)) == ("one 1", "two 1 at 6")
    assert shared.hits == 3  # the ttl is that of the second alone
    assert "one" in repr(one.key(1))

    @cached(cache=shared, key=lambda user: user)
    def read(user: str) -> str:
        return user.upper()

    read("ann")
    assert shared["ann"] == "ANN"  # a key of yours is used as it is


@pytest.mark.parametrize(
    ("decorate", "error", "message"),
    [
        (lambda: cached(0)(len), ValueError, "0"),
        (lambda: cached(2.5)(len), TypeError, r"2\.5"),  # type: ignore[call-overload]
        (lambda: cached(ttl=0)(len), ValueError, "ttl must be a finite number above 0, got 0"),
        (lambda: cached(policy="mru")(len), ValueError, "mru"),
        (lambda: cached(policy="")(len), ValueError, "''"),
        (lambda: cached(key="user"), TypeError, "key must be a function .*, got 'user'"),  # type: ignore[call-overload]
        (lambda: cached(cache={}), TypeError, r"cache must be one of .*lru.*, got \{\}"),
        (lambda: cached(10, cache=Lru(10)), TypeError, "cannot be given with a cache"),  # type: ignore[call-overload]
        (lambda: cached(cache=Lru(10), policy="lru"), TypeError, "cannot be given with a cache"),  # type: ignore[call-overload]
        (
            lambda: cached(len, ttl=5),
            TypeError,
            r"options go before the function: cached\(\.\.\.\)",
        ),  # type: ignore[call-overload]
        (lambda: cached(10)(5), TypeError, "must decorate a function, got 5"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_refused_at_once(
    decorate: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        decorate()


def test_a_generator_cannot_be_kept() -> None:
    def numbers() -> Any:
        yield 1

    async def numbers_async() -> Any:
        yield 1

    for generator in (numbers, numbers_async):
        with pytest.raises(TypeError, match="can be read once: return a list"):
            cached(generator)


# Threads


def test_of_fifty_threads_one_computes() -> None:
    gate = Gate()
    look = cached(gate)
    found: list[Any] = []
    threads = [start_thread(lambda: found.append(look("key"))) for _ in range(50)]
    wait_for(lambda: waiting_threads(look) == 49)
    gate.opened.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == ["key"] * 50
    assert gate.calls == ["key"]


def test_racing_threads_compute_each_key_once() -> None:
    calls: list[int] = []
    look = cached(1000)(lambda x: calls.append(x) or x)

    def work() -> None:
        for x in range(200):
            assert look(x) == x

    run_in_threads([work] * 8)
    assert sorted(calls) == list(range(200))


def test_different_keys_are_computed_in_parallel() -> None:
    both = threading.Barrier(2)

    @cached
    def meet(x: int) -> int:
        both.wait(PATIENCE)
        return x

    run_in_threads([lambda: meet(1), lambda: meet(2)])
    assert (meet(1), meet(2)) == (1, 2)


def test_an_exception_goes_to_all_that_wait_and_is_not_kept() -> None:
    gate = Gate()

    def fail(x: str) -> None:
        gate(x)
        raise KeyError(x)

    fail.calls = gate.calls  # type: ignore[attr-defined]
    look = cached(fail)
    errors: list[KeyError] = []

    def work() -> None:
        try:
            look("key")
        except KeyError as error:
            errors.append(error)

    threads = [start_thread(work) for _ in range(5)]
    wait_for(lambda: waiting_threads(look) == 4)
    gate.opened.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(errors) == 5
    assert len(gate.calls) == 1
    with pytest.raises(KeyError):
        look("key")
    assert len(gate.calls) == 2


def test_an_exception_does_not_keep_its_frames_alive_by_a_cycle() -> None:
    class Argument:
        pass

    @cached(key=id)
    def fail(argument: Argument) -> None:
        raise KeyError

    argument = Argument()
    alive = weakref.ref(argument)
    gc.disable()
    try:
        with pytest.raises(KeyError):
            fail(argument)
        del argument
        assert alive() is None
    finally:
        gc.enable()


def test_when_the_one_that_computes_is_interrupted_another_takes_over() -> None:
    gate = Gate()

    def interrupted_first(x: str) -> str:
        gate(x)
        if len(gate.calls) == 1:
            raise KeyboardInterrupt
        return x

    interrupted_first.calls = gate.calls  # type: ignore[attr-defined]
    look = cached(interrupted_first)
    found: list[str] = []
    interrupted: list[bool] = []

    def work() -> None:
        try:
            found.append(look("key"))
        except KeyboardInterrupt:
            interrupted.append(True)

    threads = [start_thread(work) for _ in range(5)]
    wait_for(lambda: waiting_threads(look) == 4)
    gate.opened.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert (found, interrupted) == (["key"] * 4, [True])
    assert len(gate.calls) == 2


def test_what_is_forgotten_while_it_is_computed_is_not_kept() -> None:
    gate = Gate()
    look = cached(gate)
    found: list[Any] = []
    early = start_thread(lambda: found.append(look("key")))
    wait_for(lambda: gate.calls == ["key"])
    look.forget("key")
    late = start_thread(lambda: found.append(look("key")))
    wait_for(lambda: gate.calls == ["key", "key"])  # it does not wait for the stale value
    look.forget("key")
    gate.opened.set()
    early.join(PATIENCE)
    late.join(PATIENCE)
    assert found == ["key", "key"]
    assert len(look.cache) == 0


def test_a_stale_value_that_comes_late_does_not_replace_the_new_one() -> None:
    stale = threading.Event()
    calls: list[int] = []

    @cached
    def draw(who: str) -> int:
        calls.append(len(calls))
        number = calls[-1]
        if number == 0:
            assert stale.wait(PATIENCE)
        return number

    found: list[int] = []
    early = start_thread(lambda: found.append(draw("a")))
    wait_for(lambda: calls == [0])
    draw.forget("a")
    assert draw("a") == 1
    stale.set()
    early.join(PATIENCE)
    assert found == [0]
    assert (draw("a"), calls) == (1, [0, 1])


def test_a_function_may_call_itself() -> None:
    calls: list[int] = []

    @cached
    def fibonacci(n: int) -> int:
        calls.append(n)
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    assert fibonacci(90) == 2880067194370816120
    assert sorted(calls) == list(range(91))


def test_the_same_key_inside_its_own_computation_is_computed_directly() -> None:
    depths = iter([2, 1, 0])

    @cached
    def dig(where: str) -> str:
        return f"{where}." if next(depths) == 0 else f"<{dig(where)}>"

    assert dig("here") == "<<here.>>"
    assert dig("here") == "<<here.>>"


def test_an_endless_recursion_is_an_error_also_when_two_threads_meet_in_it() -> None:
    both = threading.Barrier(2)
    is_first = threading.local()
    errors: list[type[BaseException]] = []

    @cached
    def ping(x: int) -> int:
        if not hasattr(is_first, "no"):
            is_first.no = True
            both.wait(PATIENCE)  # each computes its own, and then asks for the other's
        return pong(x)

    @cached
    def pong(x: int) -> int:
        if not hasattr(is_first, "no"):
            is_first.no = True
            both.wait(PATIENCE)
        return ping(x)

    def run(function: Any) -> None:
        try:
            function(1)
        except RecursionError as error:
            errors.append(type(error))

    run_in_threads([lambda: run(ping), lambda: run(pong)])
    assert errors == [RecursionError] * 2


def test_a_child_that_is_forked_in_the_middle_of_a_computation_computes_itself(
    children: Children,
) -> None:
    gate = Gate()
    look = cached(gate)
    thread = start_thread(lambda: look("key"))
    wait_for(lambda: gate.calls == ["key"])

    def in_child() -> None:
        gate.opened.set()
        assert look("key") == "key"
        assert gate.calls == ["key", "key"]

    children.start(in_child)
    children.join()
    gate.opened.set()
    thread.join(PATIENCE)
    assert (look("key"), gate.calls) == ("key", ["key"])


# Tasks


def test_a_coroutine_function_stays_one_and_is_called_once() -> None:
    calls: list[int] = []

    @cached(100)
    async def double(x: int) -> int:
        calls.append(x)
        await asyncio.sleep(0)
        return 2 * x

    async def main() -> None:
        assert await asyncio.gather(*[double(number % 3) for number in range(30)]) == [0, 2, 4] * 10
        assert await double(1) == 2

    assert inspect.iscoroutinefunction(double)
    asyncio.run(main())
    assert sorted(calls) == [0, 1, 2]
    asyncio.run(main())  # another loop, the same values
    assert len(calls) == 3


def test_what_is_partly_applied_or_has_an_async_call_is_a_coroutine_function_too() -> None:
    class Client:
        async def __call__(self, x: int) -> int:
            return x

    async def add(x: int, y: int) -> int:
        return x + y

    async def main() -> None:
        call, add_one = cached(Client()), cached(functools.partial(add, 1))
        assert [await call(1), await call(1)] == [1, 1]
        assert [await add_one(1), await add_one(1)] == [2, 2]

    asyncio.run(main())


class Held:
    """A coroutine function that waits until it is released, and counts calls and cancellations."""

    def __init__(self) -> None:
        self.calls = 0
        self.cancelled = 0
        self.released = asyncio.Event()

    async def __call__(self, x: Any) -> Any:
        self.calls += 1
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return x


async def started(held: Held, look: Any, callers: int, key: Any = "key") -> list[Any]:
    tasks = []
    for _ in range(callers):
        tasks.append(asyncio.ensure_future(look(key)))
        await asyncio.sleep(0)
    await wait_until(lambda: held.calls > 0)
    return tasks


def test_to_cancel_the_caller_that_computes_takes_nothing_from_the_others() -> None:
    async def main() -> None:
        held = Held()
        look = cached(held)
        first, *others = await started(held, look, 4)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        held.released.set()
        assert await asyncio.gather(*others) == ["key"] * 3
        assert (held.calls, held.cancelled) == (1, 0)
        assert await look("key") == "key"
        assert held.calls == 1

    asyncio.run(main())


def test_when_all_callers_are_cancelled_so_is_the_computation() -> None:
    async def main() -> None:
        held = Held()
        look = cached(held)
        tasks = await started(held, look, 3)
        for task in tasks:
            task.cancel()
        # One that comes before the cancelled computation has ended begins a new one.
        late = asyncio.ensure_future(look("key"))
        assert [type(one) for one in await asyncio.gather(*tasks, return_exceptions=True)] == [
            asyncio.CancelledError
        ] * 3
        await wait_until(lambda: held.cancelled == 1)
        held.released.set()
        assert await late == "key"
        assert held.calls == 2

    asyncio.run(main())


def test_an_exception_goes_to_all_tasks_that_wait_and_is_not_kept() -> None:
    async def main() -> None:
        calls: list[int] = []

        @cached
        async def fail(x: int) -> None:
            calls.append(x)
            await asyncio.sleep(0)
            raise KeyError(x)

        results = await asyncio.gather(*[fail(1) for _ in range(5)], return_exceptions=True)
        assert [type(one) for one in results] == [KeyError] * 5
        assert calls == [1]
        with pytest.raises(KeyError):
            await fail(1)
        assert calls == [1, 1]

    asyncio.run(main())


def test_what_a_task_has_forgotten_while_it_is_computed_is_not_kept() -> None:
    async def main() -> None:
        held = Held()
        look = cached(held)
        (early,) = await started(held, look, 1)
        look.forget("key")
        late = asyncio.ensure_future(look("key"))
        await wait_until(lambda: held.calls == 2)
        look.forget("key")
        held.released.set()
        assert await asyncio.gather(early, late) == ["key", "key"]
        assert len(look.cache) == 0

    asyncio.run(main())


def test_a_stale_value_of_a_task_that_comes_late_does_not_replace_the_new_one() -> None:
    async def main() -> None:
        held = Held()
        calls: list[int] = []

        @cached
        async def draw(who: str) -> int:
            calls.append(len(calls))
            number = calls[-1]
            if number == 0:
                await held.released.wait()
            return number

        early = asyncio.ensure_future(draw("a"))
        await wait_until(lambda: calls == [0])
        draw.forget("a")
        assert await draw("a") == 1
        held.released.set()
        assert await early == 0
        assert (await draw("a"), calls) == (1, [0, 1])

    asyncio.run(main())


def test_coroutines_that_wait_for_each_other_in_a_circle_do_not_hang() -> None:
    ends = iter([False, False, False, True])

    async def main() -> None:
        @cached
        async def ping(x: int) -> str:
            await asyncio.sleep(0)
            return "end" if next(ends) else await pong(x)

        @cached
        async def pong(x: int) -> str:
            await asyncio.sleep(0)
            return "end" if next(ends) else await ping(x)

        async with asyncio.timeout(PATIENCE):
            assert await asyncio.gather(ping(1), pong(1)) == ["end", "end"]

    asyncio.run(main())


def test_a_task_that_a_computation_waits_for_may_ask_for_its_key() -> None:
    depths = iter([1, 0])

    @cached
    async def dig(where: str) -> str:
        if next(depths) == 0:
            return f"{where}."
        return await asyncio.create_task(dig(where))

    async def main() -> None:
        async with asyncio.timeout(PATIENCE):
            assert await dig("here") == "here."

    asyncio.run(main())


def test_each_event_loop_computes_for_itself() -> None:
    both = threading.Barrier(2)
    calls: list[int] = []

    @cached
    async def meet(x: int) -> int:
        calls.append(x)
        await asyncio.to_thread(both.wait, PATIENCE)
        return x

    async def main() -> None:
        assert await asyncio.gather(meet(1), meet(1)) == [1, 1]

    run_in_threads([lambda: asyncio.run(main())] * 2)
    assert calls == [1, 1]


def test_a_loop_that_ends_leaves_nothing_behind() -> None:
    async def main() -> None:
        look = cached(Held())
        task = asyncio.ensure_future(look("key"))
        await asyncio.sleep(0)
        del task

    asyncio.run(main())  # cancels what is left; a warning would fail this test


def test_values_survive_a_small_cache() -> None:
    @cached(cache=Fifo(1))
    def double(x: int) -> int:
        return 2 * x

    assert [double(x) for x in (1, 2, 1, 2)] == [2, 4, 2, 4]


class FickleKey:
    """Its hash fails after a given number of calls, as in a recursion one frame too deep."""

    def __init__(self) -> None:
        self.hashes_left = 10**9

    def __hash__(self) -> int:
        self.hashes_left -= 1
        if self.hashes_left < 0:
            raise RecursionError("too deep")
        return 7


@pytest.mark.parametrize("hashes", range(8))
def test_whatever_fails_nobody_waits_for_a_computation_that_is_over(hashes: int) -> None:
    @cached(key=lambda key: key)
    def fail(key: FickleKey) -> int:
        raise LookupError("no value")

    key = FickleKey()
    key.hashes_left = hashes
    with pytest.raises((RecursionError, LookupError)):
        fail(key)
    key.hashes_left = 10**9

    def ask() -> None:
        with pytest.raises(LookupError):
            fail(key)

    run_in_threads([ask, ask])


def test_a_task_that_cannot_be_made_is_not_waited_for() -> None:
    @cached
    async def double(x: int) -> int:
        return 2 * x

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def refuse(*_: Any, **__: Any) -> Any:
            raise MemoryError

        loop.set_task_factory(refuse)
        with pytest.raises(MemoryError):
            await double(1)
        loop.set_task_factory(None)
        assert await double(1) == 2

    asyncio.run(main())


def test_a_value_that_refreshes_itself_for_ever_remembers_no_old_computations() -> None:
    depths = []

    @cached
    async def price(item: int) -> int:
        depths.append(len(_part_of.get()))
        if len(depths) < 50:
            asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(refresh(item)))
        return item

    async def refresh(item: int) -> None:
        price.forget(item)
        await price(item)

    async def main() -> None:
        await price(1)
        await wait_until(lambda: len(depths) == 50)

    asyncio.run(main())
    assert max(depths) <= 2


def test_wrong_use_is_refused_at_once() -> None:
    for wrong, error, message in (
        (lambda: cached(classmethod(len)), TypeError, "put @classmethod outside of @cached"),  # type: ignore[call-overload]
        (lambda: cached(staticmethod(len)), TypeError, "put @staticmethod outside of @cached"),
        (lambda: cached(-1), ValueError, "capacity must be from 1"),
        (lambda: cached(policy="nope"), ValueError, "nope"),
    ):
        with pytest.raises(error, match=message):
            wrong()
