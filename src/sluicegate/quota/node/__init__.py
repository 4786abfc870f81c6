"""The end node of a Python service: `Node`, and the thread that talks to the centrals."""

from sluicegate.quota.node.node import Node
from sluicegate.quota.node.status import ConnectionStatus, EndNodeStatus, QuotaFreshness

__all__ = ["ConnectionStatus", "EndNodeStatus", "Node", "QuotaFreshness"]
