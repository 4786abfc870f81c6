"""`sluicegate node` in front of a real upstream: what it passes on, what it counts, how it ends."""

import asyncio
import contextlib
import http.client
import http.server
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from sluicegate.cli import main as cli
from sluicegate.proxy.proxy import BoundedProtocol, Proxy
from sluicegate.proxy.server import _Workers, listen
from sluicegate.quota import Entry
from tests.harness.mini_central import SmallCentral
from tests.harness.servers import reserve_port
from tests.harness.waits import PATIENCE, Output, wait_for

MEGABYTE = 1 << 20
LARGE = 48 * MEGABYTE

UPSTREAM = """
import asyncio, json, socket, uvicorn
gone, slow = [], []
release = asyncio.Event()

async def app(scope, receive, send):
    path, size = scope["path"], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            gone.append(path)
            return
        size += len(message["body"])
        if not message["more_body"]:
            break

    async def answer(body, *headers, status=200):
        fields = [(b"content-length", str(len(body)).encode()), *headers]
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": body})

    if path == "/large":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(48):
            await send({"type": "http.response.body", "body": b"x" * (1 << 20), "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    elif path == "/endless" or path == "/quiet":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.append(path)
    elif path == "/short":
        headers = [(b"content-length", b"100")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
    elif path == "/slow":  # until /release is asked for, or the client has gone
        slow.append(scope["query_string"].decode())
        waits = [asyncio.ensure_future(one) for one in (release.wait(), receive())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        await answer(b"late")
    elif path == "/release":
        release.set()
        release.clear()
        await answer(b"[]")
    elif path == "/gone":
        await answer(json.dumps(gone).encode())
    elif path == "/running":  # of /slow, by query
        await answer(json.dumps(slow).encode())
    elif path == "/304":
        await send({"type": "http.response.start", "status": 304, "headers": [(b"etag", b"e")]})
        await send({"type": "http.response.body", "body": b""})
    else:
        headers = [[name.decode(), value.decode()] for name, value in scope["headers"]]
        target = scope["raw_path"].decode() + "?" + scope["query_string"].decode()
        body = json.dumps([scope["method"], target, headers, size]).encode()
        await answer(body, (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"),
                     (b"connection", b"x-private"), (b"x-private", b"1"), status=201)

listener = socket.create_server(("127.0.0.1", 0))
print("port", listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listener])
"""


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    command = [sys.executable, "-c", UPSTREAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{Output(process.stdout).wait_for('port').split()[1]}"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def central() -> Iterator[SmallCentral]:
    entries = [
        Entry("front", "ann", rates={"requests": 1.0}, burst_seconds=1.0),
        Entry("front", "*", rates={"requests": 1000.0, "traffic_up": 1e12, "traffic_down": 1e12}),
    ]
    made = SmallCentral(entries)
    made.start()
    yield made
    made.close()


class Node:
    """A `sluicegate node` process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        line = Output(process.stdout).wait_for("listens on")
        found = re.fullmatch(r"sluicegate node (\S+) listens on http://127\.0\.0\.1:(\d+)\n", line)
        assert found is not None, line
        self.node_id = found[1]
        self.port = int(found[2])

    def ask(
        self, path: str = "/", *, method: str = "GET", user: str = "bob", body: Any = None
    ) -> tuple[int, bytes]:
        with contextlib.closing(self.connection()) as connection:
            connection.request(method, path, body=body, headers={"x-user": user})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    @property
    def most_memory(self) -> int:
        """Bytes that it ever had in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


@contextlib.contextmanager
def sluicegate_node(
    upstream: str, central: str, shared: Path, *options: str, port: int = 0
) -> Iterator[Node]:
    command = [
        *(sys.executable, "-m", "sluicegate", "node", "--listen", f"127.0.0.1:{port}"),
        *("--upstream", upstream, "--central", central, "--service", "front"),
        *("--shared", str(shared), *(options or ("--user-header", "x-user"))),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield Node(process)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # workers, too


@pytest.fixture(scope="module")
def node(
    upstream: str, central: SmallCentral, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    """One for all tests that do not stop it."""
    shared = tmp_path_factory.mktemp("node") / "memory"
    with sluicegate_node(upstream, central.url, shared) as made:
        yield made


def test_a_request_and_its_answer_pass_without_what_is_of_one_connection(node: Node) -> None:
    with contextlib.closing(node.connection()) as connection:
        headers = {
            "X-User": "bob",
            "X-Forwarded-For": "203.0.113.9",
            "X-Forwarded-Proto": "gopher",
            "Connection": "keep-alive, X-Hop",
            "X-Hop": "1",
            "TE": "trailers",
            "Proxy-Authorization": "secret",
            "X-Name": "Ü".encode(),
            "Accept-Encoding": "br",
        }
        connection.request("PUT", "/a%2Fb%20?c=%20&d", body=b"12345", headers=headers)
        answer = connection.getresponse()
        method, target, passed, size = json.loads(answer.read())
        assert (answer.status, method, target, size) == (201, "PUT", "/a%2Fb%20?c=%20&d", 5)
        assert sorted(passed) == [
            ["accept-encoding", "br"],
            ["content-length", "5"],
            ["host", f"127.0.0.1:{node.port}"],
            ["x-forwarded-for", "203.0.113.9, 127.0.0.1"],
            ["x-forwarded-host", f"127.0.0.1:{node.port}"],
            ["x-forwarded-proto", "http"],
            ["x-name", "Ü"],
            ["x-user", "bob"],
        ]
        assert answer.headers.get_all("set-cookie") == ["a=1", "b=2"]
        assert answer.headers["x-private"] is None
        assert len(answer.headers.get_all("date") or []) == 1
        # The connection is kept, and a chunked body goes on as one.
        connection.request("POST", "/", body=iter([b"123", b"45"]), headers={"X-User": "bob"})
        _, _, passed, size = json.loads(connection.getresponse().read())
        assert size == 5
        assert ["transfer-encoding", "chunked"] in passed
        connection.request("GET", "/304", headers={"X-User": "bob"})
        answer = connection.getresponse()
        assert (answer.status, answer.headers["etag"], answer.read()) == (304, "e", b"")
        connection.request("HEAD", "/", headers={"X-User": "bob"})
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (201, b"")
        assert int(answer.headers["content-length"]) > 0


def test_large_bodies_are_streams_in_both_directions_and_are_counted(
    node: Node, central: SmallCentral
) -> None:
    node.ask("/", user="carl")
    before = node.most_memory
    pieces = (b"x" * MEGABYTE for _ in range(LARGE // MEGABYTE))
    status, body = node.ask("/up", method="POST", user="carl", body=pieces)
    assert (status, json.loads(body)[3]) == (201, LARGE)
    with socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE) as client:
        # One who reads in small bites holds the upstream up, and not the memory here.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        client.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\nX-User: carl\r\n\r\n")
        received = 0
        while received < LARGE:
            piece = client.recv(256 << 10)
            assert piece, f"it ended after {received} bytes"
            received += len(piece)
    assert node.most_memory - before < 16 * MEGABYTE
    wait_for(lambda: central.consumed("front", "carl", "requests") == 3)
    assert central.consumed("front", "carl", "traffic_up") == LARGE
    assert central.consumed("front", "carl", "traffic_down") > LARGE


def test_who_is_over_his_limit_gets_429_and_the_upstream_nothing(
    node: Node, central: SmallCentral
) -> None:
    node.ask("/", user="ann")
    wait_for(lambda: central.consumed("front", "ann", "requests") == 1)
    began = time.monotonic()
    answers = [node.ask("/", user="ann") for _ in range(60)]
    took = time.monotonic() - began
    refused = [json.loads(body) for status, body in answers if status == 429]
    passed = [status for status, _ in answers if status == 201]
    assert len(passed) + len(refused) == 60
    assert len(passed) <= 10 + took  # of a slot without a central, and of one second after another
    assert {tuple(one["violated-policies"]) for one in refused} == {("requests",)}
    assert node.ask("/", user="bob")[0] == 201
    wait_for(lambda: central.consumed("front", "ann", "requests") == 1 + len(passed))


def raw(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        client.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            piece = client.recv(65536)
            if not piece:
                break
            answer += piece
        return answer


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 501),
        (b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 501),
        (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /?\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"nonsense\r\n\r\n", 400),
    ],
)
def test_what_is_not_passed_on_is_refused_with_a_reason(
    node: Node, request_head: bytes, status: int
) -> None:
    answer = raw(node.port, request_head)
    assert int(answer.split()[1]) == status


def test_header_lines_without_end_are_cut_off(node: Node) -> None:
    before = node.most_memory
    with socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                client.sendall(b"x" * 65536)
            pytest.fail("64 MB of header lines were taken")
    assert node.most_memory - before < 8 * MEGABYTE


def test_a_client_that_goes_away_ends_the_request_at_the_upstream(node: Node) -> None:
    for path in ("/endless", "/quiet"):
        with socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE) as client:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            with client.makefile("rb") as answer:
                assert any(b"first" in line for line in answer)
    with socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE) as client:
        client.sendall(b"POST /half HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf")
    wait_for(lambda: {"/endless", "/quiet"} <= set(json.loads(node.ask("/gone")[1])))
    assert node.ask("/")[0] == 201


