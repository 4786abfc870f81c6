"""`PeerTransport`: carries the messages of the election between the members, over websockets.

Each member opens one link to each peer. A proposal goes out over the link, its answer comes back
over it. So there are two connections between two members, one opened by each, and each carries the
proposals of the one that has opened it. Messages may be lost, but a peer is the one it says it is:
it has presented the peer token, and its name is one of the members.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from sluicegate.quota.central.net.connection import CloseReason, PeerHello
from sluicegate.quota.central.net.peer_link import PeerLink, PeerOptions
from sluicegate.quota.central.net.peer_wire import PeerMessage, is_answer

__all__ = ["AcceptedPeer", "PeerTransport"]


class AcceptedPeer(Protocol):
    """A connection that a peer has opened."""

    def send(self, message: PeerMessage) -> None:
        """Send a message, or drop it."""

    def close(self, close_reason: CloseReason) -> None:
        """End the connection."""


class PeerTransport:
    """The links of one member to its peers, and the connections that they have opened.

    `peers`: the URLs of the others by name. `receive` must be set before it starts.
    """

    def __init__(self, peers: Mapping[str, str], options: PeerOptions) -> None:
        self.links = {
            peer: PeerLink(
                peer, url, options, lambda *got: self.receive(*got), members=(options.name, *peers)
            )
            for peer, url in peers.items()
        }
        self._name = options.name
        self.receive: Callable[[str, PeerMessage], None] = _drop
        self._accepted: dict[str, AcceptedPeer] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"PeerTransport({list(self.links.values())})"

    def start(self) -> None:
        self._tasks = [asyncio.create_task(link.run()) for link in self.links.values()]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await asyncio.sleep(0)  # a connection that was being made is closed in the next turn

    @property
    def connected(self) -> list[str]:
        """The peers to which there is a link now."""
        return [peer for peer, link in self.links.items() if link.is_connected]

    def send(self, peer: str, message: PeerMessage) -> None:
        """Send a message, or drop it; neither waits nor raises."""
        way = self._accepted.get(peer) if is_answer(message) else self.links.get(peer)
        if way is not None:
            way.send(message)

    def refuse(self, hello: PeerHello) -> CloseReason | None:
        """Why a connection that begins with these words is refused; None: it is accepted.

        A member that counts another one twice, or knows of others, has another majority.
        """
        if hello.name not in self.links:
            expected = ", ".join(sorted(self.links))
            return CloseReason.denied(
                f"unknown peer {hello.name!r:.50}, expected one of: {expected}"
            )
        if hello.to not in (None, self._name):
            return CloseReason.denied(
                f"this is {self._name}, not {hello.to!r:.50}: check the URLs in --peers"
            )
        members = ",".join(sorted((self._name, *self.links)))
        if hello.members not in (None, members):
            return CloseReason.denied(
                f"--peers differs: expected {members}, got {hello.members!r:.60}"
            )
        return None

    def accept(self, peer: str, connection: AcceptedPeer) -> None:
        """A peer has connected; an earlier connection of it is closed."""
        before = self._accepted.get(peer)
        self._accepted[peer] = connection
        if before is not None:
            before.close(CloseReason.replaced(peer, "peer"))

    def forget(self, peer: str, connection: AcceptedPeer) -> None:
        """This connection has ended."""
        if self._accepted.get(peer) is connection:
            del self._accepted[peer]


def _drop(peer: str, message: PeerMessage) -> None:
    """The election has not begun."""
