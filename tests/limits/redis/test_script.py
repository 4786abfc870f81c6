"""The script gives the answers that `Keyed` gives, on a timeline of our own."""

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import (
    Decision,
    Keyed,
    ManualClock,
    ProtocolError,
    RedisKeyed,
    parse_limits,
)
from sluicegate.limits.redis.script import Script
from sluicegate.redis_client import RedisPool, pack
from tests.harness.servers import RedisServer
from tests.harness.waits import PATIENCE

ALGORITHMS = ["token_bucket", "leaky_bucket", "fixed_window", "sliding_counter", "sliding_window"]
PERIOD = 40
LIMITS = [f"10/{PERIOD} seconds", f"10/{PERIOD} seconds; 14/{2 * PERIOD} seconds"]
numbers = itertools.count()


@pytest.fixture(scope="module")
def pool(redis_process: RedisServer) -> Iterator[RedisPool]:
    pool = RedisPool(redis_process.url, PATIENCE)
    yield pool
    pool.close()


class Timeline:
    """A limiter in Redis on a clock of the test.

    The calls are sent in one transaction, in which Redis's own time stands still. Keys expire in
    real time, so the transaction ends with a PERSIST of each.
    """

    def __init__(self, pool: RedisPool, limits: str, algorithm: str, start: float) -> None:
        self._pool = pool
        self._added: list[bytes] = []
        self.script = Script(parse_limits(limits), algorithm, "test:")
        self._name = f"key {next(numbers)}".encode()
        self._persist = [pack("PERSIST", key) for key in self.script.keys(self._name)]
        self.now = round(start * 1e6)

    def add(self, verb: str, *costs: float) -> None:
        """Ask at the time that is now; the next `answers` has the answer."""
        command = self.script.command_at(self.now, verb, self._name, *costs, whole=not self._added)
        self._added.append(command)

    def answers(self) -> list[Any]:
        """The answers to all that was added, in one round trip."""
        commands = [pack("MULTI"), *self._added, *self._persist, pack("EXEC")]
        deadline = time.monotonic() + PATIENCE
        *_, replies = self._pool.exchange(b"", b"".join(commands), len(commands), deadline)
        answers: list[Any] = replies[: len(self._added)]
        self._added.clear()
        return answers

    def ask(self, verb: str, *costs: float) -> Any:
        self.add(verb, *costs)
        (answer,) = self.answers()
        return answer

    def check(self, cost: float) -> Decision:
        return self.script.read_decision(self.ask("check", cost))


steps = st.one_of(
    st.just(0),
    st.integers(0, 2 * PERIOD * 10**6),
    st.sampled_from([4, 16, PERIOD, 2 * PERIOD, 4 * PERIOD]).map(lambda s: s * 10**6),
    st.sampled_from([1, PERIOD * 10**6 - 1, PERIOD * 10**6 + 1]),
)
Schedule = list[tuple[int, int, bool]]  # microseconds since the one before, cost, is it a refund
schedules = st.lists(st.tuples(steps, st.integers(1, 10), st.booleans()), max_size=25)


@given(
    schedule=schedules,
    start=st.sampled_from([0.0, 12_345.0, 10.0 * PERIOD]),
    limits=st.sampled_from(LIMITS),
)
def test_the_script_and_keyed_agree_on_every_timeline(
    pool: RedisPool, schedule: Schedule, start: float, limits: str
) -> None:
    for algorithm in ALGORITHMS:  # on one schedule: to draw five would take most of the time
        assert_that_they_agree(pool, algorithm, schedule, start, limits)


def assert_that_they_agree(
    pool: RedisPool, algorithm: str, schedule: Schedule, start: float, limits: str
) -> None:
    clock = ManualClock(start)
    keyed = Keyed(limits, algorithm=algorithm, clock=clock)
    timeline = Timeline(pool, limits, algorithm, start)
    twin = Timeline(pool, limits, algorithm, start)  # asked for yes or no alone
    expected: list[Decision | None] = []  # None for a refund
    for step, amount, is_refund in schedule:
        clock.advance(step / 1e6)
        timeline.now = twin.now = timeline.now + step
        cost = 1 if algorithm == "leaky_bucket" else amount
        if is_refund:
            keyed.refund("a", cost)
            timeline.add("refund", cost)
            twin.add("refund", cost)
            expected.append(None)
            cost = 0
        expected.append(keyed.check("a", cost))
        timeline.add("check", cost)
        twin.add("allow", cost)
    answers = zip(expected, timeline.answers(), twin.answers(), strict=True)
    for theirs, answer, is_allowed in answers:
        if theirs is None:
            continue
        ours = timeline.script.read_decision(answer)
        assert ours.allowed is theirs.allowed, algorithm
        assert is_allowed == theirs.allowed, algorithm
        assert abs(ours.retry_after - theirs.retry_after) <= 1e-5, algorithm
        if ours.limit == theirs.limit:  # two may be equally tight, but for the last bit
            assert abs(ours.remaining - theirs.remaining) <= 1e-6, algorithm
            assert abs(ours.reset_after - theirs.reset_after) <= 1e-5, algorithm


