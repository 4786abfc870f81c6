"""Who may open a websocket: decided from the head of its handshake, with no I/O.

The path is `/` or `/throttle`. Who asks for the subprotocol `sluicegate.v1` speaks it, who asks for
none speaks the classic protocol. A browser is no node: a page that somebody has open on this
machine must not reach a central that listens without a token, so an `Origin` that is not our own
address is turned away, and so is a `Host` that is not this machine's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from sluicegate.quota.central.net.connection import CLASSIC, V1, Kind, Refusal
from sluicegate.quota.central.net.tokens import Tokens, is_this_machine
from sluicegate.quota.wire import SUBPROTOCOL

__all__ = ["Handshake", "admit"]

_PATHS = ("/", "/throttle")


@dataclass(frozen=True, slots=True)
class Handshake:
    """The head of a request to open a websocket, as far as it matters."""

    path: str
    subprotocols: Sequence[str] = ()
    authorization: str | None = None
    slot_seconds: str | None = None
    origin: str | None = None
    host: str | None = None


def admit(handshake: Handshake, tokens: Tokens, slot_seconds: float) -> Kind | Refusal:
    """The protocol that is spoken from now on, or why there is none."""
    if not tokens.allows("node", handshake.authorization):
        wanted = "expected another token" if handshake.authorization else "a token is needed"
        return Refusal.denied(f"{wanted}: Authorization: Bearer TOKEN")
    if tokens.node is None and not is_this_machine(handshake.host):
        return Refusal.denied(f"without a token only for localhost, not for {handshake.host}")
    if handshake.origin is not None and urlsplit(handshake.origin).netloc != handshake.host:
        return Refusal.denied(f"not for pages of {handshake.origin}")
    if handshake.path not in _PATHS:
        return Refusal.denied(f"expected the path / or /throttle, got {handshake.path}")
    if not handshake.subprotocols:
        return CLASSIC
    if SUBPROTOCOL not in handshake.subprotocols:
        return Refusal.denied(
            f"expected the subprotocol {SUBPROTOCOL} or none, got {handshake.subprotocols[0]}"
        )
    if handshake.slot_seconds is not None:
        try:
            told = float(handshake.slot_seconds)
        except ValueError:
            told = -1.0
        if told != slot_seconds:
            return Refusal.denied(
                f"slots are {slot_seconds:g} s here, the node has {handshake.slot_seconds}"
            )
    return V1
