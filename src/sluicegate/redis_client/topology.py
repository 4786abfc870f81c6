"""`Topology`: which server holds a key, and the socket addresses of a server.

One Redis is one endpoint for all keys. Behind sentinels it is the master of the service,
queries for when the one that was known fails. In a cluster each of 16,384 slots has an
endpoint; the map is read once, mended by each MOVED, and read again after a failure.
All of it is told without waiting (`endpoint`, `sockets`) where it is known, and else is
a `BackgroundLookup` that the caller waits for, up to its deadline. redis-py
sends the queries.
"""

import contextlib
import ipaddress
import socket
from binascii import crc_hqx
from typing import Any

from sluicegate.errors import ProtocolError, Unavailable
from sluicegate.redis_client.address import Address, Endpoint
from sluicegate.redis_client.background_lookup import BackgroundLookup
from sluicegate.redis_client.resp import ErrorReply, load

__all__ = ["SocketAddress", "Topology"]

SLOTS = 16_384
DISCOVERY_SECONDS = 1.0  # for one sentinel or node; callers do not wait so long

SocketAddress = tuple[socket.AddressFamily, Any]


class Topology:
    """The servers of one address."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._names: dict[Endpoint, BackgroundLookup[list[SocketAddress]]] = {}
        self._resolved: dict[Endpoint, list[SocketAddress]] = {}
        self._by_slot: list[Endpoint | None] = []
        self.only = None if address.kind else address.endpoints[0]  # where nothing can change
        self._single = self.only
        self._is_stale = False
        queries = {"sentinel": self._query_sentinels, "cluster": self._query_cluster}
        if address.kind:
            self.discovery = BackgroundLookup(
                f"the {address.kind} {address}", queries[address.kind]
            )

    @property
    def is_cluster(self) -> bool:
        return self.address.kind == "cluster"

    def endpoint(self, key: bytes) -> Endpoint | None:
        """Where `key` lives; None when `discovery` must be waited for first."""
        return None if self._is_stale else self.last_known(key)

    def last_known(self, key: bytes) -> Endpoint | None:
        """For when discovery fails too: better an old address than none."""
        if not self.is_cluster:
            return self._single
        return self._by_slot[slot_of(key)] if self._by_slot else None

    def invalidate(self) -> None:
        """A server failed: it may have moved, or another may have taken its place."""
        self._is_stale = bool(self.address.kind)
        self._resolved.clear()

    def redirect(self, key: bytes, reply: ErrorReply) -> Endpoint:
        """Where MOVED or ASK sends us; MOVED is remembered for the slot."""
        host, colon, port = reply.message.rpartition(" ")[2].rpartition(":")
        if not (colon and port.isdecimal() and 0 < int(port[:6]) < 65_536):
            raise ProtocolError(
                f"invalid redirection from Redis: expected host:port, got {reply.message!r}"
            )
        endpoint = Endpoint(host.strip("[]") or self.address.endpoints[0].host, int(port))
        if reply.code == "MOVED" and self._by_slot:
            self._by_slot[slot_of(key)] = endpoint
        return endpoint

    def sockets(self, endpoint: Endpoint) -> list[SocketAddress] | None:
        """Where to connect; None when `resolution(endpoint)` must be waited for first."""
        if not endpoint.port:
            return [(socket.AF_UNIX, endpoint.host)]
        with contextlib.suppress(ValueError):
            version = ipaddress.ip_address(endpoint.host).version
            family = socket.AF_INET if version == 4 else socket.AF_INET6
            return [(family, (endpoint.host, endpoint.port))]
        return self._resolved.get(endpoint)

    def resolution(self, endpoint: Endpoint) -> BackgroundLookup[list[SocketAddress]]:
        def resolve() -> list[SocketAddress]:
            found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
            self._resolved[endpoint] = [(family, where) for family, _, _, _, where in found]
            return self._resolved[endpoint]

        if endpoint not in self._names:
            self._names.setdefault(
                endpoint, BackgroundLookup(f"the host {endpoint.host!r}", resolve)
            )
        return self._names[endpoint]

    def after_fork(self) -> None:
        """In a forked child."""
        self._names = {}
        if self.address.kind:
            self.discovery.after_fork()

    def _query_sentinels(self) -> None:
        redis = load("redis")
        # The login of the URL is the master's; sentinels are queries without one. No second
        # tries: the caller who waits has a better use for the time, the next sentinel.
        options = _without_login(self.address.options) | {
            "socket_timeout": DISCOVERY_SECONDS,
            "socket_connect_timeout": DISCOVERY_SECONDS,
            "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        }
        sentinel = redis.sentinel.Sentinel(
            [(one.host, one.port) for one in self.address.endpoints], sentinel_kwargs=options
        )
        try:
            host, port = sentinel.discover_master(self.address.service)
        except redis.sentinel.MasterNotFoundError as error:
            # redis-py appends its clients that had no answer, a thousand characters for each.
            message, _, unanswered = str(error).partition(" : ")
            silent = ", and a sentinel did not answer" if unanswered else ""
            raise Unavailable(f"{message}{silent}") from None
        finally:
            for one in sentinel.sentinels:
                one.close()
        self._single = Endpoint(host, int(port))
        self._is_stale = False

    def _query_cluster(self) -> None:
        redis = load("redis")
        nodes = [redis.cluster.ClusterNode(one.host, one.port) for one in self.address.endpoints]
        cluster = redis.RedisCluster(
            startup_nodes=nodes,
            require_full_coverage=False,
            socket_timeout=DISCOVERY_SECONDS,
            socket_connect_timeout=DISCOVERY_SECONDS,
            **self.address.options,
        )
        try:
            by_slot: list[Endpoint | None] = [None] * SLOTS
            for slot, holders in cluster.nodes_manager.slots_cache.items():
                by_slot[slot] = Endpoint(holders[0].host, int(holders[0].port))
        finally:
            cluster.close()
        self._by_slot = by_slot
        self._is_stale = False


def slot_of(key: bytes) -> int:
    """The slot of a key, by what stands between its first braces."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1) if start >= 0 else -1
    return crc_hqx(key[start + 1 : end] if end > start + 1 else key, 0) % SLOTS


def _without_login(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in ("username", "password")}
