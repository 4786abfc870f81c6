"""`Member`: this central's part in an election: its links to the peers, and its candidacy.

It is made for one life of a central. The order of a start matters: the port is open before the
first link is made, and the links before the election, so that the first proposal finds its peers.
At the stop the leadership is given back first: another central leads by the time the nodes are told
to go.
"""

import logging
import ssl
from urllib.parse import unquote

from sluicegate.election.election import Election
from sluicegate.election.lease_election import LeaseElection
from sluicegate.election.paxos import PaxosLease
from sluicegate.errors import ConfigError, ProtocolError
from sluicegate.quota.central.leadership import ElectedLeadership, EpochFloor
from sluicegate.quota.central.lending.messages import Borrow, Lend
from sluicegate.quota.central.lending.service_lending import ServiceLending
from sluicegate.quota.central.membership import Membership
from sluicegate.quota.central.net.connection import PEER
from sluicegate.quota.central.net.peer_link import PeerOptions
from sluicegate.quota.central.net.peer_session import peer_session_factory
from sluicegate.quota.central.net.peer_transport import PeerTransport
from sluicegate.quota.central.net.peer_wire import PeerMessage
from sluicegate.quota.central.net.registry import ConnectionRegistry
from sluicegate.quota.central.state import CentralState

__all__ = ["Member", "etcd_hosts", "paxos_lease", "peer_tls"]

_logger = logging.getLogger("sluicegate.quota")


class Member:
    """One member of the election that `membership` describes."""

    def __init__(self, membership: Membership, options: PeerOptions) -> None:
        self.membership = membership
        self.floor = EpochFloor()
        self._needs_links = membership.is_paxos or membership.lends
        self._transport = PeerTransport(membership.peers if self._needs_links else {}, options)
        self.election = _make_election(membership, self._transport, self.floor)
        self._transport.receive = self._receive
        self._leadership: ElectedLeadership | None = None
        self._lending: ServiceLending | None = None
        self._is_warned = False

    def has_lease(self) -> bool:
        return self._leadership is not None and self._leadership.has_lease()

    def lead(self, state: CentralState) -> ElectedLeadership:
        """Make the leadership of a state."""
        self._leadership = ElectedLeadership(
            state,
            self.election,
            self.floor,
            confirmed=self._confirmed if isinstance(self.election, LeaseElection) else None,
            members=self.membership.urls,
            is_connected=self._is_connected,
        )
        return self._leadership

    def serve(self, registry: ConnectionRegistry) -> None:
        """Let peers connect to the port of this central."""
        assert self._leadership is not None
        self._leadership.deliver = registry.deliver
        if self._needs_links:
            registry.register(PEER, peer_session_factory(registry, self._transport))
        if self.membership.lends:
            self._lending = ServiceLending(
                registry.state,
                self._leadership,
                self._transport,
                lease=self.membership.lease,
                is_warm=lambda: registry.warm_up.is_warm(registry.now()),
            )

    async def start(self) -> None:
        assert self._leadership is not None
        self._transport.start()
        await self._leadership.start()
        if self._lending is not None:
            self._lending.start()

    async def resign(self) -> None:
        """Stop leading and campaigning; peers are still answered."""
        assert self._leadership is not None
        if self._lending is not None:
            self._lending.resign()
        await self._leadership.close()

    async def close(self) -> None:
        await self._transport.close()

    def _receive(self, peer: str, message: PeerMessage) -> None:
        if isinstance(message, Borrow | Lend):
            if self._lending is not None:
                self._lending.receive(peer, message)
            elif not self._is_warned:
                self._is_warned = True
                _logger.warning(
                    "peer %s has --lead per-service, this central has not: services are led by "
                    "one central until all have it",
                    peer,
                )
        elif isinstance(self.election, PaxosLease):
            self.election.receive(peer, message)
        else:
            raise ProtocolError("this central takes no part in a Paxos election")

    def _confirmed(self) -> float:
        assert isinstance(self.election, LeaseElection)
        return self.election.confirmed

    def _is_connected(self, peer: str) -> bool | None:
        link = self._transport.links.get(peer)
        return None if link is None else link.is_connected


def _make_election(membership: Membership, transport: PeerTransport, floor: EpochFloor) -> Election:
    if membership.is_paxos:
        return paxos_lease(membership, transport, floor)
    if not membership.election.startswith("etcd"):
        from sluicegate.election.redis import RedisElection

        return RedisElection(membership.election, membership.name, lease=membership.lease)
    try:
        from sluicegate.election.etcd import EtcdElection
    except ModuleNotFoundError as missing:
        raise ConfigError(f"an election by etcd needs another package: {missing}") from None
    user, password, hosts = etcd_hosts(membership.election)
    return EtcdElection(
        hosts, membership.name, lease=membership.lease, user=user, password=password
    )


def etcd_hosts(url: str) -> tuple[str | None, str | None, list[str]]:
    """User, password and endpoints of etcd://[USER:PASSWORD@]HOST:PORT,HOST:PORT,...

    etcds:// is the same with TLS.
    """
    scheme, _, rest = url.partition("://")
    login, at, hosts = rest.rpartition("@")
    user, _, password = login.partition(":")
    http = "https" if scheme == "etcds" else "http"
    endpoints = [f"{http}://{host.strip().rstrip('/')}" for host in hosts.split(",")]
    return (unquote(user) if at else None), (unquote(password) if at else None), endpoints


def paxos_lease(
    membership: Membership,
    transport: PeerTransport,
    floor: EpochFloor,
    *,
    is_candidate: bool = True,
) -> PaxosLease:
    """A member of a Paxos election whose messages the transport carries."""
    assert membership.path is not None
    return PaxosLease(
        membership.name,
        sorted(membership.urls),
        transport,
        membership.path,
        lease=membership.lease,
        is_candidate=is_candidate,
        floor=floor,
    )


def peer_tls(membership: Membership, ca_file: str | None) -> ssl.SSLContext | None:
    """Whom to trust with wss://; None: no peer has such a URL."""
    if not any(url.startswith("wss:") for url in membership.peers.values()):
        if ca_file is not None:
            raise ConfigError(f"a peer CA file ({ca_file}) is for peers with a wss:// URL")
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigError(f"cannot read the peer CA file {ca_file}: {error}") from None
