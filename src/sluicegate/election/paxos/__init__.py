"""`PaxosLease`: the centrals elect a leader among themselves; no other service is needed.

`Acceptor`, `Proposer` and `Observer` are state machines without I/O: they are given the time and
the message. `PaxosLease` gives them a clock, a file and a transport. docs/election.md has the rules
and a schedule for each that goes wrong without it.
"""

from typing import TYPE_CHECKING

from sluicegate._lazy import lazy_exports

if TYPE_CHECKING:
    from sluicegate.election.paxos.lease import PaxosLease, Transport
    from sluicegate.election.paxos.wire import decode, encode

__all__ = ["PaxosLease", "Transport", "decode", "encode"]

__getattr__ = lazy_exports(
    globals(),
    {
        "sluicegate.election.paxos.lease": ["PaxosLease", "Transport"],
        "sluicegate.election.paxos.wire": ["decode", "encode"],
    },
)