def test_an_answer_that_breaks_off_is_seen_to_be_broken(node: Node) -> None:
    with contextlib.closing(node.connection()) as connection:
        connection.request("GET", "/short", headers={"X-User": "bob"})
        answer = connection.getresponse()
        assert answer.status == 200
        with pytest.raises(http.client.IncompleteRead):
            answer.read()


def test_a_stop_lets_running_requests_end_and_says_good_bye(
    upstream: str, central: SmallCentral, tmp_path: Path
) -> None:
    options = ("--user-header", "x-user", "--node-id", "edge-2")
    with sluicegate_node(upstream, central.url, tmp_path / "memory", *options) as node:
        answers: list[tuple[int, bytes]] = []
        client = threading.Thread(target=lambda: answers.append(node.ask("/slow?1", user="dora")))
        client.start()
        wait_for(lambda: "1" in get(f"{upstream}/running"))
        node.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not is_listening(node.port))
        client.join(0.5)  # without grace it would be cut off within 0.1 s
        assert client.is_alive()
        get(f"{upstream}/release")
        assert node.process.wait(PATIENCE) == 0
        client.join(PATIENCE)
    assert answers == [(200, b"late")]
    assert [one.leaving for one in central.reports if one.node == "edge-2"][-1]
    assert central.consumed("front", "dora", "traffic_down") == 4


