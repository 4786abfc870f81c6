"""The websocket client in a real nginx, with servers of a library and servers written by hand."""

import asyncio
import base64
import hashlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from tests.harness.certificate import make_certificate
from tests.harness.nginx import Nginx
from tests.harness.servers import reserve_port
from tests.harness.threads import start_thread
from tests.harness.waits import PATIENCE, wait_for

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
LAST = 0x80

# Runs the Lua code of a test and answers with what it returns, without nil at the end. `connect`
# takes options besides those that every test needs; `given` is what the test passes by name.
RUN = """
location = /run {
    client_max_body_size 1m;
    client_body_buffer_size 1m;
    content_by_lua_block {
        local cjson = require "cjson"
        local websocket = require "throttle.websocket"
        ngx.req.read_body()
        local request = cjson.decode(ngx.req.get_body_data())
        local function connect(more)
            local opts = { host = "127.0.0.1", port = request.port, timeout = 60 }
            for name, value in pairs(more or {}) do
                opts[name] = value
            end
            return websocket.connect(opts)
        end
        local function answer(...)
            local results, last = { ... }, select("#", ...)
            while last > 0 and results[last] == nil do
                last = last - 1
            end
            for place = 1, last do
                results[place] = results[place] == nil and cjson.null or results[place]
            end
            ngx.print(last == 0 and "[]" or cjson.encode(results))
            ngx.eof()  -- a light thread may go on
        end
        local code = "local connect, given = ... " .. request.lua
        answer(assert(loadstring(code))(connect, request.given))
    }
}
"""

