"""Who is connected: what is known of one websocket, and why one is turned away.

A refusal is told in the close frame, after the handshake: many clients do not show the body of an
HTTP answer to a handshake, but all of them show the code and the reason of a close frame. The
first word of the reason says whose fault it is: `denied` (do not come again like this),
`overloaded` (come again later), `bad frame`, `replaced`, `stopping`, `failed` (ours).

`since` is wall time, `quota_sent` is monotonic; both in seconds.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

__all__ = ["CLASSIC", "FAILED", "STOPPING", "V1", "Connection", "Kind", "Refusal", "cut_reason"]

Kind: TypeAlias = str  # sluicegate.v1 or classic

V1: Kind = "sluicegate.v1"
CLASSIC: Kind = "classic"
_REASON_BYTES = 120  # a close frame has room for 123


@dataclass(slots=True)
class Connection:
    """One websocket, as the API and the monitor show it."""

    kind: Kind
    address: str  # of the other end, without its port
    port: int
    since: float
    node: str | None = None  # None: it has not said yet
    frames: int = 0
    last_slot: int | None = None  # of its last report
    quota_sent: float | None = None
    is_told: bool = False  # the log has it that the node has come
    ending: str | None = None  # why it ends, if that was said

    def __str__(self) -> str:
        # A name comes from the network: as a literal it cannot break a line of the log.
        return f"node {self.node!r} ({self.address}:{self.port}, {self.kind})"


class Refusal(NamedTuple):
    """Why a connection ends, in a close code and in words."""

    code: int
    reason: str

    @classmethod
    def denied(cls, why: str) -> "Refusal":
        return cls(1008, f"denied: {why}")

    @classmethod
    def overloaded(cls, why: str) -> "Refusal":
        return cls(1013, f"overloaded: {why}")

    @classmethod
    def bad_frame(cls, why: str) -> "Refusal":
        return cls(1007, f"bad frame: {why}")

    @classmethod
    def too_big(cls, why: str) -> "Refusal":
        return cls(1009, f"bad frame: {why}")

    @classmethod
    def replaced(cls, node: str) -> "Refusal":
        return cls(4001, f"replaced: another connection of node {node}")

    @property
    def kind(self) -> str:
        """The first words, by which refusals are counted."""
        return self.reason.partition(":")[0]


STOPPING = Refusal(1001, "stopping")
FAILED = Refusal(1011, "failed: the central made a mistake; its log has more")


def cut_reason(reason: str) -> str:
    """As much of it as fits a close frame, and can be written as UTF-8."""
    raw = reason.encode("utf-8", "replace")
    if len(raw) <= _REASON_BYTES:
        return raw.decode()
    return raw[: _REASON_BYTES - 3].decode("utf-8", "ignore") + "..."
