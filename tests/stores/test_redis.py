"""`RedisStore` on a real Redis: its keys, and what happens when Redis is away, empty or strange."""

import logging
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sluicegate import ProtocolError, Unavailable
from sluicegate.redis_client import ErrorReply
from sluicegate.stores import RedisStore
from sluicegate.stores.redis import _read_reply
from sluicegate.stores.store import KEEP_AFTER_END, CounterKey
from tests.harness.children import Children
from tests.harness.servers import RedisServer
from tests.harness.store_requests import ALWAYS, Writer, minute, update

Connect = Callable[..., RedisStore]


def test_keys_of_a_cluster_have_one_hash_tag(redis_server: RedisServer, connect: Connect) -> None:
    keys = [ALWAYS, minute(), minute()._replace(name="a:b%", labels=("de", "c:d"))]
    Writer(connect(), "a").sync(*(update(key, 1.0) for key in keys))
    assert sorted(redis_server.client.keys("*")) == [
        "sluicegate:{shop}:a%3Ab%25:every_60:de:c%3Ad",
        "sluicegate:{shop}:ads%3Apass:every_60",
        "sluicegate:{shop}:clicks:always",
        "sluicegate:{shop}:writers",
    ]


def test_a_counter_expires_after_its_period(redis_server: RedisServer, connect: Connect) -> None:
    writer = Writer(connect(), "a")
    once = CounterKey("once", (), 0.5, minute().end + 600.5, 0.0)
    writer.sync(update(minute(), 1.0), update(once, 1.0), update(ALWAYS, 1.0))
    client = redis_server.client

    def expiry(name: str) -> float:
        return time.time() + client.pttl(f"sluicegate:{{shop}}:{name}") / 1000.0

    assert expiry("ads%3Apass:every_60") == pytest.approx(minute().end + KEEP_AFTER_END, abs=90)
    assert expiry(f"once:0.5_{once.end!r}") == pytest.approx(once.end + KEEP_AFTER_END, abs=90)
    assert client.pttl("sluicegate:{shop}:clicks:always") == -1
    writer.tell(minute(60), 1.0)
    assert expiry("ads%3Apass:every_60") == pytest.approx(minute(60).end + KEEP_AFTER_END, abs=90)


def test_a_counter_that_ended_long_ago_leaves_nothing(
    redis_server: RedisServer, connect: Connect
) -> None:
    assert Writer(connect(), "a").tell(minute(-2 * 24 * 60), 3.0).sum == 3.0
    assert redis_server.client.keys("*ads*") == []


def test_a_thousand_counters_are_one_command(redis_server: RedisServer, connect: Connect) -> None:
    writer = Writer(connect(), "a")
    writer.tell(ALWAYS, 1.0)  # from here on Redis knows the script
    redis_server.client.config_resetstat()
    names = [ALWAYS._replace(name=f"counter-{number}") for number in range(1000)]
    reply = writer.sync(*(update(key, float(place)) for place, key in enumerate(names)))
    assert [totals.sum for totals in reply.totals] == [float(place) for place in range(1000)]
    commands = redis_server.client.info("commandstats")
    assert commands["cmdstat_evalsha"]["calls"] == 1
    assert "cmdstat_eval" not in commands


def test_very_many_counters_are_told_in_several_commands(
    redis_server: RedisServer, connect: Connect
) -> None:
    writer = Writer(connect(), "a")
    writer.tell(ALWAYS, 1.0)
    client = redis_server.client
    client.config_resetstat()
    names = [ALWAYS._replace(name=f"counter-{number}") for number in range(4500)]
    client.set("sluicegate:{shop}:counter-4200:always", "mine")
    told = [float(place) for place in range(4500)]
    request = writer.request(*map(update, names, told))
    for _ in range(2):  # a repeated one changes nothing
        reply = writer.store.sync(request)
        told[4200] = 0.0
        assert [totals.sum for totals in reply.totals] == told
        assert (reply.nodes, reply.skipped) == (1, {4200})
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 2 * 3


