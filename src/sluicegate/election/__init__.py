"""Which of several centrals leads: one interface, and the ways to decide it.

async with PaxosLease("a", ["a", "b", "c"], transport, "/var/lib/sluicegate/a.paxos") as election:
    while True:
        if election.is_leader:
            act(election.epoch)
        await election.changed()
"""

from typing import TYPE_CHECKING

from sluicegate._lazy import lazy_exports

if TYPE_CHECKING:
    from sluicegate.election.alone import Alone
    from sluicegate.election.election import Election
    from sluicegate.election.etcd import EtcdElection
    from sluicegate.election.paxos import PaxosLease
    from sluicegate.election.redis import RedisElection

__all__ = ["Alone", "Election", "EtcdElection", "PaxosLease", "RedisElection"]

__getattr__ = lazy_exports(
    globals(),
    {
        "sluicegate.election.alone": ["Alone"],
        "sluicegate.election.election": ["Election"],
        "sluicegate.election.etcd": ["EtcdElection"],
        "sluicegate.election.paxos": ["PaxosLease"],
        "sluicegate.election.redis": ["RedisElection"],
    },
)
