"""One candidate as a process: `python -m tests.election.campaign redis|etcd ADDRESS NAME GROUP`.

It writes a line whenever it begins or ends to lead: `leads EPOCH`, `stands by EPOCH`. The role is
read every few milliseconds, not awaited: what counts is what `is_leader` says.
"""

import asyncio
import sys

from sluicegate.election import Election, EtcdElection, RedisElection

LEASE = 1.0


def candidate(kind: str, address: str, name: str, group: str) -> Election:
    if kind == "redis":
        return RedisElection(address, name, group=group, lease=LEASE)
    return EtcdElection(address.split(","), name, group=group, lease=LEASE)


async def main() -> None:
    async with candidate(*sys.argv[1:]) as election:
        led = None
        while True:
            if election.is_leader != led:
                led = election.is_leader
                print("leads" if led else "stands by", election.epoch, flush=True)  # noqa: T201
            await asyncio.sleep(0.002)


if __name__ == "__main__":
    asyncio.run(main())
