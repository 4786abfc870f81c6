"""`RedisKeyed` against a real Redis, and the faults found in its peers."""

import contextlib
import dataclasses
import enum
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
import redis

from sluicegate import Limit, ManualClock, RateLimited, RedisKeyed, SystemClock
from sluicegate.limits.redis.key_encoding import MAX_KEY_BYTES, encode_key
from sluicegate.limits.redis.script import Script
from sluicegate.redis_client.topology import slot_of
from tests.harness.lateness import Lateness
from tests.harness.servers import RedisServer
from tests.harness.threads import run_in_threads
from tests.harness.waits import PATIENCE, wait_for

ALGORITHMS = ["token_bucket", "fixed_window", "sliding_counter", "sliding_window"]
# No test of the answers shall fail because the machine was busy for some seconds.
PATIENT = 20.0


@pytest.fixture
def make(redis_server: RedisServer) -> Iterator[Callable[..., RedisKeyed]]:
    made: list[RedisKeyed] = []

    def make_one(limit: Any, **options: Any) -> RedisKeyed:
        made.append(RedisKeyed(redis_server.url, limit, **{"timeout": PATIENT, **options}))
        return made[-1]

    yield make_one
    for keyed in made:
        keyed.close()


Make = Callable[..., RedisKeyed]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_processes_share_one_limit_per_key(make: Make, algorithm: str) -> None:
    one, other = make("6/week", algorithm=algorithm), make("6/week", algorithm=algorithm)
    assert [one.allow("a"), other.allow("a", 4), one.allow("a"), other.allow("a")] == [
        True,
        True,
        True,
        False,
    ]
    assert other.allow("b", 6)


