"""Several centrals in one process: they elect a leader, say who it is, and hand over."""

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.sync.client import connect

from sluicegate.demo.process import random_loopback
from sluicegate.errors import ConfigError
from sluicegate.quota import Central
from sluicegate.quota.central.member import etcd_hosts
from sluicegate.quota.central.net.connection import PEER
from sluicegate.quota.messages import Quota
from tests.harness.central import PlainNode, V1Node, closed_with, get, slot_of
from tests.harness.central_group import CentralGroup
from tests.harness.etcd import EtcdServer
from tests.harness.servers import RedisServer
from tests.harness.waits import wait_for

TOKEN = "peer-secret-3"


def standby_of(group: CentralGroup, leader: Central) -> Central:
    return next(one for one in group.running.values() if one is not leader)


def gauges(central: Central) -> dict[str, float]:
    return {
        sample.name.removeprefix("sluicegate_central_"): sample.value
        for family in text_string_to_metric_families(get(central, "/metrics"))
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CentralGroup]:
    with CentralGroup(tmp_path_factory.mktemp("group")) as running_group:
        yield running_group


def test_one_leads_and_all_say_which(group: CentralGroup) -> None:
    leader = group.wait_for_leader()
    for central in group.running.values():
        status = get(central, "/api/status")
        assert status["role"] == ("active" if central is leader else "standby")
        assert (status["leader"], status["leader_url"]) == (leader.name, group.urls[leader.name])
        assert {peer["name"] for peer in status["peers"]} == group.urls.keys() - {central.name}
        assert get(central, "/healthz") == "ok"
    wait_for(lambda: all(gauges(one)["peers_connected"] == 2 for one in group.running.values()))
    seen = {one.name: gauges(one) for one in group.running.values()}
    assert sum(each["leads"] for each in seen.values()) == 1
    assert seen[leader.name]["elections_total"] >= 1
    assert len({each["epoch"] for each in seen.values()}) == 1


def test_a_standby_acknowledges_and_grants_nothing(group: CentralGroup) -> None:
    leader = group.wait_for_leader()
    with V1Node(standby_of(group, leader)) as node:
        ack = node.report(slot_of(leader) - 1)
        assert not ack.leads
    with V1Node(leader) as node:
        ack = node.report(slot_of(leader) - 1)
        assert ack.leads
        node.read_until(lambda message: isinstance(message, Quota))


def test_a_standby_sends_classic_nodes_to_the_leader(group: CentralGroup) -> None:
    leader = group.wait_for_leader()
    with PlainNode(standby_of(group, leader)) as node:
        node.socket.send('{"node_id": "n", "slot_number": 1}')
        code, reason = closed_with(node.socket)
    expected = f"this central is on standby, {leader.name} leads at {group.urls[leader.name]}"
    assert (code, reason) == (1013, f"overloaded: {expected}")


def test_nodes_that_know_a_higher_epoch_are_led_in_one_above(group: CentralGroup) -> None:
    """A central that ran alone had led them, and its clock was ahead by a day."""
    leader = group.wait_for_leader()
    ahead = int(time.time()) + 86_400
    with V1Node(leader, "from-before") as node:
        node.report(slot_of(leader) - 1, epoch=ahead)
        quota = node.read_until(lambda got: isinstance(got, Quota) and got.epoch > ahead)
        assert quota.epoch == ahead + 1
    wait_for(
        lambda: {get(one, "/api/status")["epoch"] for one in group.running.values()} == {ahead + 1}
    )


def test_a_leader_that_stops_hands_over_and_its_nodes_hear_it_at_once(tmp_path: Path) -> None:
    # A lease that is longer than the test: only a release can end it. Slots, too.
    with CentralGroup(tmp_path, lease=3.0, slot_seconds=100.0) as group:
        leader = group.wait_for_leader()
        others = [one for one in group.running.values() if one is not leader]
        nodes = [V1Node(one, "n") for one in others]
        for node in nodes:
            epoch = node.report(slot_of(leader) - 1).epoch
        group.stop(leader.name)
        successor = group.wait_for_leader()
        told = nodes[others.index(successor)].read_until(lambda got: isinstance(got, Quota))
        assert (told.central, told.whole) == (successor.name, False)
        assert not any(part.users for part in told.services.values())
        assert told.epoch == successor.registry.state.epoch > epoch
        for node in nodes:
            node.socket.close()


def test_without_a_majority_nobody_leads(tmp_path: Path) -> None:
    with CentralGroup(tmp_path, started=["a"], lease=0.5) as group:
        time.sleep(1.5)  # three leases: nothing happens, however late
        assert not group.leaders()
        assert get(group.running["a"], "/api/status")["leader"] is None
        with PlainNode(group.running["a"]) as node:
            node.socket.send('{"node_id": "n", "slot_number": 1}')
            assert "no leader is known" in closed_with(node.socket)[1]
        group.start("b")
        group.wait_for_leader()


