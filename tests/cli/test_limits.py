"""`sluicegate limits` against a real server, and against none."""

import json
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sluicegate.cli.main import main
from sluicegate.quota import Entry
from sluicegate.quota.central.http.responses import error_response
from tests.harness.central_without_sockets import SocketlessCentral
from tests.harness.waits import PATIENCE, wait_for

ANN = Entry("front", "ann", 10.0, {"requests": 5.0, "traffic_up": 1e6})
TOKEN = "correct-horse"

Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve an application on a port of its own, until the test is over."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(app: Any, **options: Any) -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="error", lifespan="off", **options)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        running.append((server, thread))
        wait_for(lambda: server.started)
        scheme = "https" if options else "http"
        return f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(PATIENCE)


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICEGATE_TOKEN", raising=False)


@pytest.fixture
def central() -> SocketlessCentral:
    return SocketlessCentral([ANN])


def code_of(*words: str) -> object:
    """The exit code of a command that makes no sense."""
    with pytest.raises(SystemExit) as caught:
        main(["limits", *words])
    return caught.value.code


def test_a_source_that_fails_is_told_with_its_limits(
    central: SocketlessCentral, serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    url = ("--url", serve(central.app))
    assert main(["limits", "list", *url]) == 0
    assert capsys.readouterr().err == ""
    central.limits_sync.error = "limits.toml cannot be read:\x1b[2J gone"
    central.limits_sync.complaints = [f"limit {n} is bad" for n in range(12)]
    assert main(["limits", "list", *url]) == 0
    told = capsys.readouterr()
    assert "ann" in told.out
    lines = told.err.splitlines()
    older = "sluicegate limits: cannot read the limits source, previous limits stay in force:"
    assert lines[0] == f"{older} limits.toml cannot be read:?[2J gone"
    assert lines[1] == "sluicegate limits: limit 0 is bad"
    assert lines[11:] == ["sluicegate limits: and 2 more"]


def test_limits_are_set_listed_and_removed(
    central: SocketlessCentral, serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    url = ("--url", serve(central.app))
    assert main(["limits", "set", "front", "*", "requests=0.5", "--burst-seconds", "3", *url]) == 0
    assert main(["limits", "list", *url]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "SERVICE  USER  BURST  PER SECOND",
        "front    ann   10 s   requests=5 traffic_up=1000000",
        "front    *     3 s    requests=0.5",
    ]
    assert main(["limits", "remove", "front", "ann", *url]) == 0
    assert capsys.readouterr().out == "removed: front ann\n"
    assert central.limits_sync.entries == [Entry("front", "*", 3.0, {"requests": 0.5})]
    assert main(["limits", "remove", "front", "ann", *url]) == 1
    assert "refuses: no limit for service 'front' and user 'ann'" in capsys.readouterr().err


def test_json_is_for_programs(
    central: SocketlessCentral, serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    url = ("--url", serve(central.app) + "/", "--json")
    answers = []
    for words in (
        ["list", "--service", "front", "--user", "ann"],
        ["set", "front", "a=b", "x=y=5"],
        ["remove", "front", "a=b"],
    ):
        assert main(["limits", *words, *url]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0]["limits"][0]["user"] == "ann"
    assert answers[1]["limits"][0]["x=y"] == 5.0
    assert answers[2] == {"removed": {"service": "front", "user": "a=b"}}


def test_many_limits_are_listed_page_by_page(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    many = SocketlessCentral(
        [Entry("front", f"user-{i}", rates={"requests": 1.0}) for i in range(10_001)]
    )
    assert main(["limits", "list", "--json", "--url", serve(many.app)]) == 0
    assert len(json.loads(capsys.readouterr().out)["limits"]) == 10_001


def guarded(central: SocketlessCentral) -> Starlette:
    async def guard(request: Request, call_next: RequestResponseEndpoint) -> Response:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return error_response(401, "Denied", "the admin token is required")
        return await call_next(request)

    central.app.add_middleware(BaseHTTPMiddleware, dispatch=guard)
    return central.app


def token_file(folder: Path, text: str) -> Path:
    path = folder / "tokens.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    "text",
    [
        f"{TOKEN}\n",
        f"# for the API\n{TOKEN}",
        f'node = "another-one"\nadmin = "{TOKEN}"\n',
        f'admin = "{TOKEN}"',
    ],
)
def test_a_token_comes_from_a_file(
    central: SocketlessCentral, serve: Serve, tmp_path: Path, text: str
) -> None:
    token_file(tmp_path, text)
    url = ["--url", serve(guarded(central)), "--token-file", str(tmp_path / "tokens.toml")]
    assert main(["limits", "list", *url]) == 0


def test_a_token_comes_from_the_environment(
    central: SocketlessCentral,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = ["--url", serve(guarded(central))]
    assert main(["limits", "list", *url]) == 1
    assert "refuses: the admin token is required" in capsys.readouterr().err
    monkeypatch.setenv("SLUICEGATE_TOKEN", TOKEN)
    assert main(["limits", "list", *url]) == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ('node = "secret node"', "printable ASCII without spaces"),
        ('node = "secret-node"', 'must have admin = "TOKEN", or one line with the token'),
        ("secret one\nsecret two", "neither one line nor TOML"),
        ("admin = 5", "admin must be text, got int"),
    ],
)
def test_a_token_file_without_a_token_is_told_without_the_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    path = token_file(tmp_path, text)
    assert code_of("list", "--token-file", str(path)) == 2
    told = capsys.readouterr().err
    assert why in told
    assert "secret" not in told


def test_a_token_file_that_others_may_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = token_file(tmp_path, TOKEN)
    path.chmod(0o644)
    assert code_of("list", "--token-file", str(path)) == 2
    assert "chmod 600" in capsys.readouterr().err


def test_a_central_that_is_not_there_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # and does not listen: nobody else can have the port
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        assert main(["limits", "list", "--url", url]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"sluicegate limits: no answer from the central at {url}: ")
    assert told.count("\n") == 1


def test_another_server_is_told_from_a_central(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    async def hello(request: Request) -> Response:
        return PlainTextResponse("hello")

    url = serve(Starlette(routes=[Route("/api/limits", hello)]))
    assert main(["limits", "list", "--url", url]) == 1
    assert "answers, but not as a central does: HTTP 200" in capsys.readouterr().err
    assert main(["limits", "list", "--url", url + "/elsewhere"]) == 1
    assert "answers, but not as a central does: HTTP 404" in capsys.readouterr().err


def test_what_a_server_says_cannot_move_the_cursor(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    async def evil(request: Request) -> Response:
        return error_response(409, "NotEditable", "no\x1b[2Jway")

    assert main(["limits", "list", "--url", serve(Starlette(routes=[Route("/api/limits", evil)]))])
    assert "no?[2Jway" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url",
    ["ws://127.0.0.1:7411", "127.0.0.1:7411", "http://", "http://a:b", "http://a?x=1", "http://["],
)
def test_a_url_that_is_none_is_told(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("list", "--url", url) == 2
    assert "--url must be like http://127.0.0.1:7411, got " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["front", "ann"], "RESOURCE=RATE"),
        (["front", "ann", "requests"], "expected RESOURCE=RATE, such as requests=50"),
        (["front", "ann", "=5"], "got '=5'"),
        (["front", "ann", "requests=many"], "got 'requests=many'"),
        (["front", "ann", "requests=1", "requests=2"], "expected 'requests' once"),
        (["front", "ann", "requests=-1"], "requests must be a number from 0 to 1e+15, got -1.0"),
        (["front", "ann", "requests=nan"], "got nan"),
        (["front", "", "requests=1"], "user must be a non-empty name"),
        (["front", "ann", "user=1"], "a resource must not be named"),
    ],
)
def test_what_is_no_limit_is_told_before_it_is_sent(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of("set", *words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, "nobody"])
def test_a_ca_file_that_is_none_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text)
    assert code_of("list", "--url", "https://127.0.0.1:1", "--ca", str(path)) == 2
    assert f"--ca {path}: " in capsys.readouterr().err


def test_over_tls_only_who_is_trusted_gets_the_token(
    central: SocketlessCentral, serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cert, key = tmp_path / "c.crt", tmp_path / "c.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    url = ["--url", serve(central.app, ssl_certfile=cert, ssl_keyfile=key)]
    assert main(["limits", "list", *url, "--ca", str(cert)]) == 0
    capsys.readouterr()
    assert main(["limits", "list", *url]) == 1
    assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err
