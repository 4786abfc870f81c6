"""`AsyncRedisPool`: commands to Redis from tasks, over one connection per event loop.

(One for each server of a cluster.) Tasks that call at once share it, and those who come
while it is being opened wait for that, each until its own deadline. What a loop that was
closed has left open is closed when another comes; after a fork the child has none.

While a slot of a cluster is moved, some of its keys are on one server and some on another. Commands
that Redis cannot carry out meanwhile are tried again until their deadline.
"""

import asyncio
import os
import socket
import weakref
from collections.abc import Sequence
from time import monotonic
from typing import Any

from sluicegate.errors import ProtocolError, Unavailable
from sluicegate.redis_client.address import Endpoint, parse_address
from sluicegate.redis_client.async_connection import AsyncConnection
from sluicegate.redis_client.pool import MAX_REDIRECTIONS
from sluicegate.redis_client.resp import ErrorReply, pack
from sluicegate.redis_client.topology import SocketAddress, Topology

__all__ = ["ASKING", "TRY_AGAIN_AFTER", "AsyncRedisPool"]

ASKING = b"*1\r\n$6\r\nASKING\r\n"  # lets a server carry out a command ahead of the key's slot
TRY_AGAIN_AFTER = 0.02  # seconds between two tries of a command whose slot is being moved


class _LoopConnections:
    """What one event loop has open, or is opening."""

    def __init__(self) -> None:
        self.open: dict[Endpoint, AsyncConnection] = {}
        self.opening: dict[Endpoint, asyncio.Task[AsyncConnection]] = {}
        self.waiting: dict[Endpoint, list[asyncio.Future[None]]] = {}
        self.own: list[AsyncConnection] = []  # of callers that wait on them: not shared


