"""The messages between a node and a central, as values; `wire` encodes them as frames.

    node -> every central   Report   after each slot: all totals the central has not acknowledged
    node -> the leader      Ask      at any time: credit it needs, what it has used and gives back
    central -> node         Ack      of a Report, from every central, leading or not
    leader -> node          Quota    after each assignment, whole; and as soon as an Ask is granted

Credit is what a node may let through for a user. It is told in totals that only grow: `granted` by
the leader, `returned` by the node; what requests have used is `consumed` and what running ones have
reserved. A node admits a request while used + its cost <= granted - returned, of every limited
resource.

Nothing here is hurt by loss, doubling or reordering:

- Totals are cumulative since the node's boot. A report holds everything its central has not
  acknowledged yet, so each report stands for all before it, and a central books a report only
  when its sequence is higher than the last one it booked of that boot.
- A central that has booked less than a report takes for granted (it was restored from an older
  snapshot) does not book it; its Ack says how far it is, and the next report begins there.
- A total that the central knows nothing of (it is new, or has forgotten an idle user) is
  booked as `consumed - settled`: what no leader has acknowledged so far. If it knew an earlier
  boot of the node, the whole of `consumed` is new to it.
- An Ask books nothing. A Quota tells the total of all grants, so it may come twice or late. A lost
  one is repeated by the next; a node tells the highest total it knows, and the leader believes it.
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

__all__ = [
    "Ack",
    "Ask",
    "Credit",
    "Hint",
    "Line",
    "Lines",
    "Message",
    "Quota",
    "Report",
    "ServiceQuota",
    "Share",
    "UserAsk",
]


class Line(NamedTuple):
    """One user and one resource on one node. All but `held` count from the node's boot."""

    consumed: float
    rejected: int  # requests refused that would have used this resource
    requests: int  # requests that consumed some of it
    settled: float  # the part of `consumed` that a leader has acknowledged
    held: float  # what requests that are running now are expected to consume
    granted: float = 0.0  # the highest total that a leader has told
    returned: float = 0.0  # of it, what the node has given back


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


class Credit(NamedTuple):
    """One user and one resource on one node, as totals since the node's boot."""

    granted: float  # the highest total that a leader has told
    returned: float  # of it, what the node has given back
    used: float  # consumed, and reserved by running requests; it may be above granted - returned
    cost: float  # what a request is expected to cost


class UserAsk(NamedTuple):
    """Of how many requests a node needs the credit, and what it has of each limited resource."""

    requests: int  # 0: none, the node gives back or tells its usage
    resources: dict[str, Credit]  # empty: the node does not know yet which resources are limited
    waits: bool = False  # a request waits for it; else it is for those to come


class Ask(NamedTuple):
    """What `node` needs, has used and gives back, of users in whom something has changed."""

    node: str
    boot: int
    sent: float  # grows from one Ask of a boot to the next
    users: dict[str, dict[str, UserAsk]]  # service, user


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
    granted: float  # the total of all grants to the node
    safe: float  # for each slot in which the node is on its own


class Hint(NamedTuple):
    """What the leader says of a user besides the grants, in answer to an Ask."""

    wait: float  # seconds from `Quota.time` until it expects to grant more; 0: it is not empty
    recall: bool  # others wait: give back what no request has needed for a while
    may_float: bool  # one request may pass ahead of its grant, where none can wait for it


class ServiceQuota(NamedTuple):
    """The shares of one service on one node.

    A user without shares (an empty dict) has no limit until `Quota.version` changes. A user that
    was never listed has the amounts `newcomers` per slot until the leader tells of it.
    """

    users: "dict[str, dict[str, Share]] | PackedShares"
    newcomers: dict[str, float]
    hints: dict[str, Hint] = {}  # noqa: RUF012 (never changed)  by user; only in answers


class Quota(NamedTuple):
    """What a node may let through.

    A whole one is sent for each slot, with every user that has had traffic lately; another has
    only the users of whom there is something to say.
    """

    central: str
    epoch: int
    version: int  # of the limits; when it changes, users without a limit must be checked again
    slot: int
    time: float
    nodes: int  # how many nodes the limits are shared by
    whole: bool
    interval: float  # seconds that a node leaves between two Asks, at least
    services: dict[str, ServiceQuota]


Message: TypeAlias = Report | Ask | Ack | Quota