Run = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The one that nginx trusts."""
    return make_certificate(tmp_path_factory.mktemp("trusted"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[Run]:
    """Runs Lua code in nginx and returns what it returned."""
    http = f"""
        lua_socket_log_errors off;
        lua_ssl_trusted_certificate {certificate[0]};
    """
    with (
        Nginx(tmp_path_factory.mktemp("nginx"), http=http, server=RUN) as nginx,
        httpx.Client(base_url=nginx.url, timeout=PATIENCE) as client,
    ):

        def run_lua(lua: str, *, port: int, **given: Any) -> list[Any]:
            response = client.post("/run", json={"lua": lua, "port": port, "given": given})
            assert response.status_code == 200, nginx.errors
            return list(response.json())

        yield run_lua


class Peer:
    """One connection of a server written by hand: the bytes are the test's own."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._unread = b""
        self.request = b""
        self.masks: list[bytes] = []

    def accept(self, headers: Mapping[str, str] | None = None, behind: bytes = b"") -> None:
        """Read the request and answer it as a server should, but for these headers.

        What is `behind` the response is sent with it.
        """
        self.read_request()
        key = self.header("Sec-WebSocket-Key").encode()
        digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        lines = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Accept": base64.b64encode(digest).decode(),
            **(headers or {}),
        }
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
        self.send(f"HTTP/1.1 101 Switching Protocols\r\n{text}\r\n".encode() + behind)

    def read_request(self) -> None:
        while b"\r\n\r\n" not in self.request:
            self.request += self._receive()

    def header(self, name: str) -> str:
        lines = self.request.decode().split("\r\n")
        return next(line.partition(": ")[2] for line in lines if line.startswith(f"{name}: "))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_until_closed(self, data: bytes, pause: float) -> None:
        """Send the same again and again, until the client has closed the connection."""
        with suppress(ConnectionError):
            while True:
                self.send(data)
                time.sleep(pause)

    def send_some(self, data: bytes) -> int:
        """Send what can be sent soon: how many bytes that are."""
        self._socket.settimeout(0.01)
        try:
            return self._socket.send(data)
        except TimeoutError:
            return 0

    def read_frame(self) -> tuple[int, bytes]:
        """The opcode and the payload of the next frame, which must be masked and whole."""
        first, second = self._read(2)
        assert first & 0xF0 == LAST
        assert second & 0x80
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack(">H", self._read(2))
            assert size > 125
        elif size == 127:
            (size,) = struct.unpack(">Q", self._read(8))
            assert size > 65535
        mask = self._read(4)
        self.masks.append(mask)
        payload = self._read(size)
        pad = (mask * (size // 4 + 1))[:size]
        whole = int.from_bytes(payload, "big") ^ int.from_bytes(pad, "big")
        return first & 0x0F, whole.to_bytes(size, "big")

    def read_frames(self) -> Iterator[tuple[int, bytes]]:
        """All frames up to the end of the connection, however it comes."""
        with suppress(EOFError, ConnectionError):
            while True:
                yield self.read_frame()

    def read_close(self) -> tuple[int, str]:
        """The code and reason of a close frame, which must be the next one, and then the end."""
        opcode, payload = self.read_frame()
        assert opcode == CLOSE
        assert self.is_at_end()
        return (
            (struct.unpack(">H", payload[:2])[0], payload[2:].decode()) if payload else (1005, "")
        )

    def is_at_end(self) -> bool:
        try:
            return not self._unread and not self._socket.recv(1)
        except ConnectionResetError:  # it did not read what was sent after a fault
            return True

    def reset(self) -> None:
        """Close with a RST instead of a FIN."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def _read(self, count: int) -> bytes:
        parts = [self._unread]
        have = len(self._unread)
        while have < count:
            parts.append(self._receive())
            have += len(parts[-1])
        data = b"".join(parts)
        self._unread = data[count:]
        return data[:count]

    def _receive(self) -> bytes:
        data = self._socket.recv(1 << 16)
        if not data:
            raise EOFError
        return data


class Script:
    """What a server written by hand does with its one connection, and whether that went well."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.result: Any = None
        self.error: BaseException | None = None


@contextmanager
def scripted(talk: Callable[[Peer], Any], receive_buffer: int | None = None) -> Iterator[Script]:
    """Serves one connection by `talk`; its result is there afterwards, its error is raised."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if receive_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        listener.settimeout(PATIENCE)
        script = Script(listener.getsockname()[1])

        def serve_one() -> None:
            try:
                connection = listener.accept()[0]
                with connection:
                    connection.settimeout(PATIENCE)
                    script.result = talk(Peer(connection))
            except BaseException as error:  # noqa: BLE001
                script.error = error

        thread = start_thread(serve_one)
        yield script
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the peer goes on"
        if script.error is not None:
            raise script.error


def frame(first: int, payload: bytes = b"") -> bytes:
    """A frame of a server: the first byte as it is, not masked."""
    size = len(payload)
    if size < 126:
        return bytes([first, size]) + payload
    if size < 1 << 16:
        return bytes([first, 126]) + struct.pack(">H", size) + payload
    return bytes([first, 127]) + struct.pack(">Q", size) + payload


def close_frame(code: int, reason: str = "") -> bytes:
    return frame(LAST | CLOSE, struct.pack(">H", code) + reason.encode())


class Server:
    """A server of the websockets library, in a thread. It echoes, and notes what it was told."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._reserved = reserve_port()
        self.port: int = self._reserved.getsockname()[1]
        self.messages: list[str | bytes] = []
        self.closes: list[tuple[int, str]] = []
        self.headers: dict[str, str] = {}
        self._context = context
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE), "it does not listen"

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "its thread does not end"
        self._loop.close()
        self._reserved.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._stopped = asyncio.Event()
        async with serve(
            self._talk,
            "127.0.0.1",
            self.port,
            ssl=self._context,
            # Else the library denies clients that ask for none.
            select_subprotocol=lambda _, offered: next(iter(offered), None),
            process_request=self._check,
            max_size=None,
            ping_interval=None,
            close_timeout=1,
        ):
            self._ready.set()
            await self._stopped.wait()

    def _check(self, connection: ServerConnection, request: Request) -> Response | None:
        self.headers = dict(request.headers.raw_items())
        if request.path == "/denied":
            return connection.respond(HTTPStatus.FORBIDDEN, "no\n")
        return None

    async def _talk(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        if connection.request.path == "/fragments":
            await connection.send(self._fragments(connection))
            await connection.send([b"a", b"", b"\xff"])
        try:
            async for message in connection:
                self.messages.append(message)
                await connection.send(message)
        except ConnectionClosed:
            pass
        self.closes.append((connection.close_code or 0, connection.close_reason or ""))

    async def _fragments(self, connection: ServerConnection) -> AsyncIterator[str]:
        for text in ("one, ", "zwölf, ", "", "three"):
            yield text
            await (await connection.ping())
            await connection.pong()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.mark.parametrize("size", [0, 1, 7, 125, 126, 65535, 65536, 1 << 20, 5 << 20])
def test_messages_of_every_size_come_back_as_they_were_sent(
    run: Run, server: Server, size: int
) -> None:
    lua = """
        local bytes = {}
        for i = 0, 250 do  -- a prime number of them: no word of the payload is like its neighbours
            bytes[#bytes + 1] = string.char(i)
        end
        local size = given.size
        local binary = string.rep(table.concat(bytes), math.ceil(size / 251)):sub(1, size)
        local text = string.rep("a\\0z", math.ceil(size / 3)):sub(1, size)
        local connection = assert(connect())
        assert(connection:send_text(text))
        local kind, payload = connection:receive(60)
        assert(connection:send_binary(binary))
        local other_kind, other_payload = connection:receive(60)
        connection:close()
        return kind, payload == text, other_kind, other_payload == binary
    """
    assert run(lua, port=server.port, size=size) == ["text", True, "binary", True]
    assert [len(message) for message in server.messages] == [size, size]


def test_every_frame_has_a_mask_of_its_own(run: Run) -> None:
    def talk(peer: Peer) -> list[bytes]:
        peer.accept()
        assert [peer.read_frame() for _ in range(2000)] == [(TEXT, b"same")] * 2000
        return peer.masks

    lua = "local connection = assert(connect()) for _ = 1, 2000 do connection:send_text('same') end"
    with scripted(talk) as script:
        assert run(lua, port=script.port) == []
    assert len(set(script.result)) > 1990  # of 2^32


def test_fragments_are_joined_and_pings_between_them_are_answered(run: Run, server: Server) -> None:
    lua = """
        local connection = assert(connect{path = "/fragments"})
        local kind, payload = connection:receive(60)
        local other_kind, other_payload = connection:receive(60)
        connection:close()
        return kind, payload, other_kind, other_payload == "a\\255"
    """
    # The server sends each fragment when the ping before it was answered.
    assert run(lua, port=server.port) == ["text", "one, zwölf, three", "binary", True]


def test_the_request_has_path_subprotocol_and_headers(run: Run, server: Server) -> None:
    lua = """
        local connection = assert(connect{
            path = "/throttle?x=1", subprotocol = "sluicegate.v1",
            headers = {Authorization = "Bearer secret", ["Sluicegate-Slot-Seconds"] = "1.0"},
        })
        connection:close()
        return connection.subprotocol
    """
    assert run(lua, port=server.port) == ["sluicegate.v1"]
    assert server.headers["Authorization"] == "Bearer secret"
    assert server.headers["Sluicegate-Slot-Seconds"] == "1.0"
    assert server.headers["Host"] == f"127.0.0.1:{server.port}"


def test_a_server_need_not_choose_a_subprotocol(run: Run) -> None:
    def talk(peer: Peer) -> tuple[int, str]:
        peer.accept()
        return peer.read_close()

    lua = """
        local connection = assert(connect{subprotocol = "other"})
        connection:close()
        return connection.subprotocol == nil
    """
    with scripted(talk) as script:
        assert run(lua, port=script.port) == [True]
    assert script.result == (1000, "")


def test_a_frame_that_comes_with_the_response_is_received(run: Run) -> None:
    def talk(peer: Peer) -> None:
        peer.accept(behind=frame(LAST | TEXT, b"early") + frame(LAST | BINARY, b"bird"))

    lua = """
        local connection = assert(connect())
        local _, first = connection:receive(60)
        return first, connection:receive(60)
    """
    with scripted(talk) as script:
        assert run(lua, port=script.port) == ["early", "binary", "bird"]


REFUSALS = {
    "forbidden": (b"HTTP/1.1 403 Forbidden\r\n\r\n", "HTTP/1.1 403 Forbidden"),
    "no upgrade": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK"),
    "not HTTP": (b"SSH-2.0-OpenSSH\r\n\r\n", "SSH-2.0-OpenSSH"),
    "old HTTP": (b"HTTP/1.0 101 Switching Protocols\r\n\r\n", "HTTP/1.0 101"),
    "status that begins with 101": (b"HTTP/1.1 1010 Odd\r\n\r\n", "HTTP/1.1 1010 Odd"),
    "control characters": (b"HTTP/1.1 400 a\x1b[2Jb\r\n\r\n", "HTTP/1.1 400 a?[2Jb"),
    "large head": (b"HTTP/1.1 101 OK\r\nX: " + b"x" * 20_000, "16384 bytes"),
    "no colon": (b"HTTP/1.1 101 OK\r\nUpgrade websocket\r\n\r\n", "malformed header"),
    "folded line": (b"HTTP/1.1 101 OK\r\nUpgrade:\r\n websocket\r\n\r\n", "malformed header"),
    "end": (b"HTTP/1.1 101 OK\r\n", "closed"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_response_that_does_not_accept_is_an_error(run: Run, name: str) -> None:
    response, error = REFUSALS[name]

    def talk(peer: Peer) -> None:
        peer.read_request()
        peer.send(response)

    with scripted(talk) as script:
        connection, message = run("return connect()", port=script.port)
    assert connection is None
    assert message.startswith("websocket handshake failed: ")
    assert error in message


def test_a_library_that_denies_is_an_error_with_its_status_line(run: Run, server: Server) -> None:
    connection, message = run("return connect{path = '/denied'}", port=server.port)
    assert connection is None
    assert message == "websocket handshake failed: refused with HTTP/1.1 403 Forbidden"


WRONG_HEADERS = {
    "wrong accept": (
        {"Sec-WebSocket-Accept": "AAAAAAAAAAAAAAAAAAAAAAAAAAA="},
        "Sec-WebSocket-Accept",
    ),
    "no accept": ({"Sec-WebSocket-Accept": ""}, "Sec-WebSocket-Accept"),
    "no upgrade": ({"Upgrade": ""}, "Upgrade: websocket"),
    "other upgrade": ({"Upgrade": "h2c"}, "Upgrade: websocket"),
    "other connection": ({"Connection": "keep-alive, upgraded"}, "Connection: Upgrade"),
    "extension": ({"Sec-WebSocket-Extensions": "permessage-deflate"}, "extension"),
    "subprotocol": ({"Sec-WebSocket-Protocol": "chat"}, "subprotocol"),
}


@pytest.mark.parametrize("name", WRONG_HEADERS)
def test_a_wrong_header_in_the_response_is_an_error(run: Run, name: str) -> None:
    headers, error = WRONG_HEADERS[name]

    def talk(peer: Peer) -> bool:
        peer.accept(headers)
        return peer.is_at_end()

    with scripted(talk) as script:
        connection, message = run("return connect{subprotocol = 'a'}", port=script.port)
    assert connection is None
    assert error in message
    assert script.result, "the connection was not closed"


def test_headers_of_the_response_are_not_case_sensitive(run: Run) -> None:
    def talk(peer: Peer) -> None:
        peer.accept({"Upgrade": "WebSocket", "Connection": "keep-alive ,\tUPGRADE"})
        peer.read_close()

    with scripted(talk) as script:
        assert run("assert(connect()):close() return true", port=script.port) == [True]


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {"Authorization": "Bearer x\r\nX-Other: 1"}},
        {"headers": {"Authorization": "Bearer x\n"}},
        {"headers": {"X-Other: 1\r\nY": "1"}},
        {"headers": {"X Other": "1"}},
        {"headers": {"": "1"}},
        {"path": "/ HTTP/1.1\r\nX-Other: 1\r\n"},
        {"subprotocol": "a\r\nX-Other: 1"},
        {"host": "127.0.0.1\r\n"},
    ],
    ids=str,
)
def test_nothing_is_sent_when_an_option_would_inject_a_header(run: Run, options: Any) -> None:
    with reserve_port() as reserved:  # to connect to it would fail with another error
        port = reserved.getsockname()[1]
        connection, message = run("return connect(given)", port=port, **options)
    assert connection is None
    assert message.startswith("invalid ")
    assert "Bearer" not in message


def test_a_refused_connection_is_an_error(run: Run) -> None:
    with reserve_port() as reserved:
        result = run("return connect()", port=reserved.getsockname()[1])
    assert result == [None, "cannot connect: connection refused"]


@pytest.mark.parametrize("header", [b"", b"X: y"])
def test_the_whole_handshake_has_one_deadline(run: Run, header: bytes) -> None:
    """The server does not answer, or its answer does not end."""

    def talk(peer: Peer) -> None:
        peer.read_request()
        peer.send(b"HTTP/1.1 101 Switching Protocols\r\n")
        if header:
            peer.send_until_closed(header, 0.005)
        else:
            peer.is_at_end()

    with scripted(talk) as script:
        result = run("return connect{timeout = 0.1}", port=script.port)
    assert result == [None, "websocket handshake failed: timeout"]


def test_a_time_out_between_any_two_bytes_loses_nothing(run: Run) -> None:
    begin = frame(TEXT, b"He") + frame(LAST | PING, b"?") + frame(LAST | CONTINUATION, b"y")
    header, rest = frame(LAST | BINARY, b"x" * 200)[:6], b"x" * 198
    pieces = [bytes([byte]) for byte in begin + header]
    pieces += [rest, *(bytes([byte]) for byte in close_frame(1000))]

    def talk(peer: Peer) -> list[tuple[int, bytes]]:
        peer.accept()
        left = iter(pieces)
        answers = []
        while (CLOSE, struct.pack(">H", 1000)) not in answers:
            answer = peer.read_frame()
            if answer == (TEXT, b"timeout"):
                peer.send(next(left, b""))
            else:
                answers.append(answer)
        return answers

    lua = """
        local connection = assert(connect())
        local timeouts = 0
        while true do
            local kind, payload = connection:receive(0.01)
            if kind then
                connection["send_" .. kind](connection, payload)
            elseif payload == "timeout" then
                timeouts = timeouts + 1
                connection:send_text("timeout")
            else
                return timeouts, payload
            end
        end
    """
    with scripted(talk) as script:
        timeouts, last = run(lua, port=script.port)
    assert last == "closed"
    assert timeouts >= len(pieces)
    echoes = [(PONG, b"?"), (TEXT, b"Hey"), (BINARY, b"x" * 200)]
    assert script.result == [*echoes, (CLOSE, struct.pack(">H", 1000))]


def test_a_peer_that_sends_a_frame_byte_by_byte_does_not_extend_the_deadline(run: Run) -> None:
    def talk(peer: Peer) -> None:
        peer.accept()
        peer.send(frame(LAST | BINARY, b"x" * (1 << 20))[:10])
        peer.send_until_closed(b"x", 0.002)

    with scripted(talk) as script:
        result = run("return assert(connect()):receive(0.1)", port=script.port)
    assert result == [None, "timeout"]


@pytest.mark.parametrize("pause", [0.002, 0.0])
def test_pings_are_answered_and_do_not_extend_the_deadline(run: Run, pause: float) -> None:
    def talk(peer: Peer) -> list[tuple[int, bytes]]:
        peer.accept()
        peer.send(frame(LAST | PING, b"first"))
        answers = [peer.read_frame()]
        reader = start_thread(lambda: answers.extend(peer.read_frames()))
        more = frame(LAST | PING, b"more") + frame(LAST | PONG, b"not asked for")
        peer.send_until_closed(more, pause)
        reader.join(PATIENCE)
        return answers

    with scripted(talk) as script:
        result = run("return assert(connect()):receive(0.15)", port=script.port)
    assert result == [None, "timeout"]
    first, *more = script.result
    assert first == (PONG, b"first")
    assert set(more) == {(PONG, b"more")}


def test_a_ping_that_comes_while_a_frame_is_being_sent_is_answered_after_it(run: Run) -> None:
    """The peer does not read, so the frame is not out; `receive` does not wait for that."""

    def talk(peer: Peer) -> tuple[int, bytes]:
        peer.accept()
        peer.send(frame(LAST | PING, b"early") + frame(LAST | PING, b"late"))
        assert gone.wait(PATIENCE)
        opcode, payload = peer.read_frame()
        assert (opcode, len(payload)) == (BINARY, 8 << 20)
        return peer.read_frame()

    gone = threading.Event()
    lua = """
        local connection = assert(connect())
        local sender = ngx.thread.spawn(function()
            return connection:send_binary(string.rep("x", 8 * 1048576))
        end)
        local kind, err = connection:receive(0.1)
        return kind, err, coroutine.status(sender)
    """
    with scripted(talk, receive_buffer=4096) as script:
        assert run(lua, port=script.port) == [None, "timeout", "running"]
        gone.set()
    assert script.result == (PONG, b"late")


def test_a_peer_that_pings_and_does_not_read_does_not_extend_the_deadline(run: Run) -> None:
    def talk(peer: Peer) -> None:
        peer.accept()
        pings = unsent = frame(LAST | PING, b"x" * 125) * 100
        with suppress(ConnectionError):  # the client is gone
            while not gone.is_set():
                unsent = unsent[peer.send_some(unsent) :] or pings

    gone = threading.Event()
    lua = """
        local connection = assert(connect())
        local begin = ngx.now()
        local kind, err = connection:receive(0.2)
        return kind, err, ngx.now() - begin
    """
    with scripted(talk, receive_buffer=4096) as script:
        kind, error, elapsed = run(lua, port=script.port)
        gone.set()
    assert (kind, error) == (None, "timeout")
    assert elapsed < 8, "it waited until a pong could not be sent"


@pytest.mark.parametrize(
    ("sent", "code", "reason", "answer"),
    [
        (close_frame(1000), 1000, "", 1000),
        (close_frame(1001, "stopping"), 1001, "stopping", 1001),
        (close_frame(1008, "denied: tökén"), 1008, "denied: tökén", 1008),
        (close_frame(1012), 1012, "", 1012),
        (close_frame(3000), 3000, "", 3000),
        (close_frame(4999, "x" * 123), 4999, "x" * 123, 4999),
        (frame(LAST | CLOSE), 1005, "", 1005),
    ],
    ids=["1000", "1001", "1008", "1012", "3000", "4999", "no code"],
)
def test_a_close_frame_is_reported_and_answered(
    run: Run, sent: bytes, code: int, reason: str, answer: int
) -> None:
    def talk(peer: Peer) -> tuple[int, str]:
        peer.accept()
        peer.send(sent)
        return peer.read_close()

    with scripted(talk) as script:
        result = run("return assert(connect()):receive(60)", port=script.port)
    assert result == [None, "closed", code, reason]
    assert script.result == (answer, "")


def test_an_ended_connection_says_so_again_and_sends_nothing(run: Run) -> None:
    def talk(peer: Peer) -> tuple[int, str]:
        peer.accept()
        peer.send(close_frame(1008, "denied"))
        return peer.read_close()

    lua = """
        local connection = assert(connect())
        connection:receive(60)
        connection:close(1000)
        local sent, err = connection:send_text("late")
        return sent, err, connection:receive(60)
    """
    with scripted(talk) as script:
        assert run(lua, port=script.port) == [None, "closed", None, "closed", 1008, "denied"]


def test_the_code_of_a_close_frame_is_seen_after_a_send_has_failed(run: Run) -> None:
    def talk(peer: Peer) -> None:
        peer.accept()
        peer.send(close_frame(1008, "denied"))

    lua = """
        local connection = assert(connect())
        local sent, err
        repeat
            sent, err = connection:send_text("report")
            ngx.sleep(0.001)
        until not sent
        local again, same_err = connection:send_text("report")
        return err, err == same_err, again, connection:receive(60)
    """
    with scripted(talk) as script:
        error, *rest = run(lua, port=script.port)
    assert error.startswith("send failed: ")
    assert rest == [True, None, None, "closed", 1008, "denied"]


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        ("", 1000, ""),
        ("4001, 'replaced'", 4001, "replaced"),
        ("1001, string.rep('ä', 100)", 1001, "ä" * 61),
        ("1001, 'x' .. string.rep('ä', 100)", 1001, "x" + "ä" * 61),
    ],
    ids=["default", "with a reason", "cut before a character", "cut at the limit"],
)
def test_a_close_tells_the_server_code_and_reason(
    run: Run, server: Server, arguments: str, code: int, reason: str
) -> None:
    lua = f"""
        local connection = assert(connect())
        connection:send_text("hello")
        connection:receive(60)
        connection:close({arguments})
        connection:close({arguments})
        return connection:send_text("late")
    """
    assert run(lua, port=server.port) == [None, "closed"]
    assert wait_for(lambda: server.closes) == [(code, reason)]


