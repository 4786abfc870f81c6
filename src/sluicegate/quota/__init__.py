"""Many nodes, one coordinator: each user is held to their limits over a whole fleet.

    messages   what node and central send each other
    packed     report lines and shares as C arrays;  wire: messages as frames
    ledger     what the central knows: buckets, demand, assignment
    node       the end node;  central: the server

The algorithms are plain objects that are given the time and the messages, without a socket, so
that the same code runs in production and in the simulator: `Ledger` inside a `CentralState` on
the central's side, `NodeState` on the node's. A name is imported when it is first used: a node
does not load the central.
"""

from typing import TYPE_CHECKING

from sluicegate._lazy import lazy_exports

if TYPE_CHECKING:
    from sluicegate.quota.central.central import Central
    from sluicegate.quota.central.state import CentralState
    from sluicegate.quota.errors import Throttled
    from sluicegate.quota.ledger._service_ledger import ServiceLedger
    from sluicegate.quota.ledger._usage import Usage
    from sluicegate.quota.ledger.ledger import Ledger
    from sluicegate.quota.ledger.limit_entry import Entry, read_entries
    from sluicegate.quota.ledger.service import BucketService, Service, installed_services
    from sluicegate.quota.node.core._user_table import Ticket
    from sluicegate.quota.node.core.reporter import NodeStatus
    from sluicegate.quota.node.core.state import NodeState
    from sluicegate.quota.node.node import Node

__all__ = [
    "BucketService",
    "Central",
    "CentralState",
    "Entry",
    "Ledger",
    "Node",
    "NodeState",
    "NodeStatus",
    "Service",
    "ServiceLedger",
    "Throttled",
    "Ticket",
    "Usage",
    "installed_services",
    "read_entries",
]

__getattr__ = lazy_exports(
    globals(),
    {
        "sluicegate.quota.central.central": ["Central"],
        "sluicegate.quota.central.state": ["CentralState"],
        "sluicegate.quota.errors": ["Throttled"],
        "sluicegate.quota.ledger._service_ledger": ["ServiceLedger"],
        "sluicegate.quota.ledger._usage": ["Usage"],
        "sluicegate.quota.ledger.limit_entry": ["Entry", "read_entries"],
        "sluicegate.quota.ledger.ledger": ["Ledger"],
        "sluicegate.quota.ledger.service": ["BucketService", "Service", "installed_services"],
        "sluicegate.quota.node.core._user_table": ["Ticket"],
        "sluicegate.quota.node.core.reporter": ["NodeStatus"],
        "sluicegate.quota.node.core.state": ["NodeState"],
        "sluicegate.quota.node.node": ["Node"],
    },
)
