"""How an end node of nginx is set up: options, tokens, TLS, and what happens when they are wrong.

Nothing of it harms a request. Where no central can be reached, the fallback holds.
"""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluicegate.quota import Central
from tests.harness.central import SLOT, get, running
from tests.harness.certificate import make_certificate
from tests.harness.lateness import Lateness
from tests.harness.servers import reserve_port
from tests.harness.waits import wait_for
from tests.lua.nginx_fleet import Clients, NginxNode

FALLBACK = 10.0  # requests per second and user, where nothing else is said
PERMANENT_BACKOFF = 2.5  # seconds, at least, until a node tries again that was denied
# As those of the centrals: a test may take its time, and a node must not wait for the next one.
LONG_SLOTS = {"slot_seconds": str(SLOT)}


@pytest.fixture
def nowhere() -> Iterator[str]:
    """The URL of a central that is not there."""
    with reserve_port() as reserved:
        yield f"http://127.0.0.1:{reserved.getsockname()[1]}"


@dataclass(frozen=True)
class ConstantNode:
    """A node that is told the same centrals in another order each time."""

    central: Central
    node: NginxNode
    calls: Path  # has a byte for each look-up
    connected_since: float


@pytest.fixture(scope="module", autouse=True)
def constant_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConstantNode]:
    """Started before all tests, which go on meanwhile: it looks them up every ten seconds."""
    folder = tmp_path_factory.mktemp("constant")
    calls = folder / "calls"
    with running() as central, reserve_port() as reserved:
        options = {
            **LONG_SLOTS,
            "centrals": "nil",
            "get_central_ips": f"""function()
                local file = assert(io.open("{calls}", "a+"))
                file:write("x")
                local is_odd = file:seek("end") % 2 == 1
                file:close()
                local one, other = "{central.url.removeprefix("http://")}", "127.0.0.1:PORT"
                return is_odd and {{ one, other }} or {{ other, one }}
            end""".replace("PORT", str(reserved.getsockname()[1])),
        }
        with NginxNode(folder / "node", [], "constant", options=options) as node:
            node.wait_until_connected()
            since = get(central, "/api/nodes")["nodes"][0]["connected_since"]
            yield ConstantNode(central, node, calls, since)


def nodes_of(central: Central) -> list[str]:
    return [one["name"] for one in get(central, "/api/nodes")["nodes"]]


def test_a_node_is_known_to_a_central_as_soon_as_it_starts(tmp_path: Path) -> None:
    """Slots are ten minutes: the first report does not wait for the next of them."""
    with (
        running() as central,
        NginxNode(tmp_path / "node", [central.url], "early", options=LONG_SLOTS) as node,
    ):
        node.wait_until_connected()
        assert nodes_of(central) == ["early"]
        assert node.status()["state"] == "fresh"


def test_an_idle_nginx_starts_without_a_warning_and_quits_at_once(tmp_path: Path) -> None:
    with (
        running(slot_seconds=1.0) as central,
        NginxNode(tmp_path, [central.url], "idle") as node,
    ):
        node.wait_until_connected()
        assert not node.log_lines("[warn]")
        begin = time.monotonic()
        node.quit()
        assert time.monotonic() - begin < 8.0  # it would wait for ten seconds for requests that run


@pytest.mark.parametrize("workers", [2, 4])
def test_without_a_central_and_a_dict_the_fallback_holds(
    tmp_path: Path, nowhere: str, workers: int
) -> None:
    with (
        NginxNode(tmp_path / "node", [nowhere], "lonely", workers=workers, dict_size=None) as node,
        Lateness() as lateness,
    ):
        begin = time.monotonic()
        with Clients(node, "ann") as clients:
            wait_for(lambda: len(clients.responses) >= 200)
        seconds = time.monotonic() - begin
        most = FALLBACK * (seconds + 1) + 1
        least = FALLBACK * (0.5 * seconds - lateness.between(begin, begin + seconds))
        assert max(least, 1) <= clients.admitted() <= min(most, 199), clients.statuses()
        assert clients.failures() == []
        assert node.status()["state"] == "none"
        # One line on each worker: it names what is missing, and what that means.
        lines = node.log_lines("there is no lua_shared_dict throttle")
        assert len(lines) == workers
        assert "limits hold without it" in lines[0]


def test_a_fallback_of_its_own_holds_without_a_central(tmp_path: Path, nowhere: str) -> None:
    options = {"fallback": "{ requests = 0.5 }"}
    with NginxNode(tmp_path / "node", [nowhere], "lonely", options=options) as node:
        begin = time.monotonic()
        with Clients(node, "ann") as clients:
            wait_for(lambda: len(clients.responses) >= 50)
        seconds = time.monotonic() - begin
        assert clients.admitted() <= 0.5 * (seconds + 1) + 1, clients.statuses()


