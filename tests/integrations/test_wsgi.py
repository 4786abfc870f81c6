"""The WSGI middleware, held to the letter of PEP 3333 by wsgiref's validator."""

import io
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from sluicegate import Keyed, ManualClock
from sluicegate.integrations import Rule
from sluicegate.integrations.wsgi import RateLimitMiddleware
from tests.harness.waits import PATIENCE

Answer = tuple[str, list[tuple[str, str]], bytes]


class Stream:
    """An answer in parts that wants to be closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        yield b"a"
        yield b"b"

    def close(self) -> None:
        self.is_closed = True


def run(app: Any, path: str = "/", method: str = "GET", **environ: str) -> Answer:
    """One request, as a server would run it."""
    full: dict[str, Any] = {"PATH_INFO": path, "REQUEST_METHOD": method, "QUERY_STRING": ""}
    full["SCRIPT_NAME"] = ""
    setup_testing_defaults(full)
    full |= {"REMOTE_ADDR": "203.0.113.7", "wsgi.input": io.BytesIO(), **environ}
    started: list[Any] = []
    written: list[bytes] = []

    def start_response(status: str, headers: Any, exc_info: Any = None) -> Callable[[bytes], Any]:
        started[:] = [status, headers]
        return written.append

    parts = app(full, start_response)
    try:
        body = b"".join(parts)
    finally:
        if hasattr(parts, "close"):
            parts.close()
    return started[0], started[1], b"".join(written) + body


def hello(environ: Any, start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


def test_a_refused_request_gets_429_and_the_next_minute_it_passes(clock: ManualClock) -> None:
    rule = Rule(Keyed("1/minute", clock=clock), name="api")
    app = validator(RateLimitMiddleware(validator(hello), [rule]))
    assert run(app)[0] == "200 OK"
    status, headers, body = run(app)
    assert status == "429 Too Many Requests"
    assert dict(headers)["Retry-After"] == "60"
    assert dict(headers)["RateLimit"] == '"api";r=0;t=60'
    assert b"quota-exceeded" in body
    assert run(app, method="HEAD")[2] == b""
    clock.advance(60)
    assert run(app) == ("200 OK", [("Content-Type", "text/plain")], b"hello")


def test_answers_that_pass_carry_the_fields_when_asked(clock: ManualClock) -> None:
    rules = [Rule(Keyed("2/minute", clock=clock), name="api")]
    app = validator(RateLimitMiddleware(validator(hello), rules, headers=True))
    assert dict(run(app)[1])["RateLimit"] == '"api";r=1;t=30'


def test_a_stream_is_the_servers_to_close() -> None:
    stream = Stream()

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return stream

    for options in ({}, {"headers": True}):
        wrapped = RateLimitMiddleware(app, [Rule("9/minute")], **options)
        answer = wrapped({"REQUEST_METHOD": "GET", "PATH_INFO": "/"}, lambda *_: lambda _: None)
        assert answer is stream
        assert not stream.is_closed


def test_write_and_exc_info_reach_the_server(clock: ManualClock) -> None:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        write = start_response("200 OK", [("Content-Type", "text/plain")])
        write(b"early ")
        try:
            raise RuntimeError("late")
        except RuntimeError:
            start_response("500 Oh", [("Content-Type", "text/plain")], sys.exc_info())
        return [b"end"]

    rules = [Rule(Keyed("2/minute", clock=clock), name="api")]
    wrapped = validator(RateLimitMiddleware(validator(app), rules, headers=True))
    status, headers, body = run(wrapped)
    assert status == "500 Oh"
    assert body == b"early end"
    assert [name for name, _ in headers].count("RateLimit") == 1


def test_paths_come_decoded_and_methods_in_any_case() -> None:
    app = RateLimitMiddleware(hello, [Rule("1/hour", path="/caf\u00e9", methods=["GET"])])
    path = "/caf\u00e9".encode().decode("latin-1")
    assert [run(app, path, "get")[0][:3] for _ in range(2)] == ["200", "429"]
    assert run(app, "/caf\xff")[0] == "200 OK"  # bytes that are no text: nobody's path


def test_many_threads_share_one_limit() -> None:
    app = RateLimitMiddleware(hello, [Rule("100/hour"), Rule(lambda _: "150/day", name="day")])
    statuses: list[str] = []

    def hammer() -> None:
        statuses.extend(run(app)[0] for _ in range(50))

    threads = [threading.Thread(target=hammer) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert statuses.count("200 OK") == 100
    assert len(statuses) == 400


def test_coroutines_have_no_place_here(make_async: Callable[[Keyed], Any]) -> None:
    with pytest.raises(TypeError, match="cannot be awaited here"):
        RateLimitMiddleware(hello, [Rule(make_async(Keyed("1/s")))])
