"""Many nodes, one coordinator: each user held to his limits over a whole fleet.

The central's side is a `Ledger` (what is left of each limit, and who was promised what) inside
a `CentralState`; the node's side is a `NodeState`. They are plain objects that are given the
time and the messages of `protocol`, without a socket, so that the same code runs in production
and in the simulator.
"""

from sluicegate.quota._book import Book
from sluicegate.quota._usage import Usage
from sluicegate.quota.central.central import Central
from sluicegate.quota.central_state import CentralState
from sluicegate.quota.entries import Entry, read_entries
from sluicegate.quota.ledger import Ledger
from sluicegate.quota.node import Node
from sluicegate.quota.node_state import NodeState
from sluicegate.quota.reporter import NodeStatus
from sluicegate.quota.service import BucketService, Service, installed_services
from sluicegate.quota.throttled import Throttled

__all__ = [
    "Book",
    "BucketService",
    "Central",
    "CentralState",
    "Entry",
    "Ledger",
    "Node",
    "NodeState",
    "NodeStatus",
    "Service",
    "Throttled",
    "Usage",
    "installed_services",
    "read_entries",
]
