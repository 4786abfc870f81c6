"""`Connection`, the record of one websocket, and `CloseReason`, the code and text that end it.

A refused connection gets its reason in a close frame, after the handshake: many clients do not
show the body of an HTTP answer to a handshake, but all of them show the code and the reason of a
close frame. The first word of the reason says whose fault it is: `denied` (the same request will
be denied again), `overloaded` (try again later), `bad frame`, `replaced`, `stopping`, `failed` (a
fault of the central).

`since` is wall time, `quota_sent` is monotonic; both in seconds.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

__all__ = [
    "CLASSIC",
    "FAILED",
    "HELLO_HEADERS",
    "PEER",
    "STOPPING",
    "V1",
    "CloseReason",
    "Connection",
    "Kind",
    "PeerHello",
    "truncate_reason",
]

Kind: TypeAlias = str  # sluicegate.v1, classic, or sluicegate.peer.v1

V1: Kind = "sluicegate.v1"
CLASSIC: Kind = "classic"
PEER: Kind = "sluicegate.peer.v1"
_REASON_BYTES = 120  # a close frame has room for 123


@dataclass(slots=True)
class Connection:
    """One websocket, as the API and the monitor show it."""

    kind: Kind
    address: str  # of the other end, without its port
    port: int
    since: float
    node: str | None = None  # None until its first message
    hello: "PeerHello | None" = None  # of another central, if it is one
    frames: int = 0
    last_slot: int | None = None  # of its last report
    quota_sent: float | None = None
    is_logged: bool = False  # "node connected" is in the log
    end_reason: str | None = None  # why it ends, if known

    def __str__(self) -> str:
        # A name comes from the network: as a literal it cannot break a line of the log.
        return f"{self.node!r} ({self.address}:{self.port}, {self.kind})"


# Of a `PeerHello`, field by field.
HELLO_HEADERS = ("Sluicegate-Peer", "Sluicegate-Peer-To", "Sluicegate-Members")


class PeerHello(NamedTuple):
    """What a central says when it connects to a peer. None: it does not say."""

    name: str | None = None
    to: str | None = None  # the peer, by the name that it has in the list
    members: str | None = None  # the list: all names, sorted, with commas between


class CloseReason(NamedTuple):
    """Why the central closes a connection: a close code and a text."""

    code: int
    reason: str

    @classmethod
    def denied(cls, why: str) -> "CloseReason":
        return cls(1008, f"denied: {why}")

    @classmethod
    def overloaded(cls, why: str) -> "CloseReason":
        return cls(1013, f"overloaded: {why}")

    @classmethod
    def bad_frame(cls, why: str) -> "CloseReason":
        return cls(1007, f"bad frame: {why}")

    @classmethod
    def too_big(cls, why: str) -> "CloseReason":
        return cls(1009, f"bad frame: {why}")

    @classmethod
    def replaced(cls, name: str, what: str = "node") -> "CloseReason":
        return cls(4001, f"replaced: another connection of {what} {name}")

    @property
    def kind(self) -> str:
        """The first words of the reason, by which closes are counted."""
        return self.reason.partition(":")[0]


STOPPING = CloseReason(1001, "stopping")
FAILED = CloseReason(1011, "failed: internal error (see the central's log)")


def truncate_reason(reason: str) -> str:
    """As much of the reason as fits a close frame, as valid UTF-8."""
    raw = reason.encode("utf-8", "replace")
    if len(raw) <= _REASON_BYTES:
        return raw.decode()
    return raw[: _REASON_BYTES - 3].decode("utf-8", "ignore") + "..."