VALID = 'active_services = { "front" }, centrals = { "127.0.0.1" }, node_id = "n", memory = "/m/m"'
WRONG_OPTIONS = {
    "nil": "init's options must be a table, got nil",
    '"front"': "init's options must be a table, got front",
    "{}": "centrals or get_central_ips must be given",
    '{ node_id = "n", centrals = { "127.0.0.1" } }': "active_services must be an array of one or",
    "{ VALID, active_services = {} }": "active_services must be an array of one or more names",
    "{ VALID, active_services = { 5 } }": "active_services must be a name of 1 to 50 bytes",
    '{ VALID, active_services = { ("x"):rep(51) } }': "active_services must be a name of 1 to 50",
    '{ VALID, active_services = { "\\255" } }': "active_services must be a name of 1 to 50 bytes",
    "{ VALID, node_id = 5 }": "node_id must be a name of 1 to 200 bytes",
    '{ VALID, node_id = "" }': "node_id must be a name of 1 to 200 bytes",
    '{ VALID, node_id = "\\255" }': "node_id must be a name of 1 to 200 bytes of UTF-8",
    "{ VALID, centrals = {} }": "centrals must be an array of one or more hosts or URLs",
    '{ VALID, centrals = { "http://a" } }': "centrals must be hosts, or URLs of ws:// or wss://",
    '{ VALID, centrals = { "a:99999" } }': "centrals must be hosts with a port from 1 to 65535",
    '{ VALID, centrals = { "a/b" } }': "centrals must be hosts, host:port, or URLs without a path",
    "{ VALID, get_central_ips = 5 }": "get_central_ips must be a function",
    "{ VALID, central_port = 0 }": "central_port must be a number from 1 to 65535, got 0",
    "{ VALID, slot_seconds = 0 }": "slot_seconds must be a number from 0.1 to 3600, got 0",
    "{ VALID, max_users = 0/0 }": "max_users must be a number from 1 to 10000000",
    "{ VALID, fallback = {} }": "fallback must be units per second of 1 to 8 resources",
    "{ VALID, fallback = { requests = -1 } }": "fallback must be a number from 0 to 1e+18, got -1",
    '{ VALID, token = "a b" }': "token must be 1 to 500 printable ASCII characters",
    '{ VALID, token_file = "/nowhere" }': "cannot read token_file: /nowhere: No such file",
    "{ VALID, tls = 5 }": "tls must be true, or a table with verify and server_name, got 5",
    "{ VALID, sevices = {} }": "unknown option sevices",
    "{ VALID }": "cannot open /m/m: No such file or directory",
}


def test_wrong_options_are_told_in_one_line_and_harm_no_request(
    tmp_path: Path, nowhere: str
) -> None:
    cases = ",\n".join(
        # Of a key that stands twice in a Lua table the later one counts.
        f"[{number}] = {case.replace('VALID', VALID)}"
        for number, case in enumerate(WRONG_OPTIONS, 1)
    )
    server = f"""
    location = /init {{ content_by_lua_block {{
        local cases = {{ {cases} }}
        ngx.say(select(2, require("throttle.node").init(cases[tonumber(ngx.var.arg_case)])))
    }} }}
    """
    with NginxNode(tmp_path / "node", [nowhere], "n", workers=1, server=server) as node:
        for number, message in enumerate(WRONG_OPTIONS.values(), 1):
            before = len(node.errors.splitlines())
            told = node.get("/init", case=number).text.removesuffix("\n")
            assert told.startswith(message), message
            lines = [line for line in node.errors.splitlines()[before:] if "not init" in line]
            assert len(lines) == 1, lines
            assert f"not initialised, so nothing is limited: {told}" in lines[0]
            assert node.get(user="ann").status == 200
            assert node.status() == {
                "is_initialised": False,
                "pid": node.worker_pids()[0],
                "problem": told,
            }


def test_centrals_are_looked_up_again_after_a_failure(tmp_path: Path) -> None:
    addresses = tmp_path / "addresses"
    with running() as central:
        port = central.url.rpartition(":")[2]
        options = {
            **LONG_SLOTS,
            "centrals": "nil",
            "central_port": port,
            "get_central_ips": f"""function()
                local file = assert(io.open("{addresses}"))
                local text = file:read("*a")
                file:close()
                return {{ text }}
            end""",
        }
        begin = time.monotonic()
        with NginxNode(tmp_path / "node", [], "seeker", options=options) as node:
            wait_for(lambda: node.log_lines("get_central_ips has failed"))
            addresses.write_text("127.0.0.1")
            node.wait_until_connected()
            seconds = time.monotonic() - begin
            lines = node.log_lines("reporting has failed")
            assert len(lines) <= 2 * (1 + seconds), lines  # once a second on each of two workers
            assert nodes_of(central) == ["seeker"]


