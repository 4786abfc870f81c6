"""End nodes of nginx whose central is killed, frozen, replaced or cut off, under load.

Whatever happens to it, a user is never without a limit and never without any share; and when it is
over, all that was admitted is booked, once.
"""

import math
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sluicegate.demo.process import stop
from tests.harness.lateness import Lateness
from tests.harness.waits import PATIENCE, wait_for
from tests.lua.nginx_fleet import Clients, NginxNode, Response, assert_all_recorded
from tests.system.fleet import CentralUnderTest, toml
from tests.system.network import Network

LIMIT, BURST = 60.0, 0.5  # requests per second, seconds
HELD_SECONDS = 0.5  # what a node holds, beside the bucket
BEGINNINGS = 2.0  # requests of a user that a node meets for the first time
LIMITS = toml(("direct", LIMIT, BURST), ("lossy", LIMIT, BURST), ("*", 5.0, 1.0))


@dataclass
class Faults:
    """What clients were admitted for, and between which moments the central was away."""

    lateness: Lateness
    clients: dict[str, Clients] = field(default_factory=dict)
    begin: float = 0.0
    end: float = math.inf
    away: dict[str, tuple[float, float]] = field(default_factory=dict)
    pauses: list[tuple[float, float]] = field(default_factory=list)
    recorded: dict[str, float] = field(default_factory=dict)

    def late(self, begin: float, end: float) -> float:
        """Seconds of this time for which the machine held up the clients, or the central."""
        parts = (min(to, end) - max(since, begin) for since, to in self.pauses)
        return self.lateness.between(begin, end) + sum(part for part in parts if part > 0)

    def assert_limited(self, user: str, begin: float, end: float) -> None:
        """No more passed than the limit, what the bucket held, and what nodes held."""
        seconds = end - begin + BURST + HELD_SECONDS + self.late(begin, end)
        admitted = self.clients[user].admitted(begin, end)
        assert admitted <= LIMIT * seconds + BEGINNINGS, (user, begin, end, self.away)

    def assert_served(self, user: str, begin: float, end: float) -> None:
        """At least a tenth of the limit passed."""
        seconds = end - begin - self.late(begin, end)
        admitted = self.clients[user].admitted(begin, end)
        assert admitted >= 0.1 * LIMIT * seconds, (user, begin, end, self.away)


@pytest.fixture(scope="module")
def central(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CentralUnderTest]:
    folder = tmp_path_factory.mktemp("central")
    central = CentralUnderTest(folder, LIMITS, has_state=True)
    central.start()
    try:
        wait_for(central.is_listening, seen=central.last_output)
        yield central
    finally:
        stop([central], PATIENCE)


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory, central: CentralUnderTest) -> Iterator[Faults]:
    """A node with a connection that loses what is sent, then dies; and one with a good connection.

    The central is killed and started again with its state, then frozen.
    """
    folder = tmp_path_factory.mktemp("nodes")
    network = Network(folder / "network.pauses")
    url = network.connect("lossy", "central", central.url)
    try:
        with (
            Lateness() as lateness,
            NginxNode(folder / "direct", [central.url], "direct") as direct,
            NginxNode(folder / "lossy", [url], "lossy") as lossy,
        ):
            direct.wait_until_connected()
            lossy.wait_until_connected()
            faults = Faults(lateness)
            faults.begin = time.monotonic()
            with (
                Clients(direct, "direct") as direct_clients,
                Clients(lossy, "lossy") as lossy_clients,
            ):
                faults.clients = {"direct": direct_clients, "lossy": lossy_clients}
                time.sleep(1.2)
                network.cut("lossy", "central", loses=True)
                cut = time.monotonic()
                time.sleep(0.8)
                killed = time.monotonic()
                central.kill()
                time.sleep(1.0)
                network.mend()
                central.start()
                wait_for(central.is_listening, seen=central.last_output)
                direct.wait_until_connected()
                faults.away["killed"] = killed, time.monotonic()
                time.sleep(1.0)
                frozen = time.monotonic()
                central.freeze()
                time.sleep(2.5)
                central.thaw()
                direct.wait_until_connected()
                faults.away["frozen"] = frozen, time.monotonic()
                lossy.wait_until_connected()
                faults.away["cut"] = cut, time.monotonic()
                time.sleep(0.5)
            faults.end = time.monotonic()
            faults.pauses = [*central.pauses(), *network.pauses()]
            for node in (direct, lossy):
                user = node.node_id
                assert_all_recorded(central, user, [node], faults.clients[user].admitted)
            yield faults
    finally:
        network.close()


