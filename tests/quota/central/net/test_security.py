"""Who may come in, and who is sent away: tokens, TLS, addresses."""

import asyncio
import json
import os
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import connect as connect_async
from websockets.sync.client import connect

from sluicegate.errors import ConfigError
from sluicegate.quota import Central
from sluicegate.quota.central.net.ban_list import BanList
from sluicegate.quota.central.net.tokens import Tokens, is_loopback, read_tokens
from sluicegate.quota.messages import Ack, Report
from sluicegate.quota.wire import NodeWire
from tests.harness.central import LIMITS, PlainNode, V1Node, closed_with, running
from tests.harness.certificate import make_certificate
from tests.harness.waits import PATIENCE

NODE, ADMIN = "node-secret-1", "admin-secret-2"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.7:7411", "central.example:1"])
def test_without_tokens_nobody_else_may_reach_it(listen: str) -> None:
    for tokens in ({}, {"node_token": NODE}, {"admin_token": ADMIN}):
        with pytest.raises(ConfigError, match="set both .--token-file., or listen on 127.0.0.1"):
            Central(LIMITS, listen=listen, **tokens)
    Central(LIMITS, listen=listen, node_token=NODE, admin_token=ADMIN)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
    ],
)
def test_what_is_this_machine_alone(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


# role, header, allowed
SHOWN = [
    ("node", f"Bearer {NODE}", True),
    ("node", f"bearer  {NODE} ", True),
    ("node", f"Bearer {ADMIN}", True),
    ("node", None, False),
    ("node", "", False),
    ("node", NODE, False),
    ("node", f"Basic {NODE}", False),
    ("node", f"Bearer {NODE}x", False),
    ("node", "Bearer ähem", False),
    ("admin", f"Bearer {ADMIN}", True),
    ("admin", f"Bearer {NODE}", False),
    ("admin", None, False),
]


@pytest.mark.parametrize(("role", "header", "allowed"), SHOWN)
def test_who_shows_what_may_do_what(role: str, header: str | None, allowed: bool) -> None:
    assert Tokens(NODE, ADMIN).allows(role, header) is allowed  # type: ignore[arg-type]


def test_a_token_that_is_not_set_is_not_asked_for() -> None:
    assert Tokens().allows("admin", None)
    assert Tokens(node=NODE).allows("admin", None)
    assert not Tokens(node=NODE).allows("node", None)


def test_tokens_do_not_show_in_a_log() -> None:
    assert "secret" not in repr(Tokens(NODE, ADMIN))
    with running(node_token=NODE, admin_token=ADMIN) as central:
        assert "secret" not in repr(central)


@pytest.mark.parametrize("token", ["", "short", "with space", "n\u00f6n-ascii-token", "x" * 501])
def test_a_token_must_be_one(token: str) -> None:
    with pytest.raises(ValueError, match="the node token must"):
        Tokens(node=token)


# content, mode, tokens or what is wrong
FILES = [
    (f'node = "{NODE}"\nadmin = "{ADMIN}"\n', 0o600, Tokens(NODE, ADMIN)),
    (f'node = "{NODE}"\n', 0o400, Tokens(NODE, None)),
    (f'peer = "{ADMIN}"\n', 0o400, Tokens(None, None, ADMIN)),
    (f"{NODE}\n", 0o600, Tokens(NODE, NODE)),
    ("# ours\nYmFzZTY0IQ==\n", 0o600, Tokens("YmFzZTY0IQ==", "YmFzZTY0IQ==")),
    (f"{NODE}\n", 0o640, "chmod 600"),
    (f"{NODE}\n", 0o604, "chmod 600"),
    ("", 0o600, 'is empty; expected node = "..." and admin = "..."'),
    ("# nothing yet\n", 0o600, "is empty"),
    ('nod = "12345678"\n', 0o600, r"got unknown keys \['nod'\]"),
    ("node = 12345678\n", 0o600, "node must be text, got int"),
    ('node = "1234"\n', 0o600, "the node token must have 8 to 500 characters, got 4"),
    ("one-secret\ntwo-secret\n", 0o600, "neither one line nor TOML"),
]


@pytest.mark.parametrize(("text", "mode", "expected"), FILES)
def test_a_token_file(tmp_path: Path, text: str, mode: int, expected: Tokens | str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    path.chmod(mode)
    if isinstance(expected, Tokens):
        assert read_tokens(path) == expected
        return
    with pytest.raises(ConfigError, match=expected) as caught:
        read_tokens(path)
    assert "secret" not in str(caught.value).replace(str(path), "")


def test_a_credential_of_systemd_may_show_a_right_of_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its access control list gives mode 440; the folder is open to the service alone."""
    path = tmp_path / "tokens.toml"
    path.write_text(f"{NODE}\n")
    path.chmod(0o440)
    with pytest.raises(ConfigError, match="has mode 440"):
        read_tokens(path)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_tokens(path) == Tokens(NODE, NODE)
    for mode in (0o444, 0o460):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 600"):
            read_tokens(path)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "other"))
    path.chmod(0o440)
    with pytest.raises(ConfigError, match="has mode 440"):
        read_tokens(path)


def test_a_pipe_is_no_token_file(tmp_path: Path) -> None:
    """It was waited for without end."""
    path = tmp_path / "pipe"
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigError, match="expected a regular file"):
        read_tokens(path)
    with pytest.raises(ConfigError, match="expected a regular file"):
        read_tokens(tmp_path)


def test_a_token_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read token file"):
        read_tokens(tmp_path / "nothing")


def test_nodes_present_their_token() -> None:
    with running(node_token=NODE, admin_token=ADMIN) as central:
        for options in ({}, {"subprotocols": ["sluicegate.v1"]}):
            for headers in ({}, bearer("wrong-secret")):
                with connect(central.ws_url, additional_headers=headers, **options) as socket:
                    code, reason = closed_with(socket)
                    assert code == 1008
                    assert reason.startswith("denied: ")
                    assert "Authorization: Bearer TOKEN" in reason
        with V1Node(central, "n1", additional_headers=bearer(NODE)) as node:
            assert node.report(1).leads
        with PlainNode(central, "n2", additional_headers=bearer(NODE)) as plain:
            assert "front" in plain.report(plain.slot(), {})


def test_the_monitor_and_the_api_are_for_administrators() -> None:
    with running(node_token=NODE, admin_token=ADMIN) as central:
        with PlainNode(central, additional_headers=bearer(NODE)) as plain:
            assert plain.ask({"monitor": "quota"})["error_code"] == "Denied"
        with PlainNode(central, additional_headers=bearer(ADMIN)) as plain:
            assert plain.ask({"monitor": "quota"}) == {}
        answers = {}
        bodies = []
        for path in ("/api/status", "/api/limits", "/metrics", "/healthz", "/nothing"):
            for who, headers in (("none", {}), ("node", bearer(NODE)), ("admin", bearer(ADMIN))):
                request = urllib.request.Request(central.url + path, headers=headers)
                try:
                    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                        answers[path, who] = response.status
                except urllib.error.HTTPError as error:
                    with error:
                        answers[path, who] = error.code
                        bodies.append(json.loads(error.read()))
        for path in ("/api/status", "/api/limits", "/metrics"):
            assert [answers[path, who] for who in ("none", "node", "admin")] == [401, 401, 200]
        assert all(body.keys() == {"error_code", "error_message"} for body in bodies)
        assert answers["/healthz", "none"] == 200
        assert answers["/nothing", "admin"] == 404


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def test_tls(certificate: tuple[Path, Path]) -> None:
    """With the asyncio client: the other one reads and writes a TLS socket in two threads, and
    one handshake in sixty hangs, with the library's own server too."""
    cert, key = certificate
    trusted = ssl.create_default_context(cafile=str(cert))

    async def report(url: str) -> object:
        wire = NodeWire()
        async with connect_async(
            url, ssl=trusted, subprotocols=["sluicegate.v1"], additional_headers=bearer(NODE)
        ) as websocket:
            await websocket.send(wire.write(Report("n", 1, 1, -1, 0, 1, 0.0, {})))
            return wire.read(await asyncio.wait_for(websocket.recv(), PATIENCE))

    async def refused(url: str) -> int | None:
        async with connect_async(url, ssl=trusted) as websocket:
            await asyncio.wait_for(websocket.wait_closed(), PATIENCE)
            return websocket.close_code

    with running(tls_cert=cert, tls_key=key, node_token=NODE, admin_token=ADMIN) as central:
        assert central.url.startswith("https://")
        ack = asyncio.run(report(central.ws_url))
        assert isinstance(ack, Ack)
        assert ack.sequence == 1
        assert asyncio.run(refused(central.ws_url)) == 1008
        healthz = central.url + "/healthz"
        with urllib.request.urlopen(healthz, context=trusted, timeout=PATIENCE) as response:
            assert response.status == 200


def test_a_certificate_that_is_none_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "c.pem"
    path.write_text("nothing")
    unusable = pytest.raises(ConfigError, match="invalid TLS certificate")
    with unusable, running(tls_cert=path, tls_key=path):
        pass
    with pytest.raises(ConfigError, match="expected both tls_cert and tls_key"):
        Central(LIMITS, tls_cert=path)


# Bad frames


def test_an_address_that_goes_on_with_bad_frames_is_banned_for_a_while() -> None:
    ban_list = BanList(max_bad_frames=3, ban_seconds=30.0, max_addresses=2)
    for now in (0.0, 10.0):
        ban_list.record(now, "a")
    assert not ban_list.is_banned(10.0, "a")
    ban_list.record(20.0, "a")
    assert ban_list.is_banned(20.0, "a")
    assert not ban_list.is_banned(20.0, "b")
    assert ban_list.is_banned(49.9, "a")
    assert not ban_list.is_banned(50.0, "a")


def test_bad_frames_are_counted_by_the_minute() -> None:
    ban_list = BanList(max_bad_frames=3)
    for now in (0.0, 59.0, 60.0, 119.0):
        ban_list.record(now, "a")
        assert not ban_list.is_banned(now, "a")
    ban_list.record(119.5, "a")
    assert ban_list.is_banned(119.5, "a")


def test_the_memory_of_addresses_is_bounded() -> None:
    ban_list = BanList(max_bad_frames=2, max_addresses=10)
    for number in range(100):
        ban_list.record(0.0, f"a{number}")
        ban_list.record(0.0, f"b{number}")
        ban_list.record(0.0, f"b{number}")
    assert not ban_list.is_banned(0.0, "b0")
    assert ban_list.is_banned(0.0, "b99")
    ban_list.record(0.0, "a0")  # forgotten: it begins anew
    assert not ban_list.is_banned(0.0, "a0")


def test_a_banned_address_is_denied_and_others_are_not() -> None:
    with running() as central:
        for _ in range(10):
            with connect(central.ws_url, source_address=("127.0.0.9", 0)) as socket:
                for _ in range(10):
                    socket.send("nonsense")
                closed_with(socket)
        with connect(central.ws_url, source_address=("127.0.0.9", 0)) as socket:
            assert closed_with(socket) == (1008, "denied: too many bad frames")
        with PlainNode(central) as node:
            assert node.report(node.slot(), {})


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:7411", "10.0.0.1", "@"])
def test_a_name_that_has_come_to_mean_this_machine_opens_nothing(host: str) -> None:
    """A page of evil.example, whose name is suddenly 127.0.0.1, is of its own origin."""
    with running() as central:
        request = urllib.request.Request(f"{central.url}/api/limits", headers={"Host": host})
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=PATIENCE)
        with caught.value as error:
            assert error.code == 403
            assert "localhost" in json.loads(error.read())["error_message"]
        address = urlsplit(central.url)
        with socket.create_connection((address.hostname, address.port), PATIENCE) as raw:
            raw.sendall(
                f"GET / HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n"
                "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
            )
            heard = b""
            while piece := raw.recv(4096):
                heard += piece
        assert b"denied: without a token only localhost may connect" in heard


@pytest.mark.parametrize("header", ["Host: [", "Host: [::1", "Host: localhost\r\nOrigin: http://["])
def test_a_header_that_is_no_address_is_refused(
    header: str, caplog: pytest.LogCaptureFixture
) -> None:
    upgrade = (
        f"GET / HTTP/1.1\r\n{header}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with running() as central:
        address = urlsplit(central.url)
        for request, expected in (
            (upgrade, b"denied: "),
            (f"GET /api/status HTTP/1.1\r\n{header}\r\nConnection: close\r\n\r\n", b"HTTP/1.1 "),
        ):
            with socket.create_connection((address.hostname, address.port), PATIENCE) as client:
                client.sendall(request.encode())
                answer = b""
                while piece := client.recv(1000):
                    answer += piece
            assert expected in answer
            assert b" 500 " not in answer
    assert "Traceback" not in caplog.text
