"""`Central`: the quota server of a fleet, for programs and for the command line.

    async with Central("limits.toml") as central: ...     in a program's own loop
    with Central("limits.toml") as central: ...           in a thread with a loop of its own
    Central("limits.toml").run()                          until SIGTERM or SIGINT

Invalid arguments raise when the object is created; failures of the world (a port in use, limits
that cannot be read) when it starts. The parts that need `starlette` and `uvicorn` are imported at
the start.
"""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sluicegate.errors import ConfigError
from sluicegate.quota.central.daemon_thread import run_in_daemon_thread
from sluicegate.quota.central.membership import LEAD_ALL, check_membership
from sluicegate.quota.central.net.tokens import Tokens, is_loopback
from sluicegate.quota.central.server_socket import parse_address
from sluicegate.quota.ledger.ledger import Assignment, Ledger
from sluicegate.quota.ledger.service import MakeService, installed_services
from sluicegate.quota.wire.bounds import Bounds

if TYPE_CHECKING:
    from sluicegate.quota.central.limit_sources import LimitsSource
    from sluicegate.quota.central.member import Member
    from sluicegate.quota.central.net.registry import ConnectionRegistry
    from sluicegate.quota.central.peer_state import PeerState
    from sluicegate.quota.central.server import Server

__all__ = ["Central"]

_logger = logging.getLogger("sluicegate.quota")

_CLOSE_SECONDS = 1.0  # for the source of the limits
_DEFAULT_BOUNDS = Bounds()
_MISSING_PACKAGES = "the central requires more packages: pip install 'sluicegate[server]'"