def test_a_close_ends_a_receive_in_another_light_thread(run: Run) -> None:
    def talk(peer: Peer) -> bool:
        peer.accept()
        assert peer.read_frame() == (CLOSE, struct.pack(">H", 1001) + b"stopping")
        return peer.is_at_end()  # it does not answer

    lua = """
        local connection = assert(connect())
        local receiver = ngx.thread.spawn(function() return connection:receive(60) end)
        local _, busy = connection:receive(60)
        connection:close(1001, "stopping")
        local _, kind, err, code, reason = ngx.thread.wait(receiver)
        return busy, kind, err, code, reason
    """
    with scripted(talk) as script:
        result = run(lua, port=script.port)
    assert result == ["another light thread is receiving", None, "closed", 1001, "stopping"]
    assert script.result


def test_an_end_without_a_close_frame_is_code_1006(run: Run) -> None:
    def talk(peer: Peer) -> None:
        peer.accept()
        peer.send(frame(LAST | TEXT, b"whole") + frame(LAST | TEXT, b"in two parts")[:5])

    lua = """
        local connection = assert(connect())
        local kind, payload = connection:receive(60)
        return kind, payload, connection:receive(60)
    """
    with scripted(talk) as script:
        result = run(lua, port=script.port)
    assert result == ["text", "whole", None, "closed", 1006, "no close frame"]


