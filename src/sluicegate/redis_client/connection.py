"""`Connection`: one socket to Redis, for one thread at a time; no call outlives its deadline.

The system keeps the time (SO_RCVTIMEO, SO_SNDTIMEO), so a call is one `send` and one
`recv` and no `poll` between them; Python's own time-outs would be half as many calls
again. A reply that comes in pieces does not stretch the time: before each wait the rest
of it is set. Deadlines are in seconds of `time.monotonic()`.

A connection that raised is closed: a reply may still be on its way, and must never be
taken for the answer to the next call.
"""

import os
import socket
import ssl
import struct
from time import monotonic
from typing import Any

from sluicegate.errors import ProtocolError, Unavailable
from sluicegate.redis_client._socket import receive, send, send_and_receive
from sluicegate.redis_client.address import Address, Endpoint
from sluicegate.redis_client.resp import ErrorReply, Replies
from sluicegate.redis_client.topology import SocketAddress

__all__ = ["Connection"]

_CLOSE_ENOUGH = 0.002  # seconds by which a time-out that is set may differ from what is left
_READ_AT_ONCE = 16_384  # bytes
_LATE = (BlockingIOError, TimeoutError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Connection:
    """An open connection, logged in."""

    __slots__ = ("_fd", "_replies", "_socket", "_timeout", "endpoint")

    def __init__(
        self,
        address: Address,
        endpoint: Endpoint,
        sockets: list[SocketAddress],
        deadline: float,
    ) -> None:
        self.endpoint = endpoint
        self._timeout = -1.0
        self._replies = Replies()
        self._socket = _connect(address, endpoint, sockets, deadline)
        # TLS has a layer of its own above the system's socket, and so has gevent: its sockets
        # never block. There Python keeps the time.
        descriptor = self._socket.fileno()
        is_plain = address.tls is None and os.get_blocking(descriptor)
        self._fd = descriptor if is_plain else -1
        if address.login:
            for reply in self.exchange(address.login, address.login_count, deadline):
                if isinstance(reply, ErrorReply):
                    self.close()
                    raise reply

    def exchange(self, payload: bytes, count: int, deadline: float) -> list[Any]:
        """Send packed commands and return their `count` replies."""
        try:
            self._set_timeout(deadline)
            if self._fd >= 0:
                send(self._fd, payload, deadline)
            else:
                self._socket.sendall(payload)
            return self._read(self._receive(deadline), count, deadline)
        except OSError as error:
            raise self._broken(error) from error
        except BaseException:
            self.close()
            raise

    def exchange_one(self, command: bytes, deadline: float) -> Any:
        """As `exchange`, for one short command, and faster."""
        if self._fd < 0:
            return self.exchange(command, 1, deadline)[0]
        try:
            if abs(deadline - monotonic() - self._timeout) > _CLOSE_ENOUGH:
                self._set_timeout(deadline)
            reply = send_and_receive(self._fd, command, deadline)
            return reply if isinstance(reply, int) else self._read(reply, 1, deadline)[0]
        except OSError as error:
            raise self._broken(error) from error
        except BaseException:
            self.close()
            raise

    def _broken(self, error: OSError) -> Unavailable:
        self.close()
        if isinstance(error, _LATE):
            return Unavailable(f"timed out waiting for Redis at {self.endpoint}")
        return Unavailable(f"lost the connection to Redis at {self.endpoint}: {error}")

    def _read(self, data: bytes, count: int, deadline: float) -> list[Any]:
        replies: list[Any] = []
        while True:
            if not data:
                raise ConnectionResetError("closed by the server")
            self._replies.feed(data)
            replies += self._replies.take(count - len(replies))
            if len(replies) == count:
                break
            data = self._receive(deadline)
        if self._replies.has_more():
            raise ProtocolError(f"Redis at {self.endpoint} sent more replies than commands")
        return replies

    def _receive(self, deadline: float) -> bytes:
        self._set_timeout(deadline)
        if self._fd >= 0:
            return receive(self._fd, deadline)
        return self._socket.recv(_READ_AT_ONCE)

    def _set_timeout(self, deadline: float) -> None:
        left = deadline - monotonic()
        if left <= 0.0:
            raise TimeoutError
        if abs(left - self._timeout) < _CLOSE_ENOUGH:
            return
        self._timeout = left
        if self._fd < 0:
            self._socket.settimeout(left)
            return
        seconds = int(left)
        value = struct.pack("ll", seconds, max(int((left - seconds) * 1e6), 1))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def close(self) -> None:
        self._socket.close()


def _connect(
    address: Address, endpoint: Endpoint, sockets: list[SocketAddress], deadline: float
) -> socket.socket:
    reason: Exception | None = None
    for index, (family, where) in enumerate(sockets):
        # A host with several addresses may have one that swallows all: each has its part.
        left = (deadline - monotonic()) / (len(sockets) - index)
        if left <= 0.0:
            break
        one = socket.socket(family, socket.SOCK_STREAM)
        try:
            one.settimeout(left)
            one.connect(where)
            if family != socket.AF_UNIX:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls is not None:
                one.settimeout(max(deadline - monotonic(), 0.001))
                return address.tls.wrap_socket(one, server_hostname=endpoint.host)
            one.settimeout(None)
        except OSError as error:
            one.close()
            reason = error
        except BaseException:
            one.close()
            raise
        else:
            return one
    raise Unavailable(f"cannot connect to Redis at {endpoint}: {reason or 'timed out'}") from reason
