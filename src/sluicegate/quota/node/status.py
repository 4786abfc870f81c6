"""The status of an end node, as `Node.status()` returns it and as Prometheus text.

Times are seconds. A worker that does not report knows what is in the shared memory: the slot, the
leader's epoch, the states of its users, and how many requests have waited. Connections, and for how
long the quota has been fresh or not, are known to the reporter only, and are empty elsewhere.
"""

from dataclasses import dataclass, field

from sluicegate._prometheus import Rows, family
from sluicegate.quota.node.core._scan import count_states
from sluicegate.quota.node.core._user_table import UserTable

__all__ = [
    "ConnectionStatus",
    "EndNodeStatus",
    "QuotaFreshness",
    "prometheus_text",
    "status_from_memory",
]


@dataclass(slots=True)
class ConnectionStatus:
    """The connection to one central. All counts are since this worker began to report."""

    central: str
    connected_at: float | None = None  # of the node's monotonic clock; None: not connected
    connections: int = 0
    failures: int = 0
    last_error: str | None = None
    acknowledged: int = 0  # the sequence of the report it acknowledged last
    frames_sent: int = 0
    frames_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0

    def mark_connected(self, now: float) -> None:
        self.connected_at = now
        self.connections += 1
        self.acknowledged = 0

    def mark_failed(self, problem: str) -> None:
        self.connected_at = None
        self.failures += 1
        self.last_error = problem

    @property
    def is_connected(self) -> bool:
        return self.connected_at is not None


@dataclass(frozen=True, slots=True)
class QuotaFreshness:
    """How fresh the quota is: none, fresh, reused or safe, for how long, and in all so far."""

    state: str
    seconds: float
    total_seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class EndNodeStatus:
    """What one worker of an end node knows."""

    node_id: str
    is_started: bool
    is_reporting: bool  # this worker is the one of its host that talks to the centrals
    reporter_pid: int | None  # the process that is, or was the last to be
    quota: QuotaFreshness | None = None
    slot: int | None = None
    epoch: int = -1
    leader: str | None = None
    leaders: dict[str, str] = field(default_factory=dict)  # of services that others lead for it
    nodes: int = 0  # that share the limits
    quota_age: int | None = None  # of the newest quota, in slots
    users: dict[str, dict[str, int]] = field(default_factory=dict)  # service, state: how many
    waits: int = 0  # requests of the host that have waited for credit
    waited_seconds: float = 0.0  # for how long, in sum
    unlimited: tuple[str, ...] = ()  # services that the leader has no limits for
    unacknowledged: dict[str, int] = field(default_factory=dict)  # lines, by central
    centrals: tuple[ConnectionStatus, ...] = ()


def status_from_memory(
    user_table: UserTable, now: float, *, is_started: bool, reporter_pid: int | None
) -> EndNodeStatus:
    """What every process of a host knows."""
    published = user_table.header.last_published()
    waits, waited_seconds = user_table.header.waits
    return EndNodeStatus(
        user_table.node_id,
        is_started=is_started,
        is_reporting=False,
        reporter_pid=reporter_pid,
        slot=user_table.window(now)[0],
        epoch=published["epoch"],
        nodes=published["nodes"],
        users=count_states(user_table, now),
        waits=waits,
        waited_seconds=waited_seconds,
    )


def prometheus_text(status: EndNodeStatus) -> str:
    """The status in the text format of Prometheus."""
    lines: list[str] = []

    def add(name: str, kind: str, help_text: str, rows: Rows) -> None:
        lines.extend(family(f"sluicegate_node_{name}", kind, help_text, rows))

    me = {"node": status.node_id}
    add(
        "reporting",
        "gauge",
        "1 in the worker that talks to the centrals",
        [(me, float(status.is_reporting))],
    )
    quota = status.quota
    if quota is not None:
        states = quota.total_seconds
        add(
            "quota_state",
            "gauge",
            "1 for the current state of the quota",
            [(me | {"state": state}, float(state == quota.state)) for state in states],
        )
        add(
            "quota_state_seconds_total",
            "counter",
            "Time the quota spent in each state",
            [(me | {"state": state}, seconds) for state, seconds in states.items()],
        )
    add(
        "leader_epoch",
        "gauge",
        "Epoch of the current leader, -1 if there is none",
        [(me, float(status.epoch))],
    )
    if status.quota_age is not None:
        add(
            "quota_age_slots",
            "gauge",
            "Age of the newest quota: 0 is fresh",
            [(me, float(status.quota_age))],
        )
    add(
        "users",
        "gauge",
        "Known users, by the state of their quota",
        [
            (me | {"service": service, "state": state}, float(count))
            for service, states in status.users.items()
            for state, count in states.items()
        ],
    )
    if status.is_reporting:  # of the whole host: in every worker's metrics they would add up
        add(
            "waits_total",
            "counter",
            "Requests that waited for credit from the leader",
            [(me, float(status.waits))],
        )
        add(
            "waited_seconds_total",
            "counter",
            "How long requests waited for credit, in sum",
            [(me, status.waited_seconds)],
        )
    add(
        "service_unlimited",
        "gauge",
        "1 for a service without limits at the leader",
        [(me | {"service": service}, 1.0) for service in status.unlimited],
    )
    add(
        "unacknowledged_lines",
        "gauge",
        "Report lines that a central has not acknowledged",
        [(me | {"central": central}, float(n)) for central, n in status.unacknowledged.items()],
    )
    for name, kind, help_text in _CONNECTION_METRICS:
        add(
            name,
            kind,
            help_text,
            [
                (me | {"central": one.central}, float(getattr(one, _ATTRIBUTES.get(name, name))))
                for one in status.centrals
            ],
        )
    return "\n".join(lines) + "\n"


_CONNECTION_METRICS = (
    ("connected", "gauge", "1 while the central is connected"),
    ("connections_total", "counter", "Connections established"),
    ("failures_total", "counter", "Failed connection attempts and closed connections"),
    ("frames_sent_total", "counter", "Reports and asks sent"),
    ("frames_received_total", "counter", "Acknowledgements and quotas received"),
    ("bytes_sent_total", "counter", "Bytes of frames sent"),
    ("bytes_received_total", "counter", "Bytes of frames received"),
)
_ATTRIBUTES = {"connected": "is_connected"} | {
    name: name.removesuffix("_total")
    for name, _, _ in _CONNECTION_METRICS
    if name.endswith("_total")
}
