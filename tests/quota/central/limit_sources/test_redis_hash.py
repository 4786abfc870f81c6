"""Limits in Redis: shared, edited, lost, and a Redis that does not answer."""

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from sluicegate.errors import ConfigError, Unavailable
from sluicegate.quota import Entry
from sluicegate.quota.central.limit_sources import LimitsSource, open_source, redis_hash
from tests.harness.servers import RedisServer

ANN = Entry("front", "ann", 10.0, {"requests": 5.0, "traffic_up": 1e6})
BOB = Entry("frönt/2", "bob smith", 2.5, {"requests": 0.5})
KEY = "sluicegate:{limits}"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that is slow to answer is not what these tests are about."""
    monkeypatch.setattr(redis_hash, "_TIMEOUT", 30 * redis_hash._TIMEOUT)


@pytest.fixture
def source(redis_server: RedisServer) -> Iterator[LimitsSource]:
    with closing(open_source(redis_server.url)) as source:
        yield source


def test_entries_are_put_replaced_and_removed(source: LimitsSource) -> None:
    assert source.is_editable
    assert source.load() == ([], [])
    source.put(BOB)
    source.put(ANN)
    assert source.load() == ([ANN, BOB], [])
    assert source.remove("front", "ann")
    assert not source.remove("front", "ann")
    source.replace([ANN])
    assert source.load()[0] == [ANN]
    source.replace([])
    assert source.load()[0] == []


def test_every_way_to_a_redis_leads_to_the_same_limits(redis_server: RedisServer) -> None:
    with (
        closing(open_source(redis_server.url)) as one,
        closing(open_source(redis_server.unix_url)) as other,
    ):
        tokens = [other.version_token(), other.version_token()]
        one.put(ANN)
        tokens.append(other.version_token())
        other.remove("front", "ann")
        tokens.append(other.version_token())
        assert tokens[0] == tokens[1]
        assert len(set(tokens)) == 3


def test_thousands_of_entries_come_and_go_whole(source: LimitsSource) -> None:
    many = [Entry("front", f"user-{i:05}", rates={"requests": 1.0}) for i in range(3500)]
    source.replace(many)
    assert source.load() == (many, [])


def test_what_was_written_by_hand_is_told_and_skipped(
    source: LimitsSource, redis_server: RedisServer
) -> None:
    source.put(ANN)
    before = source.version_token()
    with redis_server.client as client:
        client.hset(KEY, "zoe", "5 per second")
        client.hset(KEY, '["front", "zoe"]', '{"service": "front", "user": "eve", "requests": 1}')
        client.hset(KEY, '["a", "b"]', json.dumps({"service": "a", "user": "b", "requests": -1}))
        client.incr(f"{KEY}:version")
    assert source.version_token() != before
    entries, complaints = source.load()
    assert entries == [ANN]
    assert len(complaints) == 3
    assert all(complaint.endswith("skipped") for complaint in complaints)


def test_a_redis_that_lost_its_data_lifts_no_limits(
    source: LimitsSource, redis_server: RedisServer
) -> None:
    source.put(ANN)
    source.load()
    with redis_server.client as client:
        client.flushall()
    for ask in (source.version_token, source.load, lambda: source.put(BOB)):
        with pytest.raises(ConfigError, match="are lost: set them all again"):
            ask()
    source.replace([BOB])
    assert source.load()[0] == [BOB]


def test_a_redis_that_is_away_says_so(source: LimitsSource, redis_server: RedisServer) -> None:
    source.put(ANN)
    redis_server.kill()
    for ask in (source.version_token, source.load, lambda: source.put(BOB)):
        with pytest.raises(
            Unavailable, match=f"cannot reach limits at redis://127.0.0.1:{redis_server.port}"
        ):
            ask()
    redis_server.start()
    source.replace([BOB])
    assert source.load()[0] == [BOB]


def test_a_key_of_another_kind_says_so(source: LimitsSource, redis_server: RedisServer) -> None:
    with redis_server.client as client:
        client.set(KEY, "mine")
    with pytest.raises(ConfigError, match="WRONGTYPE"):
        source.load()
    with pytest.raises(ConfigError, match="WRONGTYPE"):
        source.put(ANN)


def test_no_password_is_in_a_name() -> None:
    with closing(open_source("redis://:secret@127.0.0.1:1/0")) as source:
        assert source.name == "redis://127.0.0.1:1"
        assert "secret" not in repr(source)
        with pytest.raises(Unavailable) as caught:
            source.load()
        assert "secret" not in str(caught.value)


def test_a_url_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="must start with redis://"):
        open_source("mysql://localhost/limits")