def test_a_decision_tells_all(make: Make) -> None:
    keyed = make("10/second; 12/week", algorithm="fixed_window")
    assert keyed.check("a", 8).remaining == 2.0
    denied = keyed.check("a", 5)
    assert not denied
    assert denied.limit == Limit(12, 604800)
    assert 0 < denied.retry_after <= 604800
    assert denied.reset_after >= denied.retry_after
    assert (keyed.limits, keyed.algorithm, keyed.mode) == (
        (Limit(10, 1), Limit(12, 604800)),
        "fixed_window",
        "exact",
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_several_limits_agree_or_none_is_charged_and_denied_calls_are_not_charged(
    make: Make, algorithm: str
) -> None:
    keyed = make("3/day; 100/week", algorithm=algorithm)
    assert keyed.allow("a", 3)
    for _ in range(50):
        assert not keyed.allow("a")
    weekly = make("100/week", algorithm=algorithm)
    assert weekly.check("a", 0).remaining == pytest.approx(97, abs=0.01)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_refund_gives_back_and_never_above_full_and_a_reset_forgets(
    make: Make, algorithm: str
) -> None:
    keyed = make("5/week", algorithm=algorithm)
    keyed.refund("stranger", 3)
    keyed.allow("a", 5)
    keyed.refund("a", 2)
    assert keyed.check("a", 0).remaining == pytest.approx(2, abs=0.01)
    keyed.refund("a", 100)
    assert keyed.check("a", 0).remaining == 5
    keyed.allow("a", 5)
    keyed.reset("a")
    assert keyed.check("a", 0).remaining == 5


def test_two_limits_over_one_period_are_two_limits(make: Make) -> None:
    keyed = make("5/day burst 5; 4/day burst 9")
    assert keyed.allow("a", 5)
    assert keyed.check("a", 0).remaining == pytest.approx(0, abs=0.01)


# --- faults found in peers


def test_a_flushed_script_cache_is_not_noticed_by_callers(
    make: Make, redis_server: RedisServer
) -> None:
    keyed = make("1000/week")
    with redis_server.client as client:
        for _ in range(20):
            client.script_flush()
            assert keyed.allow("a")
        assert keyed.check("a", 0).remaining == pytest.approx(980, abs=0.1)
    assert (keyed.metrics.errors, keyed.metrics.decided_locally) == (0, 0)


def test_a_flushed_script_cache_under_load_of_threads_loses_no_call(
    make: Make, redis_server: RedisServer
) -> None:
    keyed = make("1000/week burst 1000000")
    done = threading.Event()

    def flush() -> None:
        with redis_server.client as client:
            while not done.is_set():
                client.script_flush()

    def work() -> None:
        for _ in range(100):
            keyed.allow("a")

    flusher = threading.Thread(target=flush)
    workers = [threading.Thread(target=work) for _ in range(4)]
    for thread in (flusher, *workers):
        thread.start()
    for thread in workers:
        thread.join(PATIENCE)
    done.set()
    flusher.join(PATIENCE)
    assert keyed.check("a", 0).remaining == pytest.approx(1_000_000 - 400, abs=0.5)
    metrics = keyed.metrics
    assert (metrics.state, metrics.allowed, metrics.errors) == ("redis", 400, 0)


def test_a_changed_limit_on_a_live_key_carries_over_what_was_used(make: Make) -> None:
    make("10/day").allow("a", 8)
    assert make("20/day").check("a", 0).remaining == pytest.approx(12, abs=0.01)
    assert not make("5/day").allow("a")


def test_a_changed_algorithm_on_a_live_key_is_no_error(make: Make) -> None:
    for algorithm in [*ALGORITHMS, "leaky_bucket", *ALGORITHMS]:
        keyed = make("100/day", algorithm=algorithm)
        assert keyed.check("a").limit == Limit(100, 86400)
        assert keyed.metrics.errors == 0


def test_contention_is_never_reported_as_a_denial(make: Make) -> None:
    keyed = make("1000/week")
    answers: list[bool] = []

    def work() -> None:
        answers.extend(keyed.allow("a") for _ in range(125))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert answers == [True] * 1000
    assert not keyed.allow("a")


def ask(url: str, algorithm: str, results: Any) -> None:
    with RedisKeyed(url, "1000/week", algorithm=algorithm, timeout=PATIENT) as keyed:
        results.put(sum(keyed.allow("a") for _ in range(400)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_four_processes_get_the_limit_and_not_one_more(
    redis_server: RedisServer, algorithm: str
) -> None:
    fork = multiprocessing.get_context("fork")
    results = fork.Queue()
    workers = [
        fork.Process(target=ask, args=(redis_server.url, algorithm, results)) for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    passed = sum(results.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join(PATIENCE)
    assert passed == 1000


@contextlib.contextmanager
def busy(server: RedisServer) -> Iterator[None]:
    """A script runs in Redis, which meanwhile answers BUSY."""
    endless = (
        "local time = redis.call('TIME') local last = time[1] + ARGV[1] "
        "repeat time = redis.call('TIME') until time[1] + 0 > last"
    )

    def run_until_killed() -> None:
        with server.client as client, contextlib.suppress(redis.RedisError):
            client.eval(endless, 0, int(PATIENCE))

    def is_busy() -> bool:
        try:
            return not client.ping()
        except redis.ResponseError as error:
            return "BUSY" in str(error)

    script = threading.Thread(target=run_until_killed)
    with server.client as client:
        client.config_set("lua-time-limit", 10)
        script.start()
        try:
            wait_for(is_busy)
            yield
        finally:
            client.script_kill()
            script.join(PATIENCE)
            client.config_set("lua-time-limit", 5000)


def test_a_server_that_is_busy_has_denied_nothing(
    redis_server: RedisServer, clock: ManualClock
) -> None:
    with RedisKeyed(redis_server.url, "1000/week", timeout=PATIENT, clock=clock) as keyed:
        assert keyed.allow("a")
        with busy(redis_server):
            assert all(keyed.allow("a") for _ in range(10))
        metrics = keyed.metrics
        assert (metrics.denied, metrics.decided_locally, metrics.state) == (0, 10, "local")
        assert "BUSY" in metrics.last_error


class NotingClock(SystemClock):
    """The machine's clock, and how long its callers wanted to sleep."""

    def __init__(self) -> None:
        self.naps: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        super().sleep(seconds)


def test_a_limit_of_fifty_a_second_with_waiting_delivers_fifty(make: Make) -> None:
    # Real time on purpose: 0.6 s in which 30 come after a burst of 50. However late a busy machine
    # makes them, those who wait sleep no longer in all than it takes until there are 30. Redis may
    # pause for half a second, too.
    clock = NotingClock()
    keyed = make("50/second", clock=clock)
    waited: list[float] = []
    with Lateness() as lateness:
        start = time.monotonic()
        assert keyed.allow("a", 50)
        run_in_threads([lambda: waited.extend(keyed.acquire("a") for _ in range(10))] * 3)
        end = time.monotonic()
        late = lateness.between(start, end)
    assert len(waited) == 30
    assert 0.55 < end - start < 1.3 + late  # with 15 a second it would be 2
    assert sum(clock.naps) < 0.75


def test_no_thread_is_started_per_call(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    keyed = make("1000/second")
    away = RedisKeyed("redis://127.0.0.1:1", "1000/second")
    started = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread))
    for _ in range(50):
        assert keyed.allow("a")
        assert away.allow("a")
    assert started == []


# --- waiting


def test_waiting_has_a_time_out_that_is_refused_at_once_where_it_can_be(make: Make) -> None:
    keyed = make("1/day")
    assert keyed.acquire("a") == 0.0
    start = time.monotonic()
    with pytest.raises(RateLimited, match="1/day: 0 left, try again in") as caught:
        keyed.acquire("a", timeout=2 * PATIENCE)
    assert time.monotonic() - start < PATIENCE
    assert 86_000 < caught.value.retry_after <= 86_400
    with pytest.raises(ValueError, match="timeout"):
        keyed.acquire("a", timeout=-1)


def test_a_refund_wakes_the_one_who_waits(make: Make) -> None:
    keyed = make("1/day")
    keyed.allow("a")
    waited: list[float] = []
    thread = threading.Thread(target=lambda: waited.append(keyed.acquire("a")), daemon=True)
    thread.start()
    wait_for(lambda: "a" in keyed._queues)
    keyed.refund("a", 1)
    thread.join(PATIENCE)
    assert len(waited) == 1


# --- keys


class Color(enum.StrEnum):
    RED = "red"


def test_different_keys_are_different_and_equal_keys_are_one() -> None:
    different: list[Any] = [
        *("1", b"1", 1, ("1",), (b"1",), (1,), ("1", "1"), (("1",), "1"), ("1", ("1",))),
        *((), "", -1, "\0i1", "\0s\0i1", ("11",), ("1:1",), "}", "}a", "{", "\ud800"),
        *(
            "x" * MAX_KEY_BYTES,
            "x" * (MAX_KEY_BYTES + 1),
            "x" * (MAX_KEY_BYTES + 2),
            ("a", "b"),
            ("ab",),
        ),
    ]
    encoded = [encode_key(key) for key in different]
    assert len(set(encoded)) == len(different)
    assert max(map(len, encoded)) <= MAX_KEY_BYTES
    assert encode_key(Color.RED) == encode_key("red") == b"red"
    assert encode_key(True) == encode_key(1)


def test_keys_with_braces_stay_on_one_server() -> None:
    script = Script([Limit(1, 1), Limit(5, 60)], "token_bucket", "p:")
    for key in ("}", "{", "{}", "a}b{c", "}{", b"}", ("}",)):
        first, second = script.keys(encode_key(key))
        assert slot_of(first) == slot_of(second)


@pytest.mark.parametrize(
    "key", [None, 1.5, ("a", None), object(), ((((((((("deep",),),),),),),),),)]
)
def test_other_keys_are_refused(make: Make, key: Any) -> None:
    keyed = make("1/second")
    for call in (keyed.allow, keyed.check, keyed.reset):
        with pytest.raises(TypeError, match="key must be"):
            call(key)


# --- arguments


WRONG: dict[str, dict[str, Any]] = {
    "limit must|expected a number": {"limit": ""},
    "algorithm must be one of": {"algorithm": "magic"},
    "mode must be one of exact, leased, got 'fast'": {"mode": "fast"},
    "on_error must be one of local, allow, deny": {"on_error": "ignore"},
    "timeout must be a finite number above 0, got 0": {"timeout": 0},
    "nodes must be from 1": {"nodes": 0},
    "lot needs mode='leased'": {"lot": 5},
    "lot must be at most 10, the largest burst, got 11": {"mode": "leased", "lot": 11},
    "lot must be a finite number above 0": {"mode": "leased", "lot": 0},
    "'leased' needs algorithm='token_bucket'": {"mode": "leased", "algorithm": "fixed_window"},
    "prefix must be a string without braces": {"prefix": "a{b}"},
    "has a burst; only the token bucket": {"limit": "10/s burst 20", "algorithm": "fixed_window"},
}


@pytest.mark.parametrize("reason", WRONG)
def test_what_is_wrong_is_said_at_once(reason: str) -> None:
    options = {"limit": "10/second", **WRONG[reason]}
    with pytest.raises(ValueError, match=reason):
        RedisKeyed("redis://127.0.0.1:1", options.pop("limit"), **options)


def test_a_cost_may_be_any_kind_of_number(make: Make) -> None:
    keyed = make("10/day", nodes=1)
    assert keyed.allow("a", Fraction(5, 2))  # type: ignore[arg-type]
    assert keyed.allow("a", True)
    assert keyed.check("a", Decimal("1.5")).remaining == pytest.approx(5.0, abs=0.01)  # type: ignore[arg-type]
    assert keyed.metrics.errors == 0
    with pytest.raises(TypeError, match="cost must be a number, got '5'"):
        keyed.allow("a", "5")  # type: ignore[arg-type]


@pytest.mark.parametrize("cost", [0, -1, 11, float("nan"), float("inf")])
def test_a_cost_that_can_never_pass_is_a_mistake(make: Make, cost: float) -> None:
    for keyed in (make("10/second"), make("10/second", mode="leased")):
        with pytest.raises(ValueError, match="cost must be above 0 and at most 10"):
            keyed.allow("a", cost)
        with pytest.raises(ValueError, match="cost must be"):
            keyed.refund("a", -1)
    with pytest.raises(ValueError, match="whole number for sliding_window, got 1.5"):
        make("10/second", algorithm="sliding_window").allow("a", 1.5)


def test_repr_and_metrics_are_for_the_one_on_call(make: Make) -> None:
    keyed = make("10/second")
    keyed.allow("a")
    assert repr(keyed) == (
        "RedisKeyed('10/second', algorithm='token_bucket', mode='exact', state='redis', nodes=1)"
    )
    metrics = keyed.metrics
    assert (metrics.calls, metrics.allowed, metrics.state, metrics.backoff) == (1, 1, "redis", 0.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        metrics.calls = 5  # type: ignore[misc]


def test_the_number_of_nodes_is_learned_and_a_closed_one_leaves(make: Make) -> None:
    nodes = [make("10/second") for _ in range(3)]
    for node in nodes:
        node.allow("a")
    assert nodes[-1].metrics.nodes == 3
    nodes[0].close()
    last = make("10/second")
    last.allow("a")
    assert last.metrics.nodes == 3
    assert make("10/second", nodes=7).metrics.nodes == 7


def test_a_forked_child_is_a_node_of_its_own_and_has_no_leases(redis_server: RedisServer) -> None:
    code = f"""
import os
from sluicegate import ManualClock, RedisKeyed
# On this clock no lease lapses.
options = dict(mode="leased", lot=100, timeout=20, clock=ManualClock())
keyed = RedisKeyed({redis_server.url!r}, "1000/week", **options)
assert keyed.allow("a")
assert keyed.metrics.leases == 1
if os.fork() == 0:
    fine = keyed.metrics.leases == 0 and keyed.allow("a") and keyed.metrics.nodes == 2
    keyed.close()
    os._exit(0 if fine else 1)
_, status = os.wait()
assert status == 0
assert keyed.allow("a") and keyed.metrics.leases == 1
keyed.close()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=90)