TOKENS = {"node_token": "node-token", "admin_token": "admin-token"}


def test_a_node_with_the_right_token_is_connected(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("node-token\n")
    options = {**LONG_SLOTS, "token_file": f'"{tmp_path}/token"'}
    with (
        running(**TOKENS) as central,
        NginxNode(tmp_path / "node", [central.url], "known", options=options) as node,
    ):
        node.wait_until_connected()


@pytest.mark.parametrize("token", [None, '"other-token"'])
def test_a_node_with_a_wrong_token_says_so_once_and_tries_again_seldom(
    tmp_path: Path, token: str | None
) -> None:
    options = {"token": token} if token else {}
    with running(**TOKENS, slot_seconds=1.0) as central:
        begin = time.monotonic()
        with NginxNode(tmp_path / "node", [central.url], "unknown", options=options) as node:
            lines = wait_for(lambda: node.log_lines("is not connected"), seen=lambda: node.errors)
            assert "denied: " in lines[0]
            with Clients(node, "ann") as clients:
                wait_for(lambda: len(clients.responses) >= 60)
            seconds = time.monotonic() - begin
            assert 1 <= clients.admitted() <= FALLBACK * (seconds + 1) + 1, clients.statuses()
            assert len(node.log_lines("is not connected")) == 1
            assert denials(central) <= 1 + seconds / PERMANENT_BACKOFF
            assert node.status()["is_alone"] is True


def denials(central: Central) -> float:
    """How many connections the central has denied."""
    metrics = get(central, "/metrics", "admin-token")
    found = re.search(r'^sluicegate_central_refusals_total{reason="denied"} (\S+)', metrics, re.M)
    assert found, metrics
    return float(found[1])


@pytest.fixture(scope="module")
def secure_central(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Central, Path]]:
    certificate, key = make_certificate(tmp_path_factory.mktemp("certificate"))
    with running(tls_cert=certificate, tls_key=key) as central:
        yield central, certificate


def test_a_node_trusts_the_certificate_that_it_was_given(
    tmp_path: Path, secure_central: tuple[Central, Path]
) -> None:
    central, certificate = secure_central
    with NginxNode(
        tmp_path / "node",
        [central.url],
        "secure",
        options={**LONG_SLOTS, "tls": '{ server_name = "localhost" }'},
        http=f"lua_ssl_trusted_certificate {certificate};",
    ) as node:
        node.wait_until_connected()


@pytest.mark.parametrize("is_trusted", [False, True])
def test_a_node_does_not_talk_to_a_central_that_it_does_not_trust(
    tmp_path: Path, secure_central: tuple[Central, Path], is_trusted: bool
) -> None:
    """No authority of its certificate is known, or it is that of another host."""
    central, certificate = secure_central
    with NginxNode(
        tmp_path / "node",
        [central.url],
        "distrustful",
        options={**LONG_SLOTS, "tls": '{ server_name = "elsewhere" }'},
        http=f"lua_ssl_trusted_certificate {certificate};" if is_trusted else "",
    ) as node:
        lines = wait_for(lambda: node.log_lines("is not connected"), seen=lambda: node.errors)
        assert "TLS handshake failed" in lines[0] or "certificate" in lines[0], lines
        assert node.get(user="ann").status == 200
        assert node.status()["is_alone"] is True


def test_two_nodes_do_not_connect_again_at_the_same_moments(tmp_path: Path, nowhere: str) -> None:
    """The random numbers of Lua are the same in all workers of all hosts."""
    delays = []
    for name in ("one", "other"):
        with NginxNode(tmp_path / name, [nowhere], name, workers=1) as node:
            delays.append(json.loads(node.get("/delays").text))
    assert all(0.0 < each <= 0.1 for each in delays[0]), delays
    assert len(delays[0]) == len(delays[1]) == 10
    assert delays[0] != delays[1]


def test_a_central_with_other_slots_is_told_and_tried_again_seldom(tmp_path: Path) -> None:
    with running() as central, NginxNode(tmp_path / "node", [central.url], "hasty") as node:
        lines = wait_for(lambda: node.log_lines("is not connected"), seen=lambda: node.errors)
        assert "denied: " in lines[0]
        assert json.dumps(SLOT) in lines[0] or f"{SLOT:g}" in lines[0]


def test_centrals_in_another_order_are_the_same_centrals(constant_node: ConstantNode) -> None:
    """Name servers tell addresses in turn. It is the last test: time has passed since the start."""
    wait_for(lambda: len(constant_node.calls.read_bytes()) >= 2)
    time.sleep(0.5)  # to connect again takes 0.1 to 0.2 s, and is not to happen
    nodes = get(constant_node.central, "/api/nodes")["nodes"]
    assert nodes[0]["connected_since"] == constant_node.connected_since
