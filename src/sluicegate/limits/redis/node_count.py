"""`NodeCount`: how many limiters share the limit, read from Redis; usually one per process.

Each limiter announces itself every few seconds, in the same round trip as a decision; its
name lapses when it does so no longer. A limiter that decides nothing does not count: it
takes no share either. The answer is used for lots, and while Redis is away.
"""

import math
import secrets

from sluicegate._validate import check_whole

__all__ = ["ANNOUNCE_INTERVAL", "NAME_TTL", "NodeCount"]

ANNOUNCE_INTERVAL = 3.0  # seconds
NAME_TTL = 10.0


class NodeCount:
    """The number of nodes: given, or read from Redis (1 until then)."""

    def __init__(self, nodes: int | None) -> None:
        self.nodes = 1 if nodes is None else check_whole("nodes", nodes, 1)
        self.is_given = nodes is not None
        self.name = secrets.token_hex(8)
        self.due_at = math.inf if self.is_given else -math.inf

    def is_due(self, now: float) -> bool:
        """Whether to announce oneself with this call, which is then taken to do so."""
        if now < self.due_at:
            return False
        self.due_at = now + ANNOUNCE_INTERVAL
        return True

    def update(self, nodes: int) -> None:
        self.nodes = max(nodes, 1)

    def rename(self) -> None:
        """In a forked child, which is a node of its own."""
        self.name = secrets.token_hex(8)
        self.due_at = math.inf if self.is_given else -math.inf
