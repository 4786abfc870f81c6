"""Checks a websocket handshake: token, origin, path, subprotocol and slot length; no I/O.

The path is `/` or `/throttle`. A client that asks for the subprotocol `sluicegate.v1` speaks it,
one that asks for none speaks the classic protocol. Another central asks for `sluicegate.peer.v1`,
has a token of its own, and says who it is, whom it means and who the members are (`PeerHello`). A
browser is not a node: a page that is open on this machine must not reach a central that listens
without a token, so an `Origin` that is not the central's own address is denied, and so is a `Host`
that is not this machine's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from sluicegate.quota.central.net.connection import (
    CLASSIC,
    PEER,
    V1,
    CloseReason,
    Kind,
    PeerHello,
)
from sluicegate.quota.central.net.tokens import Tokens, is_this_machine
from sluicegate.quota.wire import SUBPROTOCOL

__all__ = ["Handshake", "check_handshake"]

_PATHS = ("/", "/throttle")
_NO_HELLO = PeerHello()


@dataclass(frozen=True, slots=True)
class Handshake:
    """The parts of an upgrade request that decide whether it is accepted."""

    path: str
    subprotocols: Sequence[str] = ()
    authorization: str | None = None
    slot_seconds: str | None = None
    origin: str | None = None
    host: str | None = None
    hello: PeerHello = _NO_HELLO


def check_handshake(
    handshake: Handshake, tokens: Tokens, slot_seconds: float
) -> Kind | CloseReason:
    """The protocol of the connection, or why it is denied."""
    is_peer = PEER in handshake.subprotocols
    if not tokens.allows("peer" if is_peer else "node", handshake.authorization):
        fault = "invalid token" if handshake.authorization else "missing token"
        return CloseReason.denied(f"{fault}, expected Authorization: Bearer TOKEN")
    if (tokens.peer if is_peer else tokens.node) is None and not is_this_machine(handshake.host):
        return CloseReason.denied(
            f"without a token only localhost may connect, got Host {handshake.host}"
        )
    if handshake.origin is not None and not _is_own(handshake.origin, handshake.host):
        return CloseReason.denied(f"foreign origin {handshake.origin}")
    if handshake.path not in _PATHS:
        return CloseReason.denied(f"expected the path / or /throttle, got {handshake.path}")
    if is_peer:
        return PEER
    if not handshake.subprotocols:
        return CLASSIC
    if SUBPROTOCOL not in handshake.subprotocols:
        return CloseReason.denied(
            f"expected the subprotocol {SUBPROTOCOL} or none, got {handshake.subprotocols[0]}"
        )
    if handshake.slot_seconds is not None:
        try:
            seconds = float(handshake.slot_seconds)
        except ValueError:
            seconds = -1.0
        if seconds != slot_seconds:
            return CloseReason.denied(
                f"expected slots of {slot_seconds:g} s, got {handshake.slot_seconds}"
            )
    return V1


def _is_own(origin: str, host: str | None) -> bool:
    """Whether an origin is the central's own address."""
    try:
        return urlsplit(origin).netloc == host
    except ValueError:  # a bracket without its other half
        return False
