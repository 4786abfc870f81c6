"""Many nodes, one coordinator: each user held to his limits over a whole fleet.

The central's side is a `Ledger` (what is left of each limit, and who was promised what) inside
a `CentralState`; the node's side is a `NodeState`. They are plain objects that are given the
time and the messages of `protocol`, without a socket, so that the same code runs in production
and in the simulator.
"""

from headgate.quota._book import Book
from headgate.quota._usage import Usage
from headgate.quota.central.central import Central
from headgate.quota.central_state import CentralState
from headgate.quota.entries import Entry, read_entries
from headgate.quota.ledger import Ledger
from headgate.quota.node import Node
from headgate.quota.node_state import NodeState
from headgate.quota.reporter import NodeStatus
from headgate.quota.service import BucketService, Service, installed_services
from headgate.quota.throttled import Throttled

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
