"""A real cluster of one node, and a real sentinel."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicegate import AsyncRedisKeyed, ProtocolError, RedisKeyed, Unavailable
from sluicegate.redis_client import ErrorReply, RedisPool, topology
from sluicegate.redis_client.address import Endpoint, parse_address
from sluicegate.redis_client.topology import Topology, slot_of
from tests.harness.servers import RedisServer
from tests.harness.waits import wait_for

PATIENT = 20.0  # seconds for Redis, also on a machine that pauses


@pytest.fixture(autouse=True)
def patient_discovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentinel or node, too, may answer as late as the test allows."""
    monkeypatch.setattr(topology, "DISCOVERY_SECONDS", 20 * topology.DISCOVERY_SECONDS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("cluster"), "--cluster-enabled", "yes")
    with server.client as client:
        client.execute_command("CLUSTER ADDSLOTS", *range(16384))
        wait_for(
            lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok",
            seen=lambda: client.execute_command("CLUSTER INFO"),
        )
    yield server
    server.close()


def test_several_limits_of_a_key_work_in_a_cluster(cluster: RedisServer) -> None:
    url = f"redis+cluster://127.0.0.1:{cluster.port}"
    with RedisKeyed(url, "5/hour; 9/day", timeout=PATIENT) as keyed:
        for key in ("a", "}", "user:42", ("a", 1), b"x"):
            assert [keyed.allow(key, 2) for _ in range(3)] == [True, True, False]
        keyed.refund("a", 2)
        assert keyed.allow("a", 2)
        keyed.reset("a")
        assert keyed.allow("a", 5)
        metrics = keyed.metrics
        assert (metrics.errors, metrics.nodes, metrics.state) == (0, 1, "redis")
    with RedisKeyed(url, "500/hour", mode="leased", lot=10, timeout=PATIENT) as keyed:
        assert all(keyed.allow(f"user {number}") for number in range(20))


def test_an_empty_key_is_on_one_server_too(cluster: RedisServer) -> None:
    url = cluster.url.replace("redis://", "redis+cluster://")
    with RedisKeyed(url, "100/second; 5000/hour", timeout=PATIENT) as keyed:
        assert keyed.allow("")
        assert keyed.metrics.state == "redis"


def test_tasks_work_in_a_cluster_too(cluster: RedisServer) -> None:
    async def main() -> None:
        url = f"redis+cluster://127.0.0.1:{cluster.port}"
        async with AsyncRedisKeyed(url, "5/hour; 9/day", timeout=PATIENT, prefix="async:") as keyed:
            answers = await asyncio.gather(*(keyed.allow("a") for _ in range(9)))
            assert sum(answers) == 5
            assert keyed.metrics.errors == 0

    asyncio.run(main())


def test_a_cluster_that_is_not_there_is_an_outage() -> None:
    with RedisKeyed("redis+cluster://127.0.0.1:1", "5/hour", timeout=PATIENT) as keyed:
        assert keyed.allow("a")
        assert "cannot find the cluster 127.0.0.1:1" in keyed.metrics.last_error


def test_a_redirection_is_followed_and_a_moved_slot_remembered() -> None:
    cluster = Topology(parse_address("redis+cluster://127.0.0.1:1"))
    cluster._by_slot = [Endpoint("127.0.0.1", 1)] * 16384
    moved = cluster.redirect(b"123456789", ErrorReply("MOVED 12739 10.0.0.2:7001"))
    assert moved == Endpoint("10.0.0.2", 7001) == cluster.endpoint(b"123456789")
    asked = cluster.redirect(b"123456789", ErrorReply("ASK 12739 ::1:7002"))
    assert asked == Endpoint("::1", 7002)
    assert cluster.endpoint(b"123456789") == moved
    with pytest.raises(ProtocolError, match="expected host:port, got 'MOVED 5'"):
        cluster.redirect(b"x", ErrorReply("MOVED 5"))
    other = cluster.endpoint(b"other")
    assert slot_of(b"other") != 12739
    assert other == Endpoint("127.0.0.1", 1)


def test_the_master_is_found_through_a_sentinel(redis_server: RedisServer, tmp_path: Path) -> None:
    config = tmp_path / "sentinel.conf"
    config.write_text(f"sentinel monitor main 127.0.0.1 {redis_server.port} 1\n")
    sentinel = RedisServer(tmp_path, str(config), "--sentinel")
    try:
        url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/main"
        with RedisKeyed(url, "5/hour", timeout=PATIENT) as keyed:
            assert [keyed.allow("a", 5), keyed.allow("a")] == [True, False]
            assert keyed.metrics.errors == 0
            redis_server.restart()
            assert keyed.allow("a", 5)
        pool = RedisPool(f"redis+sentinel://127.0.0.1:{sentinel.port}/other", PATIENT)
        with pytest.raises(Unavailable, match="No master found for 'other'$"):
            pool.call("PING")
    finally:
        sentinel.close()


def test_sentinels_that_do_not_answer_are_named_in_one_short_line() -> None:
    pool = RedisPool("redis+sentinel://127.0.0.1:1/main", PATIENT)
    with pytest.raises(Unavailable) as caught:
        pool.call("PING")
    assert str(caught.value) == (
        "cannot find the sentinel 127.0.0.1:1/main: No master found for 'main', "
        "and a sentinel did not answer"
    )