@pytest.mark.parametrize(
    ("user", "fault"), [("direct", "killed"), ("direct", "frozen"), ("lossy", "cut")]
)
def test_without_a_central_a_user_has_a_limit_and_a_share(
    faults: Faults, user: str, fault: str
) -> None:
    begin, end = faults.away[fault]
    faults.assert_limited(user, begin, end)
    faults.assert_served(user, begin + 0.5, end)


@pytest.mark.parametrize("user", ["direct", "lossy"])
def test_over_all_faults_a_user_is_held_to_its_limit(faults: Faults, user: str) -> None:
    faults.assert_limited(user, faults.begin, faults.end)
    assert faults.clients[user].failures() == []


@pytest.mark.usefixtures("faults")
def test_a_request_that_waits_for_credit_holds_up_no_other(
    tmp_path: Path, central: CentralUnderTest
) -> None:
    """With one worker: it tells that a request waits, so it can do other things meanwhile."""
    with (
        NginxNode(tmp_path / "node", [central.url], "waiter", workers=1) as node,
        ThreadPoolExecutor(1) as pool,
    ):
        for attempt in range(20):
            user = f"dry-{attempt}"
            node.wait_until_connected()
            wait_for(lambda: node.get(user=user, wait=0).status == 429)  # noqa: B023
            central.freeze()  # it has no answer for a request that waits
            try:
                waiting: Future[Response] = pool.submit(node.get, user=user)
                while not waiting.done() and node.status()["waiting"] == 0:
                    pass
                others = [node.get(user="other", wait=0), node.get(user=user, wait=0)]
                is_seen = not waiting.done()
                waiting.result(PATIENCE)
            finally:
                central.thaw()
            if is_seen:  # else the machine was too slow for the third of a second that it waits
                assert [one.status for one in others] == [200, 429]
                return
        pytest.fail("no request waited for long enough to be seen")


def test_a_node_moves_on_to_another_central(tmp_path: Path) -> None:
    """The first one is frozen; the second one, started later, leads in a higher epoch."""
    limits = toml(("ann", LIMIT, BURST))
    first = CentralUnderTest(tmp_path / "first", limits)
    second = CentralUnderTest(tmp_path / "second", limits, port=7411)
    first.start()
    try:
        wait_for(first.is_listening, seen=first.last_output)
        urls = [first.url, second.url]
        with (
            Lateness() as lateness,
            NginxNode(tmp_path / "node", urls, "mover") as node,
        ):
            node.wait_until_connected()
            epoch = node.status()["epoch"]
            begin = time.monotonic()
            with Clients(node, "ann") as clients:
                time.sleep(1.2)
                first.freeze()
                second.start()
                wait_for(second.is_listening, seen=second.last_output)
                wait_for(lambda: node.status()["epoch"] > epoch and node.is_connected())
                moved = clients.admitted()
                wait_for(lambda: clients.admitted() > moved)
                time.sleep(1.0)
            end = time.monotonic()
            late = lateness.between(begin, end)
            # The second central does not know the bucket of the first one: it has one more.
            seconds = end - begin + 2 * (BURST + HELD_SECONDS) + late
            assert clients.admitted() <= LIMIT * seconds + 2 * BEGINNINGS, clients.statuses()
            assert clients.failures() == []
            first.thaw()  # it is told everything that it has missed, though it leads no more
            assert_all_recorded(first, "ann", [node], clients.admitted)
            assert second.recorded("ann") <= clients.admitted()
            assert second.recorded("ann") >= clients.admitted() - moved
    finally:
        stop([first, second], PATIENCE)
