"""`Membership`: the centrals of a fleet by name, and how they elect their leader.

    --name a --peers a=ws://10.0.0.1:7411,b=ws://10.0.0.2:7411,c=ws://10.0.0.3:7411
    --election paxos

All members are given the same list; each finds itself in it by its name. With `paxos` they elect
among themselves. With `etcd://` or `redis://` the list is not needed for the election; it lets a
standby tell where the leader is, and a central that starts take the state of a peer.

Everything wrong is a `ConfigError` that has the value and what was expected.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluicegate.errors import ConfigError
from sluicegate.quota.urls import central_urls

__all__ = ["LEAD_ALL", "LEAD_CHOICES", "Membership", "check_membership", "parse_peers"]

PAXOS = "paxos"
LEAD_ALL, LEAD_PER_SERVICE = LEAD_CHOICES = ("all", "per-service")
_STORES = ("etcd://", "etcds://", "redis://", "rediss://", "unix://")
_EXPECTED_ELECTION = "paxos, etcd://HOST:PORT,... or redis://..."
_EXPECTED_PEERS = "NAME=URL,NAME=URL,..."
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")  # it is sent in a header
_MAX_MEMBERS = 15
_DEFAULT_LEASE = 2.0
_MIN_LEASE, _MAX_LEASE = 0.4, 60.0


@dataclass(frozen=True, slots=True)
class Membership:
    """`urls`: of all members by name, this one included, as ws:// or wss://."""

    name: str
    urls: Mapping[str, str]
    election: str
    lease: float = _DEFAULT_LEASE
    lends: bool = False  # the leader lends services to the others
    path: Path | None = None  # what the member of a Paxos election must not forget

    @property
    def peers(self) -> dict[str, str]:
        """The URLs of the others."""
        return {name: url for name, url in self.urls.items() if name != self.name}

    @property
    def is_paxos(self) -> bool:
        return self.election == PAXOS


def parse_peers(text: str) -> dict[str, str]:
    """The members in NAME=URL,NAME=URL,..."""
    peers: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, url = part.partition("=")
        if not equals:
            raise ConfigError(f"invalid peers: expected {_EXPECTED_PEERS}, got {part!r}")
        if name in peers:
            raise ConfigError(f"invalid peers: {name!r} is listed twice")
        peers[name] = url
    return peers


def check_membership(
    name: str,
    peers: Mapping[str, str] | None,
    election: str | None,
    lease: float | None = None,
    state: str | Path | None = None,
    lead: str = LEAD_ALL,
) -> Membership | None:
    """The membership that these options describe; None: a central of its own."""
    if lead not in LEAD_CHOICES:
        raise ConfigError(f"invalid lead: expected {' or '.join(LEAD_CHOICES)}, got {lead!r}")
    lends = lead == LEAD_PER_SERVICE
    if lends and not (election and peers):
        raise ConfigError(
            f"services can be led by several centrals only: expected --peers {_EXPECTED_PEERS} and "
            f"--election {_EXPECTED_ELECTION} with --lead {lead}"
        )
    if election is None:
        if peers:
            raise ConfigError(
                f"{len(peers)} peers but no election: expected --election {_EXPECTED_ELECTION}"
            )
        if lease is not None:
            raise ConfigError(f"a lease of {lease!r} s but no election: expected --election, too")
        return None
    urls = _check_urls(name, peers or {})
    lease = _check_lease(_DEFAULT_LEASE if lease is None else lease)
    if election != PAXOS:
        if not election.startswith(_STORES):
            raise ConfigError(f"invalid election: expected {_EXPECTED_ELECTION}, got {election!r}")
        return Membership(name, urls, election, lease, lends)
    if len(urls) < 2:
        raise ConfigError(
            f"a Paxos election needs 2 members or more, better 3: expected --peers "
            f"{_EXPECTED_PEERS}, got {len(urls)}"
        )
    if state is None:
        raise ConfigError(
            "a Paxos election needs a file: expected --state FILE, whose neighbour FILE.election "
            "keeps what this member must not forget"
        )
    path = Path(state)
    return Membership(name, urls, election, lease, lends, path.with_name(f"{path.name}.election"))


def _check_urls(name: str, peers: Mapping[str, str]) -> dict[str, str]:
    urls: dict[str, str] = {}
    for member, url in peers.items():
        if not isinstance(member, str) or not _NAME.fullmatch(member):
            raise ConfigError(
                f"invalid name of a peer: expected 1 to 100 letters, digits, '.', '_' or '-', "
                f"got {member!r}"
            )
        try:
            (urls[member],) = central_urls(url)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"invalid URL of peer {member}: {error}") from None
    if len(set(urls.values())) < len(urls):
        raise ConfigError(f"peers must have different URLs, got {sorted(urls.values())}")
    if len(urls) > _MAX_MEMBERS:
        raise ConfigError(f"expected at most {_MAX_MEMBERS} peers, got {len(urls)}")
    if urls and name not in urls:
        raise ConfigError(
            f"this central is not one of the peers: expected --name to be one of "
            f"{', '.join(sorted(urls))}, got {name!r}"
        )
    return urls


def _check_lease(lease: float) -> float:
    if not isinstance(lease, int | float) or not _MIN_LEASE <= lease <= _MAX_LEASE:
        raise ConfigError(
            f"invalid lease: expected {_MIN_LEASE:g} to {_MAX_LEASE:g} s, got {lease!r}"
        )
    return float(lease)