def test_the_counter_and_keyed_agree_a_few_microseconds_before_the_edge(pool: RedisPool) -> None:
    """Half a microsecond's worth of the whole rate is more than the last of a small use."""
    clock = ManualClock()
    keyed = Keyed("10/40 seconds", algorithm="sliding_counter", clock=clock)
    timeline = Timeline(pool, "10/40 seconds", "sliding_counter", 0.0)
    for step, cost in ((20_000_000, 1), (50_000_000, 5), (9_999_995, 5)):
        clock.advance(step / 1e6)
        timeline.now += step
        assert timeline.check(cost).allowed is keyed.check("a", cost).allowed
    assert not keyed.allow("a", 5)


NOW = 1_790_000_000.0


def test_the_usual_command_is_the_command() -> None:
    for limits in ("5/second", "5/second; 9/minute; 20/minute"):
        for prefix in ("sluicegate:", "50%:%d", ""):
            script = Script(parse_limits(limits), "token_bucket", prefix)
            for name in (b"", b"a", b"%s%d", b"x" * 512):
                assert script.fast_path(name) == script.command("allow", name, 1.0)


@pytest.mark.parametrize(
    "reply", [None, 5, b"", b"1 2 3", b"1 7 0 0 0", b"1 0 x 0 0", [1], b"1 nan 0 0 0"]
)
def test_an_answer_that_makes_no_sense_is_a_protocol_error(reply: object) -> None:
    script = Script(parse_limits("5/second"), "token_bucket", "p:")
    for read in (script.read_decision, script.read_grant, script.read_allow):
        with pytest.raises(ProtocolError, match="invalid reply from the Redis script"):
            read(reply)


def test_a_million_per_second_is_counted_one_by_one(pool: RedisPool) -> None:
    timeline = Timeline(pool, "1000000/second burst 3", "token_bucket", NOW)
    assert [timeline.ask("allow", 1) for _ in range(4)] == [1, 1, 1, 0]
    passed = 0
    for _ in range(200):
        timeline.now += 1
        passed += timeline.ask("allow", 1) + timeline.ask("allow", 1)
    assert passed == 200


def test_whole_costs_add_up_exactly(pool: RedisPool) -> None:
    timeline = Timeline(pool, "1000/day burst 1000", "token_bucket", NOW)
    assert timeline.check(700).remaining == 300.0
    assert timeline.check(299).remaining == 1.0
    assert timeline.ask("allow", 1) == 1
    assert timeline.ask("allow", 1) == 0


def test_refill_is_continuous_and_not_once_a_second(pool: RedisPool) -> None:
    timeline = Timeline(pool, "10/second burst 1", "token_bucket", NOW)
    passed = []
    for _ in range(40):
        passed.append(timeline.ask("allow", 1))
        timeline.now += 50_000
    assert passed == [1, 0] * 20


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_clock_that_steps_back_mints_nothing(pool: RedisPool, algorithm: str) -> None:
    timeline = Timeline(pool, "1/minute", algorithm, NOW)
    assert timeline.ask("allow", 1) == 1
    timeline.now -= 3600 * 10**6
    assert timeline.ask("allow", 1) == 0
    timeline.now += 3600 * 10**6
    assert timeline.ask("allow", 1) == 0
    timeline.now += 120 * 10**6
    assert timeline.ask("allow", 1) == 1


def test_a_large_log_is_searched_by_halves(pool: RedisPool) -> None:
    timeline = Timeline(pool, "500/hour", "sliding_window", NOW)
    for _ in range(500):
        assert timeline.ask("allow", 1) == 1
        timeline.now += 10**6
    # The oldest 100 leave one second after another, the first of them 3100 s from now.
    assert timeline.check(100).retry_after == pytest.approx(3600 - 500 + 99)
    timeline.now += (3600 - 500 + 99) * 10**6
    assert timeline.check(100).allowed


@pytest.mark.parametrize("limits", ["60/week", "1/day; 60/week"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_keys_expire_when_nothing_is_in_use_any_more(
    redis_server: RedisServer, algorithm: str, limits: str
) -> None:
    # With the nodes given, so nothing but this key is there.
    options: dict[str, Any] = {"algorithm": algorithm, "nodes": 1, "timeout": PATIENCE}
    with (
        RedisKeyed(redis_server.url, limits, **options) as keyed,
        redis_server.client as client,
    ):
        assert keyed.check("a", 0).allowed
        assert client.keys() == []  # a look leaves nothing behind
        assert keyed.allow("a")
        names = client.keys()
        assert len(names) == len(keyed.limits)
        for name in names:
            period = int(name.rpartition("{a}:")[2][1:])  # after the letter of the algorithm
            assert 0 < client.pttl(name) <= 2 * period * 1000 + 2
        keyed.reset("a")
        assert client.keys() == []


def test_a_key_of_the_log_expires_also_after_a_refund(redis_server: RedisServer) -> None:
    options: dict[str, Any] = {"algorithm": "sliding_window", "nodes": 1, "timeout": PATIENCE}
    with (
        RedisKeyed(redis_server.url, "10/minute", **options) as keyed,
        redis_server.client as client,
    ):
        for cost, back in ((5, 2), (3, 1), (2, 4)):
            assert keyed.allow("a", cost)
            keyed.refund("a", back)
            (name,) = client.keys()
            assert 0 < client.pttl(name) <= 60_001
        assert keyed.check("a", 0).remaining == 7.0
        keyed.refund("a", 10)
        assert client.keys() == []
