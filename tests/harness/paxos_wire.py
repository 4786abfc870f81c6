"""Members of a Paxos election in one event loop, over a transport that encodes and drops."""

import asyncio

from sluicegate.election.paxos import PaxosLease, decode, encode
from sluicegate.election.paxos.messages import Message

__all__ = ["End", "Wire"]


class Wire:
    """Carries bytes between the members of one test, in later turns of the loop."""

    def __init__(self) -> None:
        self.members: dict[str, PaxosLease] = {}
        self.cut: set[str] = set()  # members that hear nobody, and are heard by nobody
        self.leaders_at_once = 0

    def end(self, name: str) -> "End":
        return End(self, name)

    def carry(self, sender: str, to: str, raw: bytes) -> None:
        self.look()
        if not self.cut & {sender, to} and to in self.members:
            self.members[to].receive(sender, decode(raw))
        self.look()

    def look(self) -> None:
        leaders = [member for member in self.members.values() if member.is_leader]
        self.leaders_at_once = max(self.leaders_at_once, len(leaders))


class End:
    def __init__(self, wire: Wire, name: str) -> None:
        self._wire = wire
        self._name = name

    def send(self, peer: str, message: Message) -> None:
        raw = encode(message)
        asyncio.get_running_loop().call_soon(self._wire.carry, self._name, peer, raw)
