"""End nodes of nginx with a real central, beside a Python node: limits hold, and all is booked."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from sluicegate.demo.process import stop
from sluicegate.quota import Node
from tests.harness.lateness import Lateness
from tests.harness.waits import PATIENCE, wait_for
from tests.lua.nginx_fleet import Clients, NginxNode, assert_all_recorded, wait_until_reported
from tests.system.fleet import CentralUnderTest, toml

LOAD_SECONDS = 6.0
GREEDY, GREEDY_BURST = 60.0, 0.5  # requests per second, seconds
THIN, THIN_BURST = 1.0, 1.0
SLOW, SLOW_BURST = 0.5, 10.0  # a bucket of five requests that hardly refills
SHOWN = "k%/x"
MANY = 50_000
NODES = 3
# Beside the bucket's: a node holds some requests' worth, and lets newcomers begin.
HELD_SECONDS = 0.5
BEGINNINGS = 2.0

LIMITS = toml(
    ("greedy", GREEDY, GREEDY_BURST),
    ("thin", THIN, THIN_BURST),
    ("slow", SLOW, SLOW_BURST),
    (SHOWN, 2.0, 1.0),
    ("*", 100.0, 1.0),
)


@pytest.fixture(scope="module")
def central(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CentralUnderTest]:
    central = CentralUnderTest(tmp_path_factory.mktemp("central"), LIMITS)
    central.start()
    try:
        wait_for(central.is_listening, seen=central.last_output)
        yield central
    finally:
        stop([central], PATIENCE)


@pytest.fixture(scope="module")
def nodes(
    tmp_path_factory: pytest.TempPathFactory, central: CentralUnderTest
) -> Iterator[list[NginxNode]]:
    folder = tmp_path_factory.mktemp("nodes")
    with (
        NginxNode(folder / "web-1", [central.url], "web-1", workers=2) as first,
        NginxNode(folder / "web-2", [central.url], "web-2", workers=4) as second,
    ):
        yield [first, second]


class PythonClient:
    """Asks a Python node for one user again and again, in a thread, from `with` to its end."""

    def __init__(self, node: Node, user: str, pause: float) -> None:
        self.admitted = 0
        self._node = node
        self._user = user
        self._pause = pause
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "PythonClient":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        while not self._is_over.wait(self._pause):
            if self._node.allows("front", self._user):
                self._node.consume("front", self._user, {"requests": 1.0})
                self.admitted += 1


@dataclass(frozen=True)
class Load:
    """What came of the load: what was admitted to each user, in how many seconds."""

    seconds: float
    late: float  # of these, the machine held up the clients, or the central
    asked: dict[str, int]
    admitted: dict[str, int]
    recorded: dict[str, float]
    failures: list[str]


@pytest.fixture(scope="module")
def load(
    tmp_path_factory: pytest.TempPathFactory, central: CentralUnderTest, nodes: list[NginxNode]
) -> Load:
    """Three times the limit of `greedy` and more on all nodes, and far more of `thin` on two."""
    shared = str(tmp_path_factory.mktemp("python") / "memory")
    first, second = nodes
    assert first.get(user="slow").status == 200  # from now on the node knows its limit
    begin = time.monotonic()
    with (
        Lateness() as lateness,
        Node(central.url, node_id="web-3", services=["front"], shared=shared) as python_node,
        Clients(first, "greedy") as greedy_1,
        Clients(second, "greedy") as greedy_2,
        Clients(first, "thin", count=1, pause=0.1) as thin_1,
        Clients(second, "thin", count=1, pause=0.1) as thin_2,
        PythonClient(python_node, "greedy", 0.01) as greedy_3,
    ):
        time.sleep(LOAD_SECONDS)
        for client in (greedy_1, greedy_2, thin_1, thin_2, greedy_3):
            client.__exit__(None, None, None)
        end = time.monotonic()
        late = lateness.between(begin, end)
        for user in ("greedy", "thin"):
            clients = {"greedy": [greedy_1, greedy_2], "thin": [thin_1, thin_2]}[user]
            for node, one in zip(nodes, clients, strict=True):
                wait_for(lambda: node.consumed(user) == one.admitted())  # noqa: B023
        wait_until_reported(central, ["web-1", "web-2", "web-3"])
        recorded = {user: central.recorded(user) for user in ("greedy", "thin")}
    late += sum(min(to, end) - max(since, begin) for since, to in central.pauses() if to > begin)
    return Load(
        end - begin,
        late,
        {
            "greedy": len(greedy_1.responses) + len(greedy_2.responses),
            "thin": len(thin_1.responses) + len(thin_2.responses),
        },
        {
            "greedy": greedy_1.admitted() + greedy_2.admitted() + greedy_3.admitted,
            "thin": thin_1.admitted() + thin_2.admitted(),
        },
        recorded,
        [*greedy_1.failures(), *greedy_2.failures(), *thin_1.failures(), *thin_2.failures()],
    )


def test_a_user_at_three_times_the_limit_on_nginx_and_python_nodes_is_held_to_it(
    load: Load,
) -> None:
    """From the very first request on: new nodes, and a new user, are not unlimited."""
    most = GREEDY * (load.seconds + GREEDY_BURST + HELD_SECONDS + load.late) + NODES * BEGINNINGS
    assert load.admitted["greedy"] <= most, load
    assert load.admitted["greedy"] >= 0.6 * GREEDY * (load.seconds - load.late), load


def test_a_share_below_one_request_starves_nobody(load: Load) -> None:
    """One request per second on two nginx nodes, of which each has half of one."""
    most = THIN * (load.seconds + THIN_BURST + load.late) + 2 * BEGINNINGS
    assert load.admitted["thin"] <= most, load
    assert load.admitted["thin"] >= 0.6 * THIN * (load.seconds - load.late) - 1, load


def test_all_that_was_admitted_is_booked_and_no_request_failed(load: Load) -> None:
    assert load.recorded == load.admitted, load
    assert load.failures == []


@pytest.mark.usefixtures("load")
@pytest.mark.parametrize("refusal", [429, 302, 200])
def test_a_refused_request_counts_nothing_however_it_is_answered(
    central: CentralUnderTest, nodes: list[NginxNode], refusal: int
) -> None:
    """Nor if `consume` is called twice, as one does for a request of two services."""
    node, user = nodes[0], f"refused-{refusal}"
    answers = [node.get(user=user, parts=2, refusal=refusal, wait=0) for _ in range(60)]
    refused = sum("Throttled" in answer.text for answer in answers)
    assert refused > 0
    wait_until_reported(central, ["web-1"])
    assert central.recorded(user) == len(answers) - refused


def test_running_requests_count(central: CentralUnderTest, nodes: list[NginxNode]) -> None:
    """Else all of them would pass, as none has ended."""
    before = central.recorded("slow")
    begin = time.monotonic()
    with Clients(nodes[0], "slow", count=20, once=True, sleep=1.0) as clients:
        wait_for(lambda: len(clients.responses) == 20)
    seconds = time.monotonic() - begin
    most = SLOW * (SLOW_BURST + seconds) + BEGINNINGS
    assert 1 <= clients.admitted() <= min(most, 19), clients.statuses()
    assert_all_recorded(central, "slow", nodes, lambda: before + clients.admitted())


NAMES = [
    b"a/b",
    b"a.b",
    b"a%2Fb",
    b"a%2fb",
    "ä€𝄞".encode(),
    b"a b",
    b'a"b\\',
    b"a[b]{c},d",
    b"a\nb",
    b"a\0b",
    b"~1",
    b"x" * 300,
    b"x" * 299 + b"y",
    "€".encode() * 60,
    b"\xff",
    b"\xfe",
    b"\xff" * 300,
    b"\xc3",
    b"\xed\xa0\x80",
]


def test_names_of_any_bytes_are_one_user_each(
    central: CentralUnderTest, nodes: list[NginxNode]
) -> None:
    """The first name has one request, the second two, and so on, on two nodes in turn."""
    counts = range(1, len(NAMES) + 1)
    for count, name in zip(counts, NAMES, strict=True):
        for number in range(count):
            node = nodes[number % 2]
            wait_for(lambda: node.get(hex=(b"any-" + name).hex()).status == 200)  # noqa: B023

    def recorded() -> dict[str, float]:
        rows = central.get("/api/usage", service="front", limit="1000")["users"]
        return {
            row["user"]: row["resources"]["requests"]["recorded"]
            for row in rows
            if row["user"].startswith("any-")
        }

    # The list has new users one slot later.
    wait_for(lambda: sum(recorded().values()) >= sum(counts), seen=recorded)
    assert sorted(recorded().values()) == list(counts), recorded()


def test_what_is_no_amount_is_refused_logged_seldom_and_changes_nothing(
    central: CentralUnderTest, nodes: list[NginxNode]
) -> None:
    node = nodes[0]
    begin = time.monotonic()
    for _ in range(50):
        answers = node.get("/wrong").text.splitlines()
        assert len(answers) == 12
        assert all(answer.startswith("nil ") for answer in answers), answers
        assert "must be finite numbers >= 0, got -1 for requests" in answers[0]
    seconds = time.monotonic() - begin
    lines = node.log_lines("not counted")
    assert 1 <= len(lines) <= 2 * (1 + seconds / 10), lines  # once in ten seconds on each worker
    assert "user 'wrong'" in lines[0]
    wait_until_reported(central, ["web-1"])
    assert central.recorded("wrong") == 0
    assert node.status()["is_alone"] is False


def test_usage_is_shown_in_the_dict_by_slot_and_user(nodes: list[NginxNode]) -> None:
    """Escaped, so that each key is of one user; and up to what was consumed and refused."""
    node = nodes[0]
    wait_for(lambda: node.status()["reports"] >= 2)  # of the first nothing is shown
    statuses = Counter(node.get(user=SHOWN, wait=0).status for _ in range(20))
    assert statuses[200] > 0
    assert statuses[429] > 0

    def total(kind: str) -> float:
        found = {}
        for key, value in node.keys().items():
            parts = key.split("/")
            assert len(parts) == 5, key
            if parts[0] == kind and parts[2:] == ["front", "k%25%2Fx", "requests"]:
                found[int(parts[1])] = value
        return sum(found.values())

    wait_for(lambda: total("consumption") >= statuses[200], seen=node.keys)
    wait_for(lambda: total("rejection") >= statuses[429], seen=node.keys)
    assert (total("consumption"), total("rejection")) == (statuses[200], statuses[429])


def test_more_users_than_any_list_has_room_for_are_all_reported(
    central: CentralUnderTest, nodes: list[NginxNode]
) -> None:
    cells = central.get("/api/status")["cells"]
    response = nodes[1].get("/many", users=MANY)
    assert int(response.text) == MANY  # each is a newcomer with one request
    # They take several reports: a frame has room for some ten thousands.
    wait_for(
        lambda: central.get("/api/status")["cells"] >= cells + MANY,
        seen=lambda: central.get("/api/status")["cells"],
    )
    sample = [1, 2, 1024, 1025, *range(1100, MANY, 2_500), MANY]
    with ThreadPoolExecutor(4) as pool:
        booked = list(pool.map(lambda number: central.recorded(f"many-{number}"), sample))
    assert booked == [1.0] * len(sample), dict(zip(sample, booked, strict=True))