def test_periods_of_one_counter_may_be_told_in_two_commands(connect: Connect) -> None:
    writer = Writer(connect(), "a")
    fillers = [update(ALWAYS._replace(name=f"counter-{n}"), 0.0) for n in range(1999)]
    writer.tell(minute(), 2.0)
    request = writer.request(*fillers, update(minute(), 5.0), update(minute(1), 1.0))
    for _ in range(2):
        assert [totals.sum for totals in writer.store.sync(request).totals[-2:]] == [5.0, 1.0]
    reply = Writer(writer.store, "b").sync(update(minute(), 1.0), update(minute(1), 1.0))
    assert [totals.sum for totals in reply.totals] == [6.0, 2.0]


def test_a_store_away_is_unavailable_and_loses_nothing_that_is_told_again(
    redis_server: RedisServer, connect: Connect
) -> None:
    writer = Writer(connect(timeout=0.5), "a")
    patient = Writer(connect(), "b")
    patient.tell(ALWAYS, 1.0)
    redis_server.stop()
    with pytest.raises(Unavailable):
        writer.tell(ALWAYS, 3.0)  # Redis carries it out when it goes on
    redis_server.cont()
    writer.store = patient.store
    assert writer.tell(ALWAYS, 4.0).sum == 5.0
    redis_server.kill()
    with pytest.raises(Unavailable):
        writer.tell(ALWAYS, 5.0)


def test_an_empty_redis_is_filled_by_the_next_sync_of_each_writer(
    redis_server: RedisServer, connect: Connect
) -> None:
    store = connect()
    a, b = Writer(store, "a"), Writer(store, "b")
    a.tell(minute(), 10.0, want=5.0, ceiling=30.0)
    b.tell(minute(), 20.0)
    redis_server.restart()
    a.tell(minute(), 11.0, want=5.0, ceiling=30.0)
    totals = b.tell(minute(), 20.0)
    assert (totals.sum, totals.count, totals.held) == (31.0, 31, 5.0)


def test_an_append_only_redis_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    try:
        store = RedisStore(server.url, timeout=60.0)
        Writer(store, "dead").tell(minute(), 10.0)
        live = Writer(store, "live")
        live.tell(minute(), 5.0, rate=2.0, want=3.0)
        server.restart()
        totals = live.tell(minute(), 6.0, rate=2.0, want=3.0)
        assert (totals.sum, totals.rate, totals.held) == (16.0, 2.0, 3.0)
        store.close()
    finally:
        server.close()


def test_a_script_that_redis_forgot_is_sent_again(
    redis_server: RedisServer, connect: Connect
) -> None:
    writer = Writer(connect(), "a")
    writer.tell(ALWAYS, 1.0)
    redis_server.client.script_flush()
    assert writer.tell(ALWAYS, 2.0).sum == 2.0


