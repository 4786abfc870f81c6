"""`sluicegate nginx-conf`: a real nginx reads what it prints, and runs it with a node that records.

The node itself (lua/throttle) has tests of its own: here it is a stub that notes its calls.
"""

import base64
import contextlib
import http.client
import io
import json
import os
import random
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sluicegate.cli.main import main
from sluicegate.cli.nginx_template import lua_string, nginx_string
from sluicegate.demo.process import random_loopback
from sluicegate.integrations.http.keys import by_address
from sluicegate.integrations.http.request import EnvironRequest
from tests.harness.certificate import make_certificate
from tests.harness.nginx import find_luajit, find_nginx
from tests.harness.servers import ROOT
from tests.harness.waits import PATIENCE, wait_for

MODULES = [
    Path("/usr/lib/nginx/modules") / name
    for name in ("ndk_http_module.so", "ngx_http_lua_module.so")
]
LUA = ROOT / "lua"
PORT = 8080
USERS = ["header:X-User", "jwt:sub", "certificate", "address"]
CENTRALS = ["--central", "10.0.0.1", "--central", "10.0.0.2:7500"]
STUB = """
local calls = {}
local node = { calls = calls }

function node.init(options)
    calls[#calls + 1] = { "init", options }
end

function node.throttle(service, user)
    calls[#calls + 1] = { "throttle", service, user }
    if user == "mallory" then
        ngx.ctx.throttle_retry_after = 1.2
        return nil, "Throttled", "out of requests"
    end
    return true
end

function node.consume(service, user, amounts)
    calls[#calls + 1] = { "consume", service, user, amounts }
end

return node
"""


