"""How many limiters share the limit, learned from Redis: usually one in each process.

Each limiter announces itself every few seconds, in the same round trip as a decision; its
name lapses when it does so no longer. A limiter that decides nothing does not count: it
takes no share either. The answer is used for lots, and while Redis is away.
"""

import math
import secrets

from sluicegate._validate import whole

__all__ = ["ANNOUNCE_EVERY", "NAME_LIVES", "Census"]

ANNOUNCE_EVERY = 3.0  # seconds
NAME_LIVES = 10.0


class Census:
    """The number of nodes: given, or learned (1 until then)."""

    def __init__(self, nodes: int | None) -> None:
        self.nodes = 1 if nodes is None else whole("nodes", nodes, 1)
        self.is_given = nodes is not None
        self.name = secrets.token_hex(8)
        self.due_at = math.inf if self.is_given else -math.inf

    def is_due(self, now: float) -> bool:
        """Whether to announce oneself with this call, which is then taken to do so."""
        if now < self.due_at:
            return False
        self.due_at = now + ANNOUNCE_EVERY
        return True

    def learn(self, nodes: int) -> None:
        self.nodes = max(nodes, 1)

    def rename(self) -> None:
        """In a forked child, which is a node of its own."""
        self.name = secrets.token_hex(8)
        self.due_at = math.inf if self.is_given else -math.inf
