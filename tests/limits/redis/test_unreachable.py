"""A real Redis that hangs, dies and comes back under load. Real time on purpose."""

import itertools
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType

import pytest

from sluicegate import ManualClock, RedisKeyed, Unavailable
from tests.harness.lateness import Lateness
from tests.harness.servers import RedisServer
from tests.harness.waits import PATIENCE, wait_for

PATIENT = 20.0  # seconds for Redis where its being late is not the point
TIMEOUT = 0.2
ALLOWED_OVER = 0.1  # half of it: one that waits twice is found out
RETURN = 90.0  # seconds until Redis is asked again, should several probes meet a busy machine


class Load:
    """Threads that call without pause, and when their calls began and ended."""

    def __init__(self, call: Callable[[], object], threads: int = 6) -> None:
        self._call = call
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._work) for _ in range(threads)]
        self._lateness = Lateness()
        self.calls: list[tuple[float, float]] = []

    def _work(self) -> None:
        while not self._done.is_set():
            start = time.monotonic()
            self._call()
            self.calls.append((start, time.monotonic()))
            time.sleep(0.0005)  # or local decisions alone would fill the machine

    def __enter__(self) -> "Load":
        self._lateness.__enter__()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        self._lateness.__exit__(kind, error, trace)

    def assert_that_no_call_was_held_up(self) -> None:
        long = [(start, end) for start, end in self.calls if end - start >= TIMEOUT / 2]
        assert long, "no call had to wait at all"
        for start, end in long:
            assert end - start <= TIMEOUT + ALLOWED_OVER + self._lateness.between(start, end)


@pytest.mark.parametrize("mode", ["exact", "leased"])
def test_no_call_waits_longer_than_the_time_out_while_redis_is_stopped_killed_and_restarted(
    redis_server: RedisServer, mode: str
) -> None:
    keys = itertools.cycle(f"user {number}" for number in range(50))
    with RedisKeyed(
        redis_server.url, "1000000/second burst 1000000", mode=mode, timeout=TIMEOUT
    ) as keyed:
        with Load(lambda: keyed.allow(next(keys))) as load:

            def until(*states: str, calls: int = 0) -> None:
                enough = keyed.metrics.calls + calls
                wait_for(
                    lambda: keyed.metrics.state in states and keyed.metrics.calls >= enough,
                    RETURN,
                    lambda: keyed.metrics,
                )

            until("redis", calls=300)
            redis_server.stop()
            until("local")
            until("probing")
            until("local", calls=300)  # a probe has failed, too
            redis_server.cont()
            until("redis")
            redis_server.kill()
            until("local")
            locally = keyed.metrics.decided_locally
            redis_server.start()
            until("redis", calls=300)
        load.assert_that_no_call_was_held_up()
        metrics = keyed.metrics
        assert metrics.decided_locally >= locally > 0
        assert metrics.errors > 0
        assert metrics.denied == 0


def test_when_redis_is_away_each_node_has_its_share_and_metrics_say_so(
    redis_server: RedisServer, clock: ManualClock
) -> None:
    with RedisKeyed(redis_server.url, "80/minute", nodes=8, timeout=PATIENT, clock=clock) as keyed:
        assert keyed.allow("a", 30)
        redis_server.kill()
        assert [keyed.allow("a") for _ in range(12)] == [True] * 10 + [False] * 2
        denied = keyed.check("a")
        assert str(denied.limit) == "80/minute"
        assert denied.retry_after == pytest.approx(6.0)
        metrics = keyed.metrics
        assert (metrics.state, metrics.decided_locally, metrics.errors) == ("local", 13, 1)
        assert metrics.backoff == pytest.approx(0.5)
        assert "lost the connection" in metrics.last_error or "cannot connect" in metrics.last_error
        assert "state='local'" in repr(keyed)
        assert "last_error=" in repr(keyed)
        keyed.refund("a", 5)
        assert keyed.allow("a", 5)
        redis_server.start()
        clock.advance(0.5)
        assert keyed.check("a", 0).remaining == 80.0  # Redis forgot; it is its memory that counts
        assert keyed.metrics.state == "redis"