def test_two_centrals_and_a_witness_survive_the_loss_of_one(tmp_path: Path) -> None:
    with CentralGroup(tmp_path, names=["a", "b", "w"], started=[]) as group, group.witness("w"):
        for name in ("a", "b"):
            group.start(name)
        leader = group.wait_for_leader()
        group.stop(leader.name)
        survivor = group.wait_for_leader()
        assert survivor.name in {"a", "b"} - {leader.name}


@pytest.fixture(params=["redis", "etcd"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of a store that can elect."""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        yield server.url
        return
    etcd = EtcdServer(tmp_path_factory.mktemp("etcd"))
    yield etcd.endpoints[0].replace("http://", "etcd://")
    etcd.close()


def test_with_a_store_the_leader_counts_from_what_its_nodes_know(
    tmp_path: Path, store: str
) -> None:
    """Stores count their epochs from 1; a central that ran alone had the time."""
    before = int(time.time())
    with CentralGroup(tmp_path, names=["a", "b"], election=store) as group:
        leader = group.wait_for_leader()
        with V1Node(leader) as node:
            # With the first report after a renewal: until then the lease is in doubt.
            wait_for(lambda: node.report(slot_of(leader) - 1, epoch=before).epoch == before + 1)
            node.read_until(lambda got: isinstance(got, Quota) and got.epoch == before + 1)
            status = get(leader, "/api/status")
            assert (status["epoch"], status["peers"][0]["connected"]) == (before + 1, None)
        successor = standby_of(group, leader)
        with V1Node(successor) as node:
            node.report(slot_of(leader) - 1, epoch=before + 1)
            group.stop(leader.name)
            quota = node.read_until(lambda got: isinstance(got, Quota))
            assert (quota.central, quota.epoch) == (successor.name, before + 2)


def test_where_etcd_is() -> None:
    hosts = ["http://e1:2379", "http://e2:2379"]
    assert etcd_hosts("etcd://e1:2379,e2:2379/") == (None, None, hosts)
    assert etcd_hosts("etcds://me:p%40ss%3A@e1:2379") == ("me", "p@ss:", ["https://e1:2379"])


def test_a_member_file_is_for_one_process_alone(tmp_path: Path) -> None:
    with CentralGroup(tmp_path, started=["a"]) as group:
        group.addresses["a"] = f"{random_loopback()}:7411"
        with pytest.raises(ConfigError, match="in use by another process"):
            group.start("a")
        assert get(group.running["a"], "/healthz") == "ok"  # the first one is not harmed


def test_a_central_whose_list_differs_takes_no_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with CentralGroup(tmp_path, started=["a", "b"]) as group:
        group.wait_for_leader()
        longer = group.urls | {"d": "ws://127.0.0.1:1/"}
        central = Central(
            [],
            name="c",
            listen=group.addresses["c"],
            peers=longer,
            election="paxos",
            state=tmp_path / "c.state",
            lease=1.0,
        )
        with central:
            wait_for(lambda: "--peers differs: expected a,b,c, got 'a,b,c,d'" in caplog.text)
            assert get(central, "/api/status")["leader"] is None
        group.wait_for_leader()


def test_a_witness_serves_peers_alone(tmp_path: Path) -> None:
    group = CentralGroup(tmp_path, names=["a", "w"])
    with group.witness("w", peer_token=TOKEN):
        with urllib.request.urlopen(f"http://{group.addresses['w']}/healthz") as answer:
            assert answer.read() == b"ok"
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            urllib.request.urlopen(f"http://{group.addresses['w']}/api/state")
        assert b"this is a witness" in caught.value.read()
        refused = {
            "a witness serves no nodes": connect(group.urls["w"]),
            "missing token": connect(group.urls["w"], subprotocols=[PEER]),
            "unknown peer 'x'": connect(
                group.urls["w"],
                subprotocols=[PEER],
                additional_headers={"Authorization": f"Bearer {TOKEN}", "Sluicegate-Peer": "x"},
            ),
        }
        for text, socket in refused.items():
            with socket:
                code, reason = closed_with(socket)
            assert code == 1008
            assert text in reason


def test_a_central_begins_a_new_life_as_a_standby(tmp_path: Path) -> None:
    async def story() -> None:
        with CentralGroup(tmp_path, started=[]) as group:
            central = group.make("a")
            for _ in range(2):
                await central.start()
                assert central.registry is not None
                assert not central.registry.state.leads
                await central.close()

    asyncio.run(story())