def test_a_key_of_another_kind_is_not_overwritten_and_keeps_no_other_from_its_sync(
    redis_server: RedisServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    client, name = redis_server.client, "sluicegate:{shop}:clicks:always"
    client.set(name, "mine")
    writer = Writer(connect(), "a")
    for total in (1.0, 2.0, 3.0):
        reply = writer.sync(update(ALWAYS, total), update(minute(), total))
        assert (reply.skipped, reply.totals[1].sum) == ({0}, total)
    assert client.get(name) == "mine"
    (record,) = caplog.records  # not one for each sync
    assert record.levelno == logging.ERROR
    assert f"Redis key {name} cannot be used" in record.getMessage()
    assert "WRONGTYPE" in record.getMessage()

    client.delete(name)
    reply = writer.sync(update(ALWAYS, 4.0), update(minute(), 4.0))
    assert (reply.skipped, reply.totals[0].sum) == (set(), 4.0)
    client.delete(name)
    client.set(name, "mine")
    writer.sync(update(ALWAYS, 5.0), update(minute(), 5.0))
    assert len(caplog.records) == 2


@pytest.mark.parametrize("field", ["total", "ended", "w:a"])
def test_a_damaged_record_keeps_no_other_from_its_sync(
    redis_server: RedisServer, connect: Connect, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(connect(), "a")
    writer.tell(ALWAYS, 1.0)
    redis_server.client.hset("sluicegate:{shop}:clicks:always", field, "short")
    reply = writer.sync(update(ALWAYS, 2.0), update(minute(), 2.0))
    assert (reply.skipped, reply.totals[1].sum) == ({0}, 2.0)
    assert "Redis key sluicegate:{shop}:clicks:always cannot be used" in caplog.text


def test_what_hinders_all_keys_is_raised(redis_server: RedisServer, connect: Connect) -> None:
    writer = Writer(connect(), "a")
    writer.tell(ALWAYS, 1.0)
    client = redis_server.client
    client.config_set("maxmemory", "1")
    try:
        with pytest.raises(ErrorReply, match="OOM"):
            writer.tell(ALWAYS, 2.0)
    finally:
        client.config_set("maxmemory", "0")
    client.delete("sluicegate:{shop}:writers")
    client.set("sluicegate:{shop}:writers", "mine")
    with pytest.raises(ErrorReply, match="WRONGTYPE"):
        writer.tell(ALWAYS, 3.0)


ONE = b"\0" * 48
NAN = b"\xff" * 8


@pytest.mark.parametrize(
    "reply",
    [
        *(None, b"OK", 3, [], [b"\0" * 8, 1], [b"\0" * 8, 1, ONE]),
        *([b"\0" * 7, 1, ONE, []], [b"\0" * 8, b"1", ONE, []], [b"\0" * 8, 1, ONE[1:], []]),
        *([b"\0" * 8, 1, ONE + ONE, []], [b"\0" * 8, 1, [ONE], []]),
        *([NAN, 1, ONE, []], [b"\0" * 8, 1, ONE[:40] + NAN, []]),
        *([struct.pack("<d", 1e15), 1, ONE, []], [struct.pack("<d", -1.0), 1, ONE, []]),
        *([b"\0" * 8, 1, ONE, errors] for errors in (None, [0], [[1, b""]], [[0, 0]], [[0]])),
    ],
)
def test_a_strange_reply_is_a_protocol_error(reply: object) -> None:
    read, errors = _read_reply([b"\0" * 8, 1, ONE, [[0, b"bad"]]], 1)
    assert read.totals == [(0.0, 0, 0.0, 0.0, 0.0, 0.0)]
    assert (read.skipped, errors) == ({0}, {0: "bad"})
    with pytest.raises(ProtocolError, match="a sync of 1 counters"):
        _read_reply(reply, 1)


def test_a_forked_child_syncs_on_connections_of_its_own(
    connect: Connect, children: Children
) -> None:
    store = connect()
    parent = Writer(store, "parent")
    parent.tell(ALWAYS, 1.0)

    def child() -> None:
        writer = Writer(store, "child")
        for total in range(1, 101):
            assert writer.tell(ALWAYS, float(total)).sum >= total + 1.0

    children.start(child)
    for total in range(1, 101):
        assert parent.tell(ALWAYS, float(total)).sum >= total
    children.join()
    assert parent.tell(ALWAYS, 100.0).sum == 200.0


def test_wrong_arguments_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="layout must be 'sluicegate' or 'go', got 'java'"):
        RedisStore("redis://localhost", layout="java")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prefix must be encodable as UTF-8, got"):
        RedisStore("redis://localhost", "\ud800")
    with pytest.raises(ValueError, match="database in the Redis URL must be a number.* got 'abc'"):
        RedisStore("redis://localhost/abc")
    with pytest.raises(TypeError, match="prefix must be a str, got 7"):
        RedisStore("redis://localhost", 7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prefix must not contain braces.*got 'a{'"):
        RedisStore("redis://localhost", "a{")
    with pytest.raises(ValueError, match="timeout must be a finite number above 0, got 0"):
        RedisStore("redis://localhost", timeout=0)
    with pytest.raises(ValueError, match="Redis Cluster"):
        RedisStore("redis+cluster://localhost", layout="go")


@pytest.mark.parametrize("cluster", ["a{b", "a}b", "{}"])
def test_a_cluster_name_with_braces_is_refused(connect: Connect, cluster: str) -> None:
    with pytest.raises(ValueError, match="must not contain braces"):
        Writer(connect(), "a", cluster).tell(ALWAYS, 1.0)


def test_a_name_that_is_not_text_is_refused(connect: Connect) -> None:
    with pytest.raises(ValueError, match="must be encodable as UTF-8"):
        Writer(connect(), "a").tell(ALWAYS._replace(name="\ud800"), 1.0)


def test_a_missing_password_is_named(redis_server: RedisServer, connect: Connect) -> None:
    client = redis_server.client
    client.config_set("requirepass", "secret")
    try:
        with pytest.raises(Unavailable, match="Redis needs a password"):
            Writer(connect(), "a").tell(ALWAYS, 1.0)
    finally:
        client.config_set("requirepass", "")  # this connection was there before