def test_on_error_may_allow_or_deny(redis_server: RedisServer, clock: ManualClock) -> None:
    redis_server.kill()
    for on_error, passed in (("allow", 20), ("deny", 0)):
        with RedisKeyed(redis_server.url, "5/day", on_error=on_error, clock=clock) as keyed:
            assert sum(keyed.allow("a") for _ in range(20)) == passed
            decision = keyed.check("a")
            assert decision.allowed is (on_error == "allow")
            assert decision.retry_after == pytest.approx(0.0 if decision.allowed else 0.5)
            keyed.refund("a", 1)
            with pytest.raises(Unavailable):
                keyed.reset("a")


def test_the_back_off_grows_and_one_call_probes_at_a_time(
    redis_server: RedisServer, clock: ManualClock
) -> None:
    redis_server.stop()
    with RedisKeyed(redis_server.url, "5/day", timeout=0.05, clock=clock) as keyed:
        backoffs = []
        for _ in range(8):
            keyed.allow("a")
            backoffs.append(round(keyed.metrics.backoff, 6))
            clock.advance(keyed.metrics.backoff)
        assert backoffs == [0.5, 1, 2, 4, 8, 16, 30, 30]
        assert keyed.metrics.errors == 8
        redis_server.cont()
        reconnect(keyed, clock)


def reconnect(keyed: RedisKeyed, clock: ManualClock) -> None:
    """Until Redis has answered, however late a busy machine lets it."""

    def probe() -> bool:
        clock.advance(30)
        keyed.allow("a")
        return keyed.metrics.state == "redis"

    wait_for(probe, seen=lambda: keyed.metrics)


def test_a_name_nobody_knows_is_an_outage_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    with RedisKeyed("redis://nowhere.invalid", "5/day", timeout=PATIENT) as keyed:
        assert [keyed.allow("a") for _ in range(6)] == [True] * 5 + [False]
        assert "nowhere.invalid" in keyed.metrics.last_error


def test_a_wrong_password_is_an_outage_that_metrics_explain(redis_server: RedisServer) -> None:
    url = redis_server.url.replace("//", "//nobody:hush@")
    with RedisKeyed(url, "5/day", timeout=PATIENT) as keyed:
        assert keyed.allow("a")
        assert "WRONGPASS" in keyed.metrics.last_error
        assert "hush" not in repr(keyed) + str(keyed.metrics)


def test_a_replica_is_not_asked_twice(redis_server: RedisServer) -> None:
    """A failover that left us at what is a replica now."""
    with (
        RedisKeyed(redis_server.url, "5/day", timeout=PATIENT) as keyed,
        redis_server.client as client,
    ):
        client.replicaof("127.0.0.1", 1)
        try:
            assert keyed.allow("a")
            assert keyed.metrics.state == "local"
            assert "READONLY" in keyed.metrics.last_error or "read" in keyed.metrics.last_error
            assert keyed._pool.idle == 0  # the next call finds out where the master is now
        finally:
            client.replicaof("NO", "ONE")


def test_a_closed_limiter_goes_on_locally(redis_server: RedisServer) -> None:
    keyed = RedisKeyed(redis_server.url, "5/day")
    keyed.close()
    keyed.close()
    assert keyed.allow("a")
    assert keyed.metrics.decided_locally == 1


@pytest.mark.parametrize("verb", ["allow", "check"])  # the two go different ways to the socket
def test_signals_do_not_stretch_the_time_out(
    redis_server: RedisServer, clock: ManualClock, verb: str
) -> None:
    """A profiler's timer interrupts every wait; each must go on with what is left of it."""
    caller, is_over = threading.get_ident(), threading.Event()

    def interrupt() -> None:
        end = time.monotonic() + PATIENCE / 2
        while not is_over.wait(TIMEOUT / 4) and time.monotonic() < end:
            signal.pthread_kill(caller, signal.SIGUSR1)

    interrupter = threading.Thread(target=interrupt)
    interrupted: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: interrupted.append(number))
    try:
        with (
            RedisKeyed(redis_server.url, "5/day", timeout=TIMEOUT, clock=clock) as keyed,
            Lateness() as lateness,
        ):
            reconnect(keyed, clock)
            redis_server.stop()
            interrupter.start()
            start = time.monotonic()
            getattr(keyed, verb)("a")
            end = time.monotonic()
            is_over.set()
            interrupter.join(PATIENCE)
            redis_server.cont()
            assert interrupted
            assert (
                TIMEOUT / 2 <= end - start <= TIMEOUT + ALLOWED_OVER + lateness.between(start, end)
            )
    finally:
        is_over.set()
        signal.signal(signal.SIGUSR1, before)