def test_a_reset_is_an_error(run: Run) -> None:
    def talk(peer: Peer) -> None:
        peer.accept()
        assert peer.read_frame() == (TEXT, b"ready")
        peer.reset()

    lua = """
        local connection = assert(connect())
        connection:send_text("ready")
        local kind, err = connection:receive(60)
        local again, same_err = connection:receive(60)
        return kind, err, again, same_err, connection:send_text("late")
    """
    with scripted(talk) as script:
        result = run(lua, port=script.port)
    reset = "connection reset by peer"
    assert result == [None, reset, None, reset, None, "closed"]


BAD_FRAMES = {
    "masked": (bytes([LAST | TEXT, 0x81, 1, 2, 3, 4, 5]), 1002),
    "reserved bit 1": (frame(LAST | 0x40 | TEXT), 1002),
    "reserved bit 2": (frame(LAST | 0x20 | TEXT), 1002),
    "reserved bit 3": (frame(LAST | 0x10 | PING), 1002),
    "data opcode 3": (frame(LAST | 3), 1002),
    "data opcode 7": (frame(LAST | 7), 1002),
    "control opcode 11": (frame(LAST | 11), 1002),
    "control opcode 15": (frame(LAST | 15), 1002),
    "fragmented ping": (frame(PING, b"a"), 1002),
    "fragmented close": (frame(CLOSE), 1002),
    "ping of 126 bytes": (frame(LAST | PING, b"x" * 126), 1002),
    "close of 126 bytes": (frame(LAST | CLOSE, b"x" * 126), 1002),
    "continuation without a start": (frame(LAST | CONTINUATION, b"a"), 1002),
    "continuation after an end": (
        frame(TEXT) + frame(LAST | CONTINUATION) + frame(CONTINUATION, b"a"),
        1002,
    ),
    "text in a message": (frame(TEXT, b"a") + frame(LAST | TEXT, b"b"), 1002),
    "binary in a message": (frame(TEXT, b"a") + frame(BINARY, b"b"), 1002),
    "close with one byte": (frame(LAST | CLOSE, b"\x03"), 1002),
    **{
        f"close code {code}": (close_frame(code), 1002)
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535)
    },
    "close reason": (frame(LAST | CLOSE, b"\x03\xe8\xff"), 1007),
    "length of 64 bits": (bytes([LAST | BINARY, 127]) + b"\x80" + bytes(7), 1002),
    "large length": (bytes([LAST | BINARY, 127]) + b"\x7f" + b"\xff" * 7, 1009),
    "one byte too many": (frame(LAST | BINARY, b"x" * 1001), 1009),
    "fragments that are too large": (frame(BINARY, b"x" * 600) + frame(0, b"x" * 401), 1009),
    "text that is not UTF-8": (frame(LAST | TEXT, b"abc\xff"), 1007),
    "fragments that are not UTF-8": (frame(TEXT, b"\xc3") + frame(LAST, b"(") + frame(0), 1007),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_a_bad_frame_ends_the_connection_with_its_close_code(run: Run, name: str) -> None:
    sent, code = BAD_FRAMES[name]

    def talk(peer: Peer) -> tuple[int, str]:
        peer.accept()
        # What is allowed comes first, so that the fault is what ends it.
        peer.send(frame(LAST | BINARY, b"x" * 1000) + sent)
        return peer.read_close()

    lua = """
        local connection = assert(connect{max_frame_bytes = 1000})
        local kind, payload = connection:receive(60)
        while connection:receive(60) do  -- what is valid before the fault
        end
        local _, err = connection:receive(60)
        return kind, #payload, err, connection:send_text("late")
    """
    with scripted(talk) as script:
        kind, size, error, *late = run(lua, port=script.port)
    assert (kind, size, late) == ("binary", 1000, [None, "closed"])
    assert error.startswith("protocol error: ")
    assert script.result == (code, error.removeprefix("protocol error: "))


