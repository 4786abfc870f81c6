"""The end node of a Python service: `Node`, and the thread that talks to the centrals."""

from headgate.quota.node.node import Node
from headgate.quota.node.standing import CentralStanding, EndNodeStatus, QuotaStanding

__all__ = ["CentralStanding", "EndNodeStatus", "Node", "QuotaStanding"]