class Central:
    """One central: `limits` is a file, a URL, a function, a list of entries, or a source."""

    def __init__(
        self,
        limits: Any,
        *,
        name: str = "central",
        listen: str = "127.0.0.1:7411",
        slot_seconds: float = 1.0,
        node_token: str | None = None,
        admin_token: str | None = None,
        peer_token: str | None = None,
        tls_cert: str | Path | None = None,
        tls_key: str | Path | None = None,
        state: str | Path | None = None,
        services: Mapping[str, MakeService] | None = None,
        assignment: Assignment = "fair",
        max_connections: int = 10_000,
        bounds: Bounds = _DEFAULT_BOUNDS,
        peers: Mapping[str, str] | None = None,
        election: str | None = None,
        lease: float | None = None,
        lead: str = LEAD_ALL,
        peer_ca: str | Path | None = None,
    ) -> None:
        if not isinstance(name, str) or not 1 <= len(name.encode()) <= bounds.name_bytes:
            raise ValueError(f"name must have 1 to {bounds.name_bytes} bytes, got {name!r}")
        if not name.isprintable():  # it is printed in logs and on stdout
            raise ValueError(f"name must have no control characters, got {name!r}")
        if max_connections < 1:
            raise ValueError(f"max_connections must be 1 or more, got {max_connections!r}")
        if (tls_cert is None) != (tls_key is None):
            raise ConfigError(
                "expected both tls_cert and tls_key (--tls-cert, --tls-key), got only one"
            )
        self.name = name
        self._host, self._port = parse_address(listen)
        self._tokens = Tokens(node_token, admin_token, peer_token)
        if not is_loopback(self._host) and not self._tokens.are_set:
            raise ConfigError(
                f"other machines may reach {listen}, but the node token or the admin token is "
                f"missing: set both (--token-file), or listen on 127.0.0.1"
            )
        self._membership = check_membership(name, peers, election, lease, state, lead)
        self._check_peer_access(peer_ca)
        self._peer_ca = None if peer_ca is None else str(peer_ca)
        self._limits = limits
        self._tls = (None, None) if tls_cert is None else (str(tls_cert), str(tls_key))
        self._state = state
        self._make_ledger: Callable[[Any], Ledger] = lambda entries: Ledger(
            entries,
            slot_seconds=slot_seconds,
            assignment=assignment,
            services=installed_services() if services is None else services,
        )
        self._make_ledger([])  # raises now if an argument is invalid
        self._max_connections = max_connections
        self._bounds = bounds
        self._server: Server | None = None
        self._source: LimitsSource | None = None
        self._member: Member | None = None
        self._thread: _LoopThread | None = None
        self.registry: ConnectionRegistry | None = None  # set by start()

    def _check_peer_access(self, peer_ca: str | Path | None) -> None:
        if self._membership is None or not self._membership.urls:
            if peer_ca is not None:
                raise ConfigError(f"a peer CA file ({peer_ca}) but no peers")
        elif self._tokens.peer is None and (self._tokens.node or not is_loopback(self._host)):
            raise ConfigError(
                'there are peers, but the token of the peers is missing: add peer = "..." to the '
                "token file, the same on all centrals"
            )

    def __repr__(self) -> str:
        if self._server is None:
            return f"Central({self.name}, not started)"
        return f"Central({self.name}, {self.url}, {self.registry!r})"

    @property
    def url(self) -> str:
        """Where it listens: http://… or https://…; nodes accept it, too."""
        if self._server is None:
            raise RuntimeError("the central has not started: call start() first")
        host = f"[{self._host}]" if ":" in self._host else self._host
        scheme = "http" if self._tls[0] is None else "https"
        return f"{scheme}://{host}:{self._server.port}"

    @property
    def ws_url(self) -> str:
        """The same for a websocket: ws://… or wss://…"""
        return "ws" + self.url.removeprefix("http")

    # In a loop

    async def start(self) -> None:
        if self._server is not None:
            raise RuntimeError("the central has already started")
        try:
            from sluicegate.quota.central.server import Server
            from sluicegate.quota.central.startup import load_parts
        except ImportError as error:
            raise ConfigError(f"{_MISSING_PACKAGES} ({error})") from error
        parts = await run_in_daemon_thread(
            lambda: load_parts(self._limits, self._make_ledger, self._state, self._fetch_state)
        )
        self._source = parts.limits_sync.source
        try:
            member = self._make_member()
            self.registry = parts.build_registry(
                self.name, self._tokens, self._max_connections, self._bounds, member
            )
            server = Server(
                self.registry,
                parts.state_file,
                host=self._host,
                port=self._port,
                tls_cert=self._tls[0],
                tls_key=self._tls[1],
            )
            await server.start()
        except BaseException:
            self._source.close()
            raise
        self._server, self._member = server, member
        if member is None:
            epoch = self.registry.state.epoch
            _logger.info("central %s listens on %s, epoch %d", self.name, self.url, epoch)
            return
        _logger.info("central %s listens on %s, standby", self.name, self.url)
        try:
            await member.start()
        except BaseException:
            await self.close()
            raise

    def _fetch_state(self) -> "PeerState | None":
        from sluicegate.quota.central.member import peer_tls
        from sluicegate.quota.central.peer_state import fetch_newest_state

        if self._membership is None:
            return None
        tls = peer_tls(self._membership, self._peer_ca)
        return fetch_newest_state(self._membership.peers, self._tokens.peer, tls)

    def _make_member(self) -> "Member | None":
        from sluicegate.quota.central.member import Member, peer_tls
        from sluicegate.quota.central.net.peer_link import PeerOptions

        if self._membership is None:
            return None
        tls = peer_tls(self._membership, self._peer_ca)
        return Member(self._membership, PeerOptions(self.name, self._tokens.peer, tls))

    async def close(self) -> None:
        """Answer what has arrived, close the connections, write the state, and stop.

        Raises `Unavailable` if it has stopped but the state could not be written.
        """
        server, self._server = self._server, None
        if server is None:
            return
        member, self._member = self._member, None
        try:
            if member is not None:
                await member.resign()
            await server.close()
        finally:
            if member is not None:
                await member.close()
            assert self._source is not None
            # A source that hangs may hold the lock it needs to be closed.
            done, _ = await asyncio.wait(
                [run_in_daemon_thread(self._source.close)], timeout=_CLOSE_SECONDS
            )
            for closed in done:
                closed.result()
        _logger.info("central %s stopped", self.name)

    async def __aenter__(self) -> "Central":
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # In a thread

    def __enter__(self) -> "Central":
        self._thread = _LoopThread(f"central {self.name}")
        try:
            self._thread.run(self.start())
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._thread is not None
        try:
            self._thread.run(self.close())
        finally:
            self._thread.stop()

    # As a process

    def run(self, started: Callable[["Central"], object] | None = None) -> None:
        """Serve until SIGTERM or SIGINT; `started` is called when it listens."""
        asyncio.run(self._serve(started))

    async def _serve(self, started: Callable[["Central"], object] | None) -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        stopping = asyncio.create_task(stop.wait())
        starting = asyncio.create_task(self.start())
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()  # limits that cannot be read yet must not hold up a stop
            await asyncio.gather(starting, return_exceptions=True)
            return
        await starting
        try:
            if started is not None:
                started(self)
            await stopping
        finally:
            await self.close()


class _LoopThread:
    """A thread that runs an event loop until it is stopped."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def stop(self) -> None:
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