INVALID_TEXTS = [
    *(b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc2", b"\xc2A", b"\xdf\xc0"),
    *(b"\xe0\x9f\xbf", b"\xe0\xa0", b"\xe1\x80A", b"\xe1\xc0\x80", b"\xed\xa0\x80", b"\xef\xbf"),
    *(b"\xf0\x8f\xbf\xbf", b"\xf0\x90\x80", b"\xf1\x80\x80A", b"\xf1\x80\xc0\x80"),
    *(b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xfe", b"\xff"),
]


@pytest.mark.parametrize("text", INVALID_TEXTS, ids=bytes.hex)
def test_text_that_is_not_utf_8_is_refused(run: Run, text: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        text.decode()

    def talk(peer: Peer) -> tuple[int, str]:
        peer.accept()
        peer.send(frame(LAST | TEXT, b"abcdefg" + text))
        return peer.read_close()

    with scripted(talk) as script:
        kind, _ = run("return assert(connect()):receive(60)", port=script.port)
    assert kind is None
    assert script.result[0] == 1007


def test_every_valid_character_is_received_wherever_it_is_in_the_text(run: Run) -> None:
    edges = (
        "\0\x7f\x80\u07ff\u0800\u0fff\u1000\ucfff\ud7ff\ue000\uffff\U00010000\U000fffff\U0010ffff"
    )
    texts = ["a" * before + edges + "z" * after for before in range(9) for after in range(9)]
    texts.append("".join(map(chr, [*range(0x20, 0xD800, 7), *range(0xE000, 0x110000, 97)])))

    def talk(peer: Peer) -> list[str]:
        peer.accept()
        for text in texts:
            peer.send(frame(LAST | TEXT, text.encode()))
        return [peer.read_frame()[1].decode() for _ in texts]

    lua = """
        local connection = assert(connect())
        for _ = 1, given.count do
            local kind, payload = connection:receive(60)
            assert(kind == "text", payload)
            assert(connection:send_text(payload))
        end
    """
    with scripted(talk) as script:
        assert run(lua, port=script.port, count=len(texts)) == []
    assert script.result == texts


def test_light_threads_that_send_at_once_do_not_mix_their_frames(run: Run, server: Server) -> None:
    """Frames that do not fit into the socket's buffer, while one thread receives all echoes."""
    lua = """
        local connection = assert(connect())
        local function send(letter)
            for count = 1, 20 do
                assert(connection:send_text(string.rep(letter, 10000 * count)))
            end
        end
        local a = ngx.thread.spawn(send, "a")
        local b = ngx.thread.spawn(send, "b")
        local sizes = {a = {}, b = {}}
        for _ = 1, 40 do
            local kind, payload = connection:receive(60)
            assert(kind == "text", payload)
            local letter = payload:sub(1, 1)
            assert(payload == string.rep(letter, #payload), "mixed")
            table.insert(sizes[letter], #payload)
        end
        assert(ngx.thread.wait(a))
        assert(ngx.thread.wait(b))
        connection:close()
        return sizes.a, sizes.b
    """
    sizes = [10_000 * count for count in range(1, 21)]
    assert run(lua, port=server.port) == [sizes, sizes]


@contextmanager
def tls_server(certificate: tuple[Path, Path]) -> Iterator[tuple[Server, list[str | None]]]:
    """A server with TLS, and the names that clients have asked it for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    names: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    server = Server(context)
    try:
        yield server, names
    finally:
        server.close()


# What nginx knows no more of a handshake for which it did not have to wait.
NOT_ACCEPTED = "the certificate was not accepted"
ECHO = """
    local connection, err = connect{tls = given.tls}
    if not connection then
        return err
    end
    local payload = string.rep("tls", 400000)
    connection:send_text(payload)
    local kind, echo = connection:receive(60)
    connection:close()
    return kind, echo == payload
"""


def test_tls_with_a_trusted_certificate(run: Run, certificate: tuple[Path, Path]) -> None:
    with tls_server(certificate) as (server, names):
        result = run(ECHO, port=server.port, tls={"server_name": "localhost"})
    assert result == ["text", True]
    assert names == ["localhost"]


def test_a_certificate_for_another_name_is_refused(
    run: Run, certificate: tuple[Path, Path]
) -> None:
    with tls_server(certificate) as (server, _):
        (error,) = run(ECHO, port=server.port, tls={"server_name": "central.example"})
        (error_by_default,) = run(ECHO, port=server.port, tls={"verify": True})
    assert {error, error_by_default} <= {
        f"TLS handshake failed: {reason}" for reason in ("certificate host mismatch", NOT_ACCEPTED)
    }


def test_a_certificate_that_is_not_trusted_is_refused_unless_not_verified(
    run: Run, tmp_path: Path
) -> None:
    with tls_server(make_certificate(tmp_path)) as (server, _):
        (error,) = run(ECHO, port=server.port, tls={"server_name": "localhost"})
        unverified = run(ECHO, port=server.port, tls={"verify": False})
    assert error.startswith("TLS handshake failed: ")
    assert "self-signed certificate" in error or NOT_ACCEPTED in error
    assert unverified == ["text", True]


def test_a_server_without_tls_is_an_error(run: Run) -> None:
    def talk(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        peer.is_at_end()

    with scripted(talk) as script:
        (error,) = run(ECHO, port=script.port, tls={"verify": False})
    assert error.startswith("TLS handshake failed: ")
