"""The messages between a node and a central, as values; `wire` encodes them as frames.

    node -> every central   Report   after each slot: all totals the central has not acknowledged
    node -> the leader      Ask      within a slot: users the node has no quota for, or has met anew
    central -> node         Ack      of a Report, from every central, leading or not
    leader -> node          Quota    after each assignment, whole; and at once as answer to an Ask

Nothing here is hurt by loss, doubling or reordering:

- Totals are cumulative since the node's boot. A report holds everything its central has not
  acknowledged yet, so each report stands for all before it, and a central books a report only
  when its sequence is higher than the last one it booked of that boot.
- A central that has booked less than a report takes for granted (it was restored from an older
  snapshot) does not book it; its Ack says how far it is, and the next report begins there.
- A total that the central knows nothing of (it is new, or has forgotten an idle user) is
  booked as `consumed - settled`: what no leader has acknowledged so far. If it knew an earlier
  boot of the node, the whole of `consumed` is new to it.
- An Ask books nothing. A Quota says how much a slot may take in all, not how much more.
- A node ignores a Quota of a lower epoch than the highest it has seen.

Amounts are floats in the resource's own unit, times are seconds of the sender's clock, slots
are whole numbers: slot n is the time from n * slot_seconds to (n + 1) * slot_seconds on the
leader's clock. Nodes follow that clock: an Ack gives back the node's own `sent`, so that the
node knows how old the `time` beside it is.
"""

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:  # compiled modules, which import this one
    from sluicegate.quota.packed._report_lines import PackedLines
    from sluicegate.quota.packed._shares import PackedShares

__all__ = ["Ack", "Ask", "Line", "Lines", "Message", "Quota", "Report", "ServiceQuota", "Share"]


class Line(NamedTuple):
    """One user and one resource on one node. All but `held` count from the node's boot."""

    consumed: float
    rejected: int  # requests refused that would have used this resource
    requests: int  # requests that consumed some of it
    settled: float  # the part of `consumed` that a leader has acknowledged
    held: float  # what requests that are running now are expected to consume


Lines: TypeAlias = dict[str, dict[str, dict[str, Line]]]  # service, user, resource


class Report(NamedTuple):
    """Everything `node` counted up to the end of `slot`, as far as it is not acknowledged."""

    node: str
    boot: int  # grows with every life of the node that has lost its counters
    sequence: int  # grows with every report of a boot
    epoch: int  # of the leader whose clock the slot is on; -1: none yet, it is the node's own
    since: int  # the sequence its central has acknowledged: the lines are what changed after it
    slot: int
    sent: float
    lines: "Lines | PackedLines"  # packed as they came off a wire: they read the same
    leaving: bool = False  # the node stops: nothing comes after this report
    settled_slot: int = -1  # up to which a leader has acknowledged everything; -1: none has


class Ask(NamedTuple):
    """The users of each service that `node` has met in `slot` and has no share for."""

    node: str
    boot: int
    slot: int
    sent: float
    users: dict[str, list[str]]


class Ack(NamedTuple):
    """Everything up to `sequence` of `boot` is booked at `central`; 0: nothing is."""

    central: str
    leads: bool
    epoch: int  # of its leadership, or of the last one it knows of
    boot: int
    sequence: int
    sent: float  # as it stood in the report
    time: float  # the central's clock when it answered


class Share(NamedTuple):
    amount: float  # for this slot
    safe: float  # for each slot in which the node is on its own


class ServiceQuota(NamedTuple):
    """The shares of one service on one node.

    A user without shares (an empty dict) has no limit until `Quota.version` changes. A user who is
    not listed is a newcomer, with the amounts `newcomers` per slot until the answer to an Ask.
    """

    users: "dict[str, dict[str, Share]] | PackedShares"
    newcomers: dict[str, float]


class Quota(NamedTuple):
    """What a node may let through in `slot`.

    A whole one replaces all earlier ones for the slot; another amends the users in it.
    """

    central: str
    epoch: int
    version: int  # of the limits; when it changes, users without a limit must be checked again
    slot: int
    time: float
    nodes: int  # how many nodes the limits are shared by
    whole: bool
    services: dict[str, ServiceQuota]


Message: TypeAlias = Report | Ask | Ack | Quota