class AsyncRedisPool:
    """Connections to the Redis of a URL, for asyncio."""

    def __init__(self, url: str, timeout: float = 0.1) -> None:
        self._topology = Topology(parse_address(url))
        self._timeout = timeout
        self._loops: dict[asyncio.AbstractEventLoop, _LoopConnections] = {}
        self._orphans: list[_LoopConnections] = []
        after_fork = weakref.WeakMethod(self._after_fork)
        os.register_at_fork(after_in_child=lambda: (found := after_fork()) and found())

    @property
    def address(self) -> str:
        """Where it is, without the login."""
        return str(self._topology.address)

    @property
    def is_cluster(self) -> bool:
        return self._topology.is_cluster

    async def call(self, *words: bytes | str | int | float, key: bytes = b"") -> Any:
        """One command. Its error is raised; `key` says where it goes in a cluster."""
        (reply,) = await self.exchange(key, pack(*words), 1, monotonic() + self._timeout)
        if isinstance(reply, ErrorReply):
            raise reply
        return reply

    async def exchange(
        self,
        key: bytes,
        payload: bytes,
        count: int,
        deadline: float,
        *,
        may_repeat: bool = True,
    ) -> list[Any]:
        """As `RedisPool.exchange`.

        With `may_repeat=False` commands whose replies were lost are not sent a second time, for
        commands that must not be carried out twice.
        """
        while True:
            replies = await self._follow(key, payload, count, deadline, may_repeat)
            first = replies[0]
            if not isinstance(first, ErrorReply) or not first.is_of_moving_slot:
                return replies
            if deadline - monotonic() <= TRY_AGAIN_AFTER:
                return replies
            await asyncio.sleep(TRY_AGAIN_AFTER)

    async def pipeline(self, key: bytes, commands: Sequence[bytes], deadline: float) -> list[Any]:
        """The replies to several packed commands on keys of the slot of `key`.

        They go out together. Those that Redis sends elsewhere, for the slot is being moved, follow
        one by one: the others have been carried out.
        """
        endpoint = await self._endpoint(key, deadline)
        payload = b"".join(commands)
        replies = await self._exchange_with(endpoint, payload, len(commands), deadline, True)
        for place, reply in enumerate(replies):
            if isinstance(reply, ErrorReply) and reply.is_of_moving_slot:
                (replies[place],) = await self.exchange(key, commands[place], 1, deadline)
        return replies

    async def _follow(
        self, key: bytes, payload: bytes, count: int, deadline: float, may_repeat: bool
    ) -> list[Any]:
        """One exchange with the server of `key`, to which redirections lead."""
        endpoint = await self._endpoint(key, deadline)
        asking = b""
        for _ in range(MAX_REDIRECTIONS):
            if asking:
                _, *replies = await self._exchange_with(
                    endpoint, asking + payload, count + 1, deadline, may_repeat
                )
            else:
                replies = await self._exchange_with(endpoint, payload, count, deadline, may_repeat)
            first = replies[0]
            if not isinstance(first, ErrorReply) or first.code not in ("MOVED", "ASK"):
                return replies
            endpoint = self.redirect(key, first)
            asking = ASKING if first.code == "ASK" else b""
        return replies

    def begin(
        self, key: bytes, payload: bytes, count: int, deadline: float
    ) -> "asyncio.Future[list[Any]] | None":
        """An exchange without a task, sent at once: the future of the replies.

        None: `exchange` must look something up or connect first. Nothing is sent twice, and
        redirections are left to the caller.
        """
        endpoint = self._topology.only or self._topology.endpoint(key)
        here = self._loops.get(asyncio.get_running_loop())
        if endpoint is None or here is None:
            return None
        connection = here.open.get(endpoint)
        if connection is None or not connection.is_open:
            return None
        answered = connection.exchange(payload, count, deadline, at_once=True)
        answered.add_done_callback(lambda done: self._check_begun(connection, done))
        return answered

    async def connect(
        self, key: bytes, deadline: float, endpoint: Endpoint | None = None
    ) -> AsyncConnection:
        """A connection of the caller's own to the server of `key`, for commands that block.

        `endpoint` is another server, to which a redirection led. The caller closes the connection;
        `close` closes what is left.
        """
        if endpoint is None:
            endpoint = await self._endpoint(key, deadline)
        here = self._here()
        try:
            connection = await self._open(endpoint, deadline)
        except (Unavailable, ProtocolError):
            self._topology.invalidate()
            raise
        here.own = [one for one in here.own if one.is_open]
        here.own.append(connection)
        return connection

    def redirect(self, key: bytes, reply: ErrorReply) -> Endpoint:
        """Where MOVED or ASK leads; MOVED is remembered for the slot of `key`."""
        return self._topology.redirect(key, reply)

    def invalidate(self) -> None:
        """A caller's own connection failed: look up the servers again."""
        self._topology.invalidate()

    async def close(self) -> None:
        """Close what the running loop has open. Other loops close their own; a call opens anew."""
        self._drop_closed_loops()
        here = self._loops.pop(asyncio.get_running_loop(), None)
        if here is None:
            return
        for task in here.opening.values():
            task.cancel()
        await asyncio.gather(*here.opening.values(), return_exceptions=True)
        for connection in [*here.open.values(), *here.own]:
            await connection.close()

    async def _exchange_with(
        self, endpoint: Endpoint, payload: bytes, count: int, deadline: float, may_repeat: bool
    ) -> list[Any]:
        here = self._here()
        connection = here.open.get(endpoint)
        is_new = connection is None or not connection.is_open
        try:
            if connection is None or not connection.is_open:
                connection = await self._opened(here, endpoint, deadline)
            try:
                replies = await connection.exchange(payload, count, deadline)
            except Unavailable:
                # Closed while it was idle, by a restart say: replaced within the call, once.
                if is_new or connection.is_open or not may_repeat:
                    raise
                if deadline - monotonic() < 0.001:
                    raise
                # In what the loop has now: `close` may have taken away what it had.
                connection = await self._opened(self._here(), endpoint, deadline)
                replies = await connection.exchange(payload, count, deadline)
        except (Unavailable, ProtocolError):
            self._topology.invalidate()
            raise
        if isinstance(replies[0], ErrorReply) and replies[0].is_of_replica:
            self._leave_replica(connection)
        return replies

    def _check_begun(self, connection: AsyncConnection, done: "asyncio.Future[list[Any]]") -> None:
        """What `_exchange_with` does after an exchange, for one that nobody awaits."""
        if done.cancelled():
            return
        if done.exception() is not None:
            self._topology.invalidate()
            return
        first = done.result()[0]
        if isinstance(first, ErrorReply) and first.is_of_replica:
            self._leave_replica(connection)

    def _leave_replica(self, connection: AsyncConnection) -> None:
        """Close all that this loop has open to a server that a failover has made a replica.

        Callers' own connections, too: a read that blocks is no error there, and waits in vain.
        """
        self._topology.invalidate()
        connection.drop()
        for one in self._here().own:
            if one.endpoint == connection.endpoint:
                one.drop()

    async def _opened(
        self, here: _LoopConnections, endpoint: Endpoint, deadline: float
    ) -> AsyncConnection:
        connection = here.open.get(endpoint)
        if connection is not None and connection.is_open:
            return connection
        task = here.opening.get(endpoint)
        if task is None:
            task = asyncio.create_task(self._open_shared(here, endpoint, deadline))
            here.opening[endpoint] = task
            task.add_done_callback(lambda done: _opened(here, endpoint, done))
        # Not asyncio.wait, in which each of ten thousand would look through all the others.
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        here.waiting.setdefault(endpoint, []).append(opened)
        try:
            async with asyncio.timeout(max(deadline - monotonic(), 0.0)):
                await opened
        except TimeoutError:
            raise Unavailable(f"timed out connecting to Redis at {endpoint}") from None
        if task.cancelled():
            raise Unavailable("the Redis connection pool is closed")
        return task.result()

    async def _open_shared(
        self, here: _LoopConnections, endpoint: Endpoint, deadline: float
    ) -> AsyncConnection:
        connection = here.open[endpoint] = await self._open(endpoint, deadline)
        return connection

    async def _open(self, endpoint: Endpoint, deadline: float) -> AsyncConnection:
        sockets = self._topology.sockets(endpoint)
        if sockets is None:
            sockets = await self._topology.resolution(endpoint).wait_async(deadline - monotonic())
        reason: Exception | None = None
        for index, one in enumerate(sockets):
            # A host with several addresses may have one that swallows all: each has its part.
            left = (deadline - monotonic()) / (len(sockets) - index)
            try:
                async with asyncio.timeout(left):
                    return await self._open_one(endpoint, one, deadline)
            except OSError as error:  # TimeoutError is one
                reason = error
        why = str(reason) or "timed out"
        raise Unavailable(f"cannot connect to Redis at {endpoint}: {why}") from reason

    async def _open_one(
        self, endpoint: Endpoint, one: SocketAddress, deadline: float
    ) -> AsyncConnection:
        family, where = one
        loop = asyncio.get_running_loop()
        address = self._topology.address
        raw = socket.socket(family, socket.SOCK_STREAM)
        try:
            raw.setblocking(False)
            await loop.sock_connect(raw, where)
            if family != socket.AF_UNIX:
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = AsyncConnection(endpoint, raw)
            name = endpoint.host if address.tls is not None else None
            create = (
                loop.create_unix_connection if family == socket.AF_UNIX else loop.create_connection
            )
            await create(lambda: connection, sock=raw, ssl=address.tls, server_hostname=name)
        except BaseException:
            raw.close()
            raise
        try:
            if address.login:
                for reply in await connection.exchange(
                    address.login, address.login_count, deadline
                ):
                    if isinstance(reply, ErrorReply):
                        raise reply
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _endpoint(self, key: bytes, deadline: float) -> Endpoint:
        topology = self._topology
        return topology.only or topology.endpoint(key) or await self._discover(key, deadline)

    async def _discover(self, key: bytes, deadline: float) -> Endpoint:
        try:
            await self._topology.discovery.wait_async(deadline - monotonic())
        except Unavailable:
            if self._topology.last_known(key) is None:
                raise
        endpoint = self._topology.last_known(key)
        if endpoint is None:
            raise Unavailable(
                f"no server of the cluster {self._topology.address} owns the slot of this key"
            )
        return endpoint

    def _here(self) -> _LoopConnections:
        loop = asyncio.get_running_loop()
        here = self._loops.get(loop)
        if here is None:
            self._drop_closed_loops()
            here = self._loops[loop] = _LoopConnections()
        return here

    def _drop_closed_loops(self) -> None:
        """A loop that was closed over its connections cannot close them any more."""
        for loop in [one for one in self._loops if one.is_closed()]:
            here = self._loops.pop(loop)
            for connection in [*here.open.values(), *here.own]:
                connection.abandon()

    def _after_fork(self) -> None:
        # Kept, for their transports must not be collected: that warns of an unclosed one.
        self._orphans += self._loops.values()
        for here in self._orphans:
            for connection in [*here.open.values(), *here.own]:
                connection.abandon()
        self._loops.clear()
        self._topology.after_fork()

    def __repr__(self) -> str:
        return f"AsyncRedisPool({str(self._topology.address)!r})"


def _opened(
    here: _LoopConnections, endpoint: Endpoint, task: "asyncio.Task[AsyncConnection]"
) -> None:
    del here.opening[endpoint]
    for one in here.waiting.pop(endpoint, ()):
        if not one.done():
            one.set_result(None)
    if not task.cancelled():
        task.exception()  # seen by those who waited, if anyone still does
