"""The limiters themselves behind a gate: shared memory, and a real Redis."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from sluicegate import AsyncRedisKeyed, RedisKeyed, SharedKeyed
from sluicegate.integrations import Rule
from sluicegate.integrations.http.gate import Gate
from tests.harness.servers import RedisServer

MakeRequest = Callable[..., Any]


def test_a_limiter_over_redis_that_blocks_is_refused_in_an_event_loop() -> None:
    with (
        RedisKeyed("redis://127.0.0.1:1", "1/second") as keyed,
        pytest.raises(TypeError, match="use an async limiter"),
    ):
        Gate([Rule(keyed)], in_event_loop=True)


def test_rules_over_redis_are_all_or_nothing(
    make_request: MakeRequest, redis_server: RedisServer
) -> None:
    async def story() -> None:
        wide = AsyncRedisKeyed(redis_server.url, "100/hour", timeout=20.0)
        tight = AsyncRedisKeyed(redis_server.url, "2/hour", timeout=20.0, prefix="tight:")
        async with wide, tight:
            rules = [Rule(wide, name="wide"), Rule(tight, name="tight")]
            gate = Gate(rules, in_event_loop=True)
            verdicts = [await gate.decide_async(make_request()) for _ in range(5)]
            assert [verdict.refused is None for verdict in verdicts] == [True] * 2 + [False] * 3
            look = await wide.check("203.0.113.7", 0)
            assert look.remaining == pytest.approx(98, abs=0.1)

    asyncio.run(story())


def test_rules_in_shared_memory_are_all_or_nothing(make_request: MakeRequest) -> None:
    name = f"test-gate-{os.getpid()}"
    try:
        wide, tight = SharedKeyed(name, "100/hour"), SharedKeyed(f"{name}-tight", "2/hour")
        gate = Gate([Rule(wide, name="wide"), Rule(tight, name="tight")], in_event_loop=True)
        assert not gate.must_await
        verdicts = [gate.decide(make_request()) for _ in range(5)]
        assert [verdict.refused is None for verdict in verdicts] == [True] * 2 + [False] * 3
        assert wide.check("203.0.113.7", 0).remaining == pytest.approx(98, abs=0.1)
    finally:
        SharedKeyed.unlink(name)
        SharedKeyed.unlink(f"{name}-tight")


def test_two_limiters_that_count_in_one_place_are_refused(redis_server: RedisServer) -> None:
    one = RedisKeyed(redis_server.url, "100/minute")
    same_place = RedisKeyed(redis_server.url, "5/minute")
    other = RedisKeyed(redis_server.url, "5/minute", prefix="login:")
    with one, same_place, other:
        with pytest.raises(ValueError, match="count in .* prefix 'sluicegate:': give one of them"):
            Gate([Rule(one), Rule(same_place, name="login")], in_event_loop=False)
        Gate([Rule(one), Rule(other, name="login")], in_event_loop=False)
        Gate([Rule(one), Rule(one, name="twice")], in_event_loop=False)
