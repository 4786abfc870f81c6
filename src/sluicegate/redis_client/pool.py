"""`RedisPool`: commands to Redis from any thread, each call before one deadline.

A thread takes an idle connection or opens one, and puts it back; there are as many as
threads that call at once, and at most `MAX_IDLE` are kept. A connection that the server
closed while it was idle is replaced within the call: a command whose reply was lost that
way may have been carried out, and is then carried out again. For a limiter that is the
strict side.

After a fork the child has no connections: those of the parent are closed unused.
"""

import os
import weakref
from collections import deque
from time import monotonic
from typing import Any

from sluicegate.errors import ProtocolError, Unavailable
from sluicegate.redis_client.address import Endpoint, parse_address
from sluicegate.redis_client.connection import Connection
from sluicegate.redis_client.resp import ErrorReply, pack
from sluicegate.redis_client.topology import Topology

__all__ = ["RedisPool"]

MAX_IDLE = 64  # for each server
MAX_REDIRECTIONS = 3


class RedisPool:
    """Connections to the Redis of a URL."""

    def __init__(self, url: str, timeout: float = 0.1) -> None:
        self._topology = Topology(parse_address(url))
        self._timeout = timeout
        self._ready: deque[Connection] = deque()
        self._idle = {self._topology.only: self._ready}  # by endpoint
        self._is_closed = False
        after_fork = weakref.WeakMethod(self._after_fork)
        os.register_at_fork(after_in_child=lambda: (found := after_fork()) and found())

    @property
    def address(self) -> str:
        """Where it is, without the login."""
        return str(self._topology.address)

    @property
    def is_cluster(self) -> bool:
        return self._topology.is_cluster

    @property
    def idle(self) -> int:
        """Connections that are open and not in use."""
        return sum(map(len, list(self._idle.values())))

    def call(self, *words: bytes | str | int | float, key: bytes = b"") -> Any:
        """One command. Its error is raised; `key` says where it goes in a cluster."""
        (reply,) = self.exchange(key, pack(*words), 1, monotonic() + self._timeout)
        if isinstance(reply, ErrorReply):
            raise reply
        return reply

    def send_command(self, command: bytes, deadline: float) -> Any:
        """The reply to one short command: `exchange` by the shortest way there is.

        Not for clusters, where a command goes to the server of its key.
        """
        try:
            connection = self._ready.pop()
        except IndexError:
            return self.exchange(b"", command, 1, deadline)[0]
        try:
            reply = connection.exchange_one(command, deadline)
        except Unavailable as error:
            if not isinstance(error.__cause__, ConnectionError):
                self._fail()
                raise
            return self.exchange(b"", command, 1, deadline)[0]
        except ProtocolError:
            self._fail()
            raise
        if isinstance(reply, ErrorReply) and reply.is_of_replica:
            connection.close()
            self._topology.invalidate()
        elif len(self._ready) < MAX_IDLE and not self._is_closed:
            self._ready.append(connection)
        else:
            connection.close()
        return reply

    def exchange(self, key: bytes, payload: bytes, count: int, deadline: float) -> list[Any]:
        """Send packed commands that belong to `key`; return their `count` replies.

        Raises `Unavailable` or `ProtocolError`; errors that Redis answered are values.
        """
        topology = self._topology
        endpoint = topology.only or topology.endpoint(key) or self._discover(key, deadline)
        asking = b""
        for _ in range(MAX_REDIRECTIONS):
            if asking:
                _, *replies = self._exchange_with(endpoint, asking + payload, count + 1, deadline)
            else:
                replies = self._exchange_with(endpoint, payload, count, deadline)
            first = replies[0]
            if not isinstance(first, ErrorReply) or first.code not in ("MOVED", "ASK"):
                return replies
            endpoint = topology.redirect(key, first)
            asking = pack("ASKING") if first.code == "ASK" else b""
        return replies

    def close(self) -> None:
        self._is_closed = True
        self._close_idle()

    def _exchange_with(
        self, endpoint: Endpoint, payload: bytes, count: int, deadline: float
    ) -> list[Any]:
        idle = self._idle.get(endpoint)
        if idle is None:
            idle = self._idle.setdefault(endpoint, deque())
        try:
            try:
                connection = idle.pop()
                was_idle = True
            except IndexError:
                connection = self._open(endpoint, deadline)
                was_idle = False
            try:
                replies = connection.exchange(payload, count, deadline)
            except Unavailable as error:
                if not was_idle or not isinstance(error.__cause__, ConnectionError):
                    raise
                connection = self._open(endpoint, deadline)
                replies = connection.exchange(payload, count, deadline)
        except (Unavailable, ProtocolError):
            self._fail()
            raise
        if isinstance(replies[0], ErrorReply) and replies[0].is_of_replica:
            # A failover made this one a replica; its name may lead elsewhere now.
            connection.close()
            self._topology.invalidate()
        elif len(idle) < MAX_IDLE and not self._is_closed:
            idle.append(connection)
        else:
            connection.close()
        return replies

    def _open(self, endpoint: Endpoint, deadline: float) -> Connection:
        if self._is_closed:
            raise Unavailable("the Redis connection pool is closed")
        sockets = self._topology.sockets(endpoint)
        if sockets is None:
            sockets = self._topology.resolution(endpoint).wait(deadline - monotonic())
        return Connection(self._topology.address, endpoint, sockets, deadline)

    def _discover(self, key: bytes, deadline: float) -> Endpoint:
        try:
            self._topology.discovery.wait(deadline - monotonic())
        except Unavailable:
            if self._topology.last_known(key) is None:
                raise
        endpoint = self._topology.last_known(key)
        if endpoint is None:
            raise Unavailable(
                f"no server of the cluster {self._topology.address} owns the slot of this key"
            )
        return endpoint

    def _fail(self) -> None:
        self._topology.invalidate()
        self._close_idle()

    def _close_idle(self) -> None:
        for idle in list(self._idle.values()):
            while idle:
                try:
                    idle.pop().close()
                except IndexError:  # another thread took the last one
                    break

    def _after_fork(self) -> None:
        self._close_idle()
        self._topology.after_fork()

    def __repr__(self) -> str:
        return f"RedisPool({str(self._topology.address)!r}, idle={self.idle})"