def test_workers_share_a_socket_and_are_replaced_when_they_die(
    upstream: str, central: SmallCentral, tmp_path: Path
) -> None:
    options = ("--user-address", "--workers", "2", "--node-id", "edge-1")
    with sluicegate_node(upstream, central.url, tmp_path / "memory", *options) as node:
        assert node.node_id == "edge-1"
        assert node.ask("/")[0] == 201
        children = Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children")
        wait_for(lambda: len(children.read_text().split()) == 2)
        first = children.read_text().split()
        os.kill(int(first[0]), signal.SIGKILL)
        wait_for(lambda: len(set(children.read_text().split()) - {first[0]}) == 2)
        assert node.ask("/")[0] == 201
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(PATIENCE) == 0
        assert not any(Path(f"/proc/{child}").exists() for child in first)


def test_no_worker_is_started_after_the_signal_to_stop() -> None:
    """Nobody would tell it to stop, and its parent would wait for it for ever."""
    workers = _Workers(lambda parent: None, 2)
    workers._stop(signal.SIGTERM, None)
    workers._fork()
    assert workers._started == {}


def test_workers_end_and_say_good_bye_when_their_parent_is_killed(
    upstream: str, central: SmallCentral, tmp_path: Path
) -> None:
    options = ("--user-address", "--workers", "2", "--node-id", "edge-3")
    with (
        reserve_port() as reserved,
        sluicegate_node(
            upstream,
            central.url,
            tmp_path / "memory",
            *options,
            port=reserved.getsockname()[1],
        ) as node,
    ):
        assert node.ask("/")[0] == 201
        children = Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children")
        wait_for(lambda: len(children.read_text().split()) == 2)
        workers = children.read_text().split()
        wait_for(lambda: any(one.node == "edge-3" for one in central.reports))
        node.process.kill()
        wait_for(lambda: not any(is_running(worker) for worker in workers))
        assert not is_listening(node.port)
    assert [one.leaving for one in central.reports if one.node == "edge-3"][-1]


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return json.load(answer)


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def is_running(process: str) -> bool:
    """Whether it has not ended; in a container, nobody may have asked for its exit code."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--upstream", "ftp://a"], "upstream must be a URL like"),
        (["--listen", "nowhere"], "--listen takes HOST:PORT"),
        (["--central", "redis://a"], "invalid central URL"),
        (["--workers", "0"], "--workers must be from 1 to 256, got 0"),
        (["--service", ""], "service must have 1 to 50 bytes of UTF-8, got ''"),
        (["--trusted", "10.0.0.0/8"], "--trusted goes with --user-address"),
        (["--token-file", "/no/such/file"], "cannot read token file /no/such/file"),
        (["--wait", "-1"], "--wait must be finite and not below 0, got -1"),
        (["--wait", "nan"], "--wait must be finite and not below 0, got nan"),
        (["--wait", "soon"], "--wait: invalid float value: 'soon'"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    usual = ["node", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9"]
    usual += ["--shared", str(tmp_path / "memory"), "--user-header", "x-user"]
    if "--central" not in arguments:
        usual += ["--central", "ws://127.0.0.1:9"]
    with pytest.raises(SystemExit) as refused:
        cli.main([*usual, *arguments])
    assert refused.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "wait"), [([], None), (["--wait", "0"], 0.0)])
def test_requests_wait_as_long_as_the_command_says(
    arguments: list[str], wait: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Made(Exception):
        pass

    def middleware(*_: object, **options: object) -> None:
        raise Made(options["wait"])

    monkeypatch.setattr("sluicegate.proxy.server.QuotaASGIMiddleware", middleware)
    usual = ["node", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9"]
    usual += ["--shared", str(tmp_path / "memory"), "--user-address"]
    with pytest.raises(Made) as made:
        cli.main([*usual, "--central", "ws://127.0.0.1:9", *arguments])
    assert made.value.args == (wait,)


def test_a_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ["node", "--listen", where, "--upstream", "http://127.0.0.1:9"]
        code = cli.main([*arguments, "--central", "ws://127.0.0.1:9", "--user-address"])
    assert code == 1
    assert f"cannot listen on {where}" in capsys.readouterr().err


def test_answers_do_not_wait_for_acknowledgements() -> None:
    # asyncio sets TCP_NODELAY where a socket says that it is TCP, which most ways to make a
    # listener leave out; a header and its body were 40 ms apart then.
    with listen("127.0.0.1:0") as listener:
        assert listener.proto == socket.IPPROTO_TCP
    with pytest.raises(ValueError, match="takes HOST:PORT"):
        listen("127.0.0.1:99999")


# The proxy alone, in this process


@contextlib.contextmanager
def serving(proxy: Proxy) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        proxy, http=BoundedProtocol, ws="none", lifespan="off", log_level="critical"
    )
    server = uvicorn.Server(config)

    async def serve() -> None:
        async with proxy:
            await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()
        listener.close()


def test_an_upstream_that_is_away_is_502_and_one_that_is_slow_504(upstream: str) -> None:
    with serving(Proxy("http://127.0.0.1:9")) as port:
        answer = raw(port, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 502 Bad Gateway")
    with serving(Proxy(upstream, read_timeout=0.05)) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("GET", "/slow")
        answer = connection.getresponse()
        assert answer.status == 504
        assert json.loads(answer.read()) == {
            "type": "about:blank",
            "title": "Gateway Timeout",
            "status": 504,
            "detail": "the service behind this proxy did not answer in time",
        }
        connection.close()


def test_an_upstream_may_have_a_path(upstream: str) -> None:
    proxy = Proxy(f"{upstream}/base/")
    assert repr(proxy) == f"Proxy('{upstream}/base')"
    with serving(proxy) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("GET", "/a?b=c")
        assert json.loads(connection.getresponse().read())[1] == "/base/a?b=c"
        connection.close()


def test_a_proxy_that_is_not_open_says_so() -> None:
    async def story() -> None:
        scope = {"type": "http", "method": "GET", "headers": [], "raw_path": b"/"}
        with pytest.raises(RuntimeError, match="not open"):
            await Proxy("http://a")(scope | {"query_string": b"", "scheme": "http"}, None, None)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="passes on http"):
            await Proxy("http://a")({"type": "websocket"}, None, None)  # type: ignore[arg-type]

    asyncio.run(story())


class _Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def tls_upstream(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Its URL, and the certificate that it has given itself."""
    cert, key = tmp_path / "upstream.crt", tmp_path / "upstream.key"
    command = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
        *("-nodes", "-days", "2", "-subj", "/CN=localhost"),
        *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hello)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # who trusts us not, hangs up
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}", cert
    server.shutdown()
    thread.join(PATIENCE)
    server.server_close()


@pytest.mark.parametrize(("is_trusted", "status"), [(True, 200), (False, 502)])
def test_an_upstream_behind_tls_is_asked_if_its_certificate_is_trusted(
    tls_upstream: tuple[str, Path],
    central: SmallCentral,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_trusted: bool,
    status: int,
) -> None:
    url, cert = tls_upstream
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    with sluicegate_node(url, central.url, tmp_path / "memory") as node:
        assert node.ask()[0] == status