def conf(*words: str) -> str:
    """What the command prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["nginx-conf", *words]) == 0
    return printed.getvalue()


def both_parts(user_from: str, *words: str) -> tuple[str, str]:
    http = conf("--user-from", user_from, *CENTRALS, *words)
    return http, conf("--part", "server", "--user-from", user_from)


def write_conf(folder: Path, http: str, *server: str) -> list[str]:
    """Write a whole configuration around the parts; returns the command that reads it."""
    temporary = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    lines = [
        *(f"load_module {path};" for path in MODULES if path.exists()),
        "user root;" if os.geteuid() == 0 else "",
        "daemon off; master_process off; pid nginx.pid; error_log error.log notice;",
        "events {}",
        "http {",
        "access_log off;",
        *(f"{name}_temp_path {name};" for name in temporary),
        http,
        *server,
        "}",
    ]
    (folder / "nginx.conf").write_text("\n".join(lines))
    return [find_nginx(), "-p", str(folder), "-e", "error.log", "-c", "nginx.conf"]


def assert_valid(folder: Path, http: str, *server: str) -> None:
    command = [*write_conf(folder, http, *server), "-t"]
    tested = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert tested.returncode == 0, tested.stderr
    assert "[warn]" not in tested.stderr


class Nginx:
    """An nginx of one process with the printed configuration, and the stub for a node."""

    def __init__(self, folder: Path, user_from: str, *words: str, server_lines: str = "") -> None:
        (folder / "lua" / "throttle").mkdir(parents=True)
        (folder / "lua" / "throttle" / "node.lua").write_text(STUB)
        (folder / "html").mkdir()
        (folder / "html" / "index.html").write_text("welcome")
        (folder / "html" / "lost.html").write_text("lost")
        self.folder = folder
        self.host = random_loopback()
        http, server = both_parts(user_from, "--lua-path", str(folder / "lua"), *words)
        block = f"""
            server {{
                listen {self.host}:{PORT};
                set_real_ip_from 127.0.0.0/8;
                real_ip_header X-Real-IP;
                root html;
                error_page 404 /lost.html;
                error_page 429 /lost.html;
                {server_lines}
                {server}
                location = /calls {{
                    access_by_lua_block {{ return }}
                    log_by_lua_block {{ return }}
                    content_by_lua_block {{
                        local node = require("throttle.node")
                        ngx.print(require("cjson").encode(node.calls))
                        while node.calls[1] do
                            table.remove(node.calls)
                        end
                    }}
                }}
                location /named/ {{ try_files $uri @named; }}
                location @named {{ content_by_lua_block {{ ngx.print("named") }} }}
                location /log {{
                    content_by_lua_block {{ ngx.print(ngx.var.sluicegate_admitted) }}
                }}
            }}
        """
        self._process = subprocess.Popen(write_conf(folder, http, block))
        wait_for(self._answers, seen=self.log)

    def _answers(self) -> bool:
        assert self._process.poll() is None, self.log()
        try:
            socket.create_connection((self.host, PORT), timeout=PATIENCE).close()
        except ConnectionRefusedError:
            return False
        return True

    def log(self) -> str:
        path = self.folder / "error.log"
        return path.read_text() if path.exists() else ""

    def request(
        self, path: str = "/", method: str = "GET", **headers: str
    ) -> tuple[http.client.HTTPResponse, str]:
        connection = http.client.HTTPConnection(self.host, PORT, timeout=PATIENCE)
        try:
            fields = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, headers=fields)
            response = connection.getresponse()
            return response, response.read().decode()
        finally:
            connection.close()

    def calls(self) -> list[list[Any]]:
        """The calls of the node since the last look."""
        response, body = self.request("/calls")
        assert response.status == 200, self.log()
        return list(json.loads(body))

    def user_of(self, **headers: str) -> str:
        """The user that a request with these headers is throttled as."""
        self.calls()
        self.request(**headers)
        ((_, _, user),) = [call for call in self.calls() if call[0] == "throttle"]
        return str(user)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def by_header(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    nginx = Nginx(tmp_path_factory.mktemp("header"), "header:X-User")
    yield nginx
    nginx.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Nginx]]:
    """Starts an nginx that ends with the test."""
    with contextlib.ExitStack() as stack:

        def start_one(*words: str, **options: str) -> Nginx:
            nginx = Nginx(tmp_path, *words, **options)
            stack.callback(nginx.close)
            return nginx

        yield start_one


def example_of(http: str) -> str:
    """The server in the comments at the end of the part for http {}, without their marks."""
    lines = http.splitlines()
    comments = lines[lines.index("# server {") :]
    assert all(line.startswith("#") for line in comments)
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in comments)


@pytest.mark.parametrize("user_from", USERS)
def test_nginx_accepts_both_parts(user_from: str, tmp_path: Path) -> None:
    http, server = both_parts(user_from)
    assert_valid(tmp_path, http, f"server {{ listen {PORT}; {server} }}")
    assert_valid(tmp_path, http, f"server {{ listen {PORT}; location / {{ {server} }} }}")


@pytest.mark.parametrize("user_from", USERS)
def test_nginx_accepts_the_example_in_the_comments(user_from: str, tmp_path: Path) -> None:
    http, _ = both_parts(user_from)
    assert_valid(tmp_path, http, example_of(http))


def test_nginx_accepts_all_options_together(tmp_path: Path) -> None:
    authorities, _ = make_certificate(tmp_path)
    http = conf(
        *("--central", "c1.example", "--central", "wss://[2001:db8::1]:7500", "--tls"),
        *("--server-name", "central.example"),
        *("--resolver", "10.0.0.53", "--resolver", "2001:db8::53", "--ca", str(authorities)),
        *("--service", "front", "--service", "back", "--node-id", "web-1"),
        *("--token-file", "/etc/sluicegate/node-token", "--dict-size", "512k"),
        *("--user-from", "address"),
    )
    assert_valid(tmp_path, http)
    for line in (
        'centrals = { "wss://c1.example:7411", "wss://[2001:db8::1]:7500" },',
        'active_services = { "front", "back" },',
        'token_file = "/etc/sluicegate/node-token",',
        'tls = { verify = true, server_name = "central.example" },',
        "lua_shared_dict throttle 512k;",
        "resolver 10.0.0.53 [2001:db8::53];",
    ):
        assert line in http


def test_the_node_is_told_what_the_options_say(start: Callable[..., Nginx]) -> None:
    evil = 'x" }) os.exit() --[[ $host {'
    nginx = start("header:X-User", "--node-id", evil, "--service", evil, "--token-file", "/t'k")
    ((name, options),) = nginx.calls()
    assert name == "init"
    assert options == {
        "node_id": evil,
        "active_services": [evil],
        "centrals": ["ws://10.0.0.1:7411", "ws://10.0.0.2:7500"],
        "shared_dict_name": "throttle",
        "token_file": "/t'k",
    }


def test_the_real_node_accepts_these_options(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("8-or-more-characters\n")
    http = conf(
        *("--central", "10.0.0.1", "--central", "wss://[2001:db8::1]", "--central", "c3.example"),
        *("--tls", "--server-name", "central.example"),
        *("--resolver", "10.0.0.53", "--token-file", str(secret)),
        *("--service", "front", "--service", "back", "--node-id", "wéb 1"),
        *("--user-from", "address"),
    )
    block = http.split("init_worker_by_lua_block {")[1].split("\n}\n")[0]
    program = f"""
        package.path = "{LUA}/?.lua;" .. package.path
        local options = require("throttle.options")
        package.loaded["throttle.node"] = {{
            init = function(given)
                local checked = assert(options.check(given))
                print(checked.node_id, checked.token, table.concat(checked.services, " "))
                for _, central in ipairs(checked.centrals) do
                    print(central.name, central.tls.verify, central.tls.server_name)
                end
            end,
        }}
        {block}
    """
    command = [find_luajit(), "-"]
    ran = subprocess.run(command, input=program, capture_output=True, text=True, timeout=PATIENCE)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        "wéb 1\t8-or-more-characters\tfront back",
        "wss://10.0.0.1:7411\ttrue\tcentral.example",
        "wss://[2001:db8::1]:443\ttrue\tcentral.example",
        "wss://c3.example:7411\ttrue\tcentral.example",
    ]


def test_a_request_is_throttled_before_and_counted_after_it(by_header: Nginx) -> None:
    by_header.calls()
    response, body = by_header.request(X_User="ann")
    assert (response.status, body) == (200, "welcome")
    throttled, (name, service, user, amounts) = by_header.calls()
    assert throttled == ["throttle", "front", "ann"]
    assert (name, service, user) == ("consume", "front", "ann")
    assert amounts.keys() == {"requests", "traffic_up", "traffic_down"}
    assert amounts["requests"] == 1
    assert amounts["traffic_up"] > len("GET / HTTP/1.1")
    assert amounts["traffic_down"] > len("HTTP/1.1 200 OK") + len("welcome")


def test_a_refused_request_is_429_with_the_time_to_retry_and_not_counted(by_header: Nginx) -> None:
    by_header.calls()
    response, body = by_header.request(X_User="mallory")
    assert (response.status, response.headers["Retry-After"]) == (429, "2")
    assert (response.headers["Content-Type"], body) == ("text/plain", "out of requests\n")
    assert by_header.calls() == [["throttle", "front", "mallory"]]


def test_the_body_of_a_refused_request_is_not_read_as_a_request(by_header: Nginx) -> None:
    by_header.calls()
    inner = b"GET /named/x HTTP/1.1\r\nHost: x\r\nX-User: ann\r\n\r\n"
    outer = b"POST / HTTP/1.1\r\nHost: x\r\nX-User: mallory\r\nContent-Length: %d\r\n\r\n"
    last = b"GET /log HTTP/1.1\r\nHost: x\r\nX-User: bob\r\nConnection: close\r\n\r\n"
    with socket.create_connection((by_header.host, PORT), timeout=PATIENCE) as connection:
        connection.sendall(outer % len(inner) + inner + last)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    assert received.count(b"HTTP/1.1 ") <= 2  # nginx may close after a refusal
    assert "ann" not in {call[2] for call in by_header.calls()}


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [("/", 200, "welcome"), ("/nowhere", 404, "lost"), ("/named/x", 200, "named")],
)
def test_a_request_that_nginx_redirects_internally_is_throttled_and_counted_once(
    path: str, status: int, body: str, by_header: Nginx
) -> None:
    by_header.calls()
    response, received = by_header.request(path, X_User="ann")
    assert (response.status, received) == (status, body)
    assert [call[0] for call in by_header.calls()] == ["throttle", "consume"]


def test_a_variable_tells_a_log_format_whether_a_request_was_admitted(by_header: Nginx) -> None:
    assert by_header.request("/log", X_User="ann")[1] == "1"


def test_a_request_without_the_header_counts_for_the_address(by_header: Nginx) -> None:
    assert by_header.user_of(X_Real_IP="192.0.2.7", X_User="ann") == "ann"
    assert by_header.user_of(X_Real_IP="192.0.2.7") == "192.0.2.7"
    assert by_header.user_of(X_Real_IP="192.0.2.7", X_User="") == "192.0.2.7"


def test_a_header_of_several_lines_is_all_of_them(by_header: Nginx) -> None:
    by_header.calls()
    lines = "GET / HTTP/1.1", "Host: x", "X-User: ann", "x-user: bob", "Connection: close", "", ""
    with socket.create_connection((by_header.host, PORT), timeout=PATIENCE) as connection:
        connection.sendall("\r\n".join(lines).encode())
        while connection.recv(65536):
            pass
    assert by_header.calls()[0] == ["throttle", "front", "ann, bob"]


def token(claims: object) -> str:
    text = claims if isinstance(claims, str) else json.dumps(claims)
    payload = base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()
    return f"eyJhbGciOiJIUzI1NiJ9.{payload}.c2lnbmF0dXJl"


def test_the_user_is_a_claim_of_the_bearer_token(start: Callable[..., Nginx]) -> None:
    nginx = start('jwt:https://x.example/"user"')
    claim = 'https://x.example/"user"'
    for authorization, user in (
        (f"Bearer {token({claim: 'ann', 'sub': 'bob'})}", "ann"),
        (f"bearer  {token({claim: 'jürgen?>'})}", "jürgen?>"),
        (f"Bearer {token({claim: 4200000000001})}", "4200000000001"),
        (f"Bearer {token({'sub': 'bob'})}", "192.0.2.7"),
        (f"Bearer {token({claim: None})}", "192.0.2.7"),
        (f"Bearer {token({claim: ['ann']})}", "192.0.2.7"),
        (f"Bearer {token('no JSON')}", "192.0.2.7"),
        (f"Bearer {token('7')}", "192.0.2.7"),
        (f"Basic {token({claim: 'ann'})}", "192.0.2.7"),
        ("Bearer a.b", "192.0.2.7"),
        ("Bearer", "192.0.2.7"),
        ("", "192.0.2.7"),
    ):
        found = nginx.user_of(X_Real_IP="192.0.2.7", Authorization=authorization)
        assert found == user, authorization


def test_the_comment_says_that_the_token_is_not_verified() -> None:
    _, server = both_parts("jwt:sub")
    assert "NOT VERIFIED" in server


def test_the_user_is_the_subject_of_a_verified_certificate(
    start: Callable[..., Nginx], tmp_path: Path
) -> None:
    certificate, key = make_certificate(tmp_path)
    address = random_loopback()
    nginx = start(
        "certificate",
        server_lines=f"""
            listen {address}:8443 ssl;
            ssl_certificate {certificate};
            ssl_certificate_key {key};
            ssl_client_certificate {certificate};
            ssl_verify_client optional;
        """,
    )
    trusting = ssl.create_default_context(cafile=certificate)
    trusting.check_hostname = False
    presenting = ssl.create_default_context(cafile=certificate)
    presenting.check_hostname = False
    presenting.load_cert_chain(certificate, key)
    nginx.calls()
    for context in (trusting, presenting):
        connection = http.client.HTTPSConnection(address, 8443, timeout=PATIENCE, context=context)
        connection.request("GET", "/", headers={"X-Real-IP": "192.0.2.7"})
        assert connection.getresponse().read() == b"welcome"
        connection.close()
    users = [call[2] for call in nginx.calls() if call[0] == "throttle"]
    assert users == ["192.0.2.7", "CN=localhost"]


def test_an_address_is_the_user_that_a_node_in_python_takes(start: Callable[..., Nginx]) -> None:
    nginx = start("address")
    key_of = by_address()
    addresses = ["192.0.2.7", "::ffff:192.0.2.7", "::1", "2001:db8::1", "0:0:0:1::1", "fe80::1"]
    addresses += ["1:0:0:0:5:6:7:8", "0:2:0:4:5:6:7:8", "1:2:3:40:5:6:7:8", "10:0:0:0:5:6:7:8"]
    draw = random.Random(7)
    for _ in range(50):
        groups = [draw.choice((0, draw.getrandbits(16), draw.getrandbits(4))) for _ in range(8)]
        addresses.append(":".join(f"{group:x}" for group in groups))
    for address in addresses:
        request = EnvironRequest({"REMOTE_ADDR": address})
        assert nginx.user_of(X_Real_IP=address) == key_of(request), address


@settings(max_examples=30)
@given(st.lists(st.text(max_size=30), max_size=20))
def test_every_text_is_the_same_text_in_lua(texts: list[str]) -> None:
    literals = "".join(f"io.write(#{text}, ':', {text})\n" for text in map(lua_string, texts))
    command = [find_luajit(), "-"]
    run = subprocess.run(command, input=literals.encode(), capture_output=True, timeout=PATIENCE)
    assert run.returncode == 0, run.stderr
    encoded = [text.encode() for text in texts]
    assert run.stdout == b"".join(b"%d:%s" % (len(text), text) for text in encoded)


ONE_LINE = st.characters(exclude_categories=["C", "Zl", "Zp", "Zs"])
TRICKS = st.sampled_from(
    ['"', "'", "\\", "$", "{", "}", ";", "#", "--", "[[", "]]", "@claim@", " "]
)
NAMES = st.lists(st.one_of(TRICKS, ONE_LINE), min_size=1, max_size=12).map("".join)


@settings(max_examples=30)
@given(service=NAMES, node_id=NAMES, claim=NAMES, path=NAMES)
def test_no_value_breaks_out_of_its_place(
    service: str, node_id: str, claim: str, path: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assume("--" not in (service, node_id))  # argparse in Python 3.11 drops such a value
    words = [f"--service={service}", f"--node-id={node_id}", f"--user-from=jwt:{claim}"]
    words.append(f"--token-file=/{path}")
    try:
        http = conf(*CENTRALS, *words)
    except SystemExit as stopped:
        refusal = stopped.code
    else:
        refusal = None
    if set(path) & set('"\\$'):
        assert refusal == 2
        return
    assert refusal is None
    server = conf("--part", "server", *words)
    plain_http, plain_server = both_parts("jwt:sub", "--token-file=/x")
    assert len(http.splitlines()) == len(plain_http.splitlines())
    assert len(server.splitlines()) == len(plain_server.splitlines())
    assert_valid(tmp_path_factory.mktemp("names"), http, f"server {{ listen {PORT}; {server} }}")


@given(st.text())
def test_a_quoted_word_of_nginx_has_nothing_to_escape(text: str) -> None:
    if set('"\\$') & set(text) or not text.isprintable():
        with pytest.raises(ValueError, match="got "):
            nginx_string(text)
    else:
        assert nginx_string(text) == f'"{text}"'


def test_the_lua_files_are_found_in_this_installation() -> None:
    (line,) = [
        line
        for line in both_parts("address")[0].splitlines()
        if line.startswith("lua_package_path")
    ]
    folder = Path(line.split('"')[1].removesuffix("/?.lua;;"))
    assert (folder / "throttle" / "node.lua").exists()


def test_the_name_of_the_host_is_the_name_of_the_node() -> None:
    assert f"node_id = {lua_string(socket.gethostname())}," in both_parts("address")[0]


def test_without_a_token_file_a_comment_shows_how_to_name_one() -> None:
    assert '        -- token_file = "/etc/' in both_parts("address")[0]


def test_a_comment_has_the_command_that_wrote_the_file() -> None:
    http, _ = both_parts("header:X-User", "--node-id", "web 1")
    assert (
        "#     sluicegate nginx-conf --user-from header:X-User --central 10.0.0.1 "
        "--central 10.0.0.2:7500 --node-id 'web 1'\n"
    ) in http


def test_it_writes_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sluicegate.conf"
    words = ["nginx-conf", "--part", "server", "--user-from", "address"]
    assert main([*words, "--out", str(out)]) == 0
    assert capsys.readouterr() == ("", f"wrote {out}\n")
    assert out.read_text() == conf(*words[1:])
    assert main([*words, "--out", str(tmp_path)]) == 1
    assert "cannot write the configuration" in capsys.readouterr().err


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["nginx-conf", "--help"])
    assert stopped.value.code == 0
    assert "\n  sluicegate nginx-conf --central 10.0.0.1 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--central", "10.0.0.1"], "the following arguments are required: --user-from"),
        (["--user-from", "address"], "--central is required for --part http"),
        (["--user-from", "cookie"], "expected header:NAME, jwt:CLAIM, certificate or address"),
        (["--user-from", "header:"], "got 'header:'"),
        (["--user-from", "jwt"], "got 'jwt'"),
        (["--user-from", "address:x"], "got 'address:x'"),
        (["--user-from", "header:X_User"], "letters, digits and -, as nginx takes them"),
        (["--user-from", 'header:X"; }'], "letters, digits and -"),
        (["--user-from", "jwt:a\nb"], "expected 1 to 200 bytes of printable text, got 'a\\nb'"),
        (["--service", "x" * 51], "expected 1 to 50 bytes of printable text"),
        (["--service", ""], "expected 1 to 50 bytes of printable text, got ''"),
        (["--node-id", "ü" * 101], "expected 1 to 200 bytes of printable text"),
        (["--node-id", "a\nb"], "got 'a\\nb'"),
        (["--node-id", "\udc80"], "expected 1 to 200 bytes of printable text"),
        (["--central", "10.0.0.1:0"], "got '10.0.0.1:0'"),
        (["--central", "10.0.0.1:99999"], "Port out of range"),
        (["--central", "10.0.0.1:x"], "got '10.0.0.1:x'"),
        (["--central", "::1"], "expected HOST, HOST:PORT or a URL like ws://10.0.0.1:7411"),
        (["--central", "ws://h/path"], "got 'ws://h/path'"),
        (["--central", "ws://me:secret@h"], "expected HOST, HOST:PORT or a URL"),
        (["--central", "ftp://10.0.0.1"], "got 'ftp://10.0.0.1'"),
        (["--central", 'a"b'], "expected HOST"),
        (["--central", "a\nb"], "expected HOST"),
        (["--central", ""], "expected HOST"),
        (["--central", "c1.example"], "'c1.example' is a name: expected --resolver ADDRESS"),
        (["--resolver", "dns.example"], "expected an IP address, got 'dns.example'"),
        (["--tls", "--central", "ws://10.0.0.1"], "ws://10.0.0.1:80 is a URL without TLS"),
        (["--tls", "--central", "10.0.0.1"], "expected --server-name NAME, a DNS name"),
        (["--central", "wss://[::1]"], "wss://[::1]:443 is given by its address"),
        (["--server-name", "c", "--central", "10.0.0.1"], "--server-name is for centrals with"),
        (["--server-name", "10.0.0.1"], "expected a DNS name, got '10.0.0.1'"),
        (["--ca", "/x", "--central", "10.0.0.1"], "--ca is for centrals with --tls or a wss://"),
        (["--ca", "/$x"], "expected text without $"),
        (["--token-file", ""], "expected a path, got ''"),
        (["--lua-path", "/a;b"], "expected a path without ; and ?"),
        (["--lua-path", '/a"b'], "expected a path, as nginx takes it"),
        (["--dict-size", "16"], "expected a size like 16m, at least 64k, got '16'"),
        (["--dict-size", "16k"], "at least 64k"),
        (["--dict-size", "1g"], "got '1g'"),
        (["--part", "server", "--service", "a", "--service", "b"], "is for one --service, got 2"),
        (["--part", "stream"], "invalid choice: 'stream'"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_says_what_was_expected(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = [] if text.endswith("--user-from") or "--user-from" in words else ["--user-from=address"]
    with pytest.raises(SystemExit) as stopped:
        main(["nginx-conf", *words, *rest])
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert text in captured.err
