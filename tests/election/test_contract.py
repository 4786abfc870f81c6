"""What all elections promise, on their real backends.

A new election joins by one more line in `ELECTORATES`: see `tests/harness/elections.py`.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from sluicegate.election.election import Election, boottime
from tests.harness.elections import (
    AloneElectorate,
    Electorate,
    EtcdElectorate,
    Leaderships,
    PaxosElectorate,
    RedisElectorate,
    campaigning,
    wait_for_leader,
)
from tests.harness.etcd import EtcdServer
from tests.harness.servers import RedisServer
from tests.harness.waits import PATIENCE, wait_until

ELECTORATES = ["alone", "paxos", "redis", "etcd"]
WITH_A_BACKEND = ["paxos", "redis", "etcd", "etcd of three members"]
SHORT, LONG = 1.0, 6.0  # leases: a hand-over that takes less than the long one needs no expiry

Make = Callable[[str, float], Electorate]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, EtcdServer]]:
    """Clusters of etcd by their name, each started when it is first needed."""
    servers: dict[str, EtcdServer] = {}
    yield servers
    for server in servers.values():
        server.close()


@pytest.fixture
def make(
    servers: dict[str, EtcdServer],
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Make]:
    """Electorates by name. What they have taken away is brought back."""
    made: list[Electorate] = []

    def etcd(members: int) -> EtcdServer:
        name = f"etcd-{members}"
        if name not in servers:
            servers[name] = EtcdServer(tmp_path_factory.mktemp(name), members=members)
        return servers[name]

    def make_one(name: str, lease: float) -> Electorate:
        match name:
            case "alone":
                made.append(AloneElectorate(tmp_path_factory.mktemp("alone"), lease))
            case "paxos":
                made.append(PaxosElectorate(tmp_path_factory.mktemp("paxos"), lease))
            case "redis":
                server: RedisServer = request.getfixturevalue("redis_server")
                made.append(RedisElectorate(server, lease))
            case "etcd":
                made.append(EtcdElectorate(etcd(1), lease))
            case "etcd of three members":
                made.append(EtcdElectorate(etcd(3), lease, away=(0, 2)))
        return made[-1]

    yield make_one
    for electorate in made:
        electorate.bring_back()


@pytest.mark.parametrize("kind", ELECTORATES)
def test_at_most_one_leads_and_epochs_grow_while_candidates_come_and_go(
    kind: str, make: Make
) -> None:
    async def run() -> None:
        electorate = make(kind, SHORT)
        leaderships = Leaderships(electorate)
        candidates = {name: electorate.candidate(name) for name in electorate.names}
        async with leaderships.watching(*candidates.values()):
            await asyncio.gather(*(one.start() for one in candidates.values()))
            for _ in range(4):
                leader = await wait_for_leader(candidates.values())
                await asyncio.sleep(0.01)  # for it to be seen
                await leader.close()
                if len(candidates) > 1:
                    await wait_for_leader(candidates.values())
                again = candidates[leader.name] = electorate.candidate(leader.name)
                leaderships.add(again)
                await again.start()
            await wait_for_leader(candidates.values())
            await asyncio.sleep(0.01)
            await asyncio.gather(*(one.close() for one in candidates.values()))
        assert len(leaderships.in_order()) >= 5

    asyncio.run(run())


@pytest.mark.parametrize("kind", ELECTORATES)
def test_a_release_hands_over_before_the_lease_has_run_out(kind: str, make: Make) -> None:
    async def run() -> None:
        electorate = make(kind, LONG)
        async with campaigning(electorate) as candidates:
            leader = await wait_for_leader(candidates)
            assert leader.leader == leader.name
            epoch = leader.epoch
            others = [one for one in candidates if one is not leader]
            await wait_until(lambda: all(one.leader == leader.name for one in others))
            assert [one.epoch for one in others] == [epoch] * len(others)
            waiting = [asyncio.create_task(one.changed()) for one in [leader, *others]]
            await asyncio.sleep(0)
            released = boottime()
            await leader.close()
            assert not leader.is_leader
            assert leader.leader is None
            if not others:
                others = [electorate.candidate(leader.name)]
                await others[0].start()
            new = await wait_for_leader(others)
            assert boottime() - released < LONG
            assert new.epoch > epoch
            await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE)
            for one in others:
                await one.close()

    asyncio.run(run())


@pytest.mark.parametrize("kind", WITH_A_BACKEND)
def test_a_leader_stops_by_its_deadline_when_the_backend_is_gone(kind: str, make: Make) -> None:
    async def run() -> None:
        electorate = make(kind, SHORT)
        leaderships = Leaderships(electorate)
        async with campaigning(electorate) as candidates, leaderships.watching(*candidates):
            epoch = (await wait_for_leader(candidates)).epoch
            electorate.take_away()
            gone = boottime()
            while (now := boottime()) < gone + 1.5 * electorate.lease:
                leaders = [one for one in candidates if one.is_leader]
                # The time was read first, so a pause in between only makes it harder to lead.
                assert not leaders or now < gone + electorate.lease, leaders
                # Timers may be late; they need not be early, so this also ends by the clock alone.
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await candidates[0].changed()
            assert [one.leader for one in candidates] == [None] * len(candidates)
            electorate.bring_back()
            assert (await wait_for_leader(candidates)).epoch > epoch

    asyncio.run(run())


@pytest.mark.parametrize("kind", WITH_A_BACKEND)
def test_nobody_leads_without_the_backend(kind: str, make: Make) -> None:
    async def run() -> None:
        electorate = make(kind, SHORT)
        electorate.take_away()
        async with campaigning(electorate) as candidates:  # it starts all the same
            end = boottime() + 0.5 * electorate.lease
            while boottime() < end:
                assert not [one for one in candidates if one.is_leader]
                assert not [one for one in candidates if one.epoch]
                await asyncio.sleep(0.005)
            electorate.bring_back()
            await wait_for_leader(candidates)

    asyncio.run(run())


@pytest.mark.parametrize("kind", ELECTORATES)
def test_changed_waits_for_the_next_change(kind: str, make: Make) -> None:
    async def run() -> None:
        electorate = make(kind, LONG)
        async with campaigning(electorate) as candidates:
            leader = await wait_for_leader(candidates)
            waiting = asyncio.create_task(leader.changed())
            await asyncio.sleep(0.1)
            if leader.is_leader:  # as it does unless the machine has paused for seconds
                assert not waiting.done()
            closed = boottime()
            await leader.close()
            await asyncio.wait_for(waiting, PATIENCE)
            assert boottime() >= closed

    asyncio.run(run())


async def live(candidate: Election) -> None:
    """A whole life, with a place to be cancelled in each of its states."""
    await candidate.start()
    with suppress(TimeoutError):
        async with asyncio.timeout(0.02):
            await candidate.changed()
    await candidate.close()


@pytest.mark.parametrize("kind", ELECTORATES)
def test_a_candidate_cancelled_in_any_state_leaves_the_way_free(kind: str, make: Make) -> None:
    async def run(random: random.Random) -> None:
        electorate = make(kind, SHORT)
        leaderships = Leaderships(electorate)
        async with leaderships.watching():
            for _ in range(25):
                candidates = [electorate.candidate(name) for name in electorate.names]
                leaderships.add(*candidates)
                lives = [asyncio.create_task(live(one)) for one in candidates]
                for task in lives:
                    if random.random() < 0.5:
                        for _ in range(random.randrange(30)):
                            await asyncio.sleep(0)
                    else:
                        await asyncio.sleep(random.uniform(0.0, 0.02))
                    task.cancel()
                await asyncio.wait(lives)
                for task in lives:
                    assert task.cancelled() or task.exception() is None
                for candidate in candidates:
                    await candidate.close()
                    assert not candidate.is_leader
            last = [electorate.candidate(name) for name in electorate.names]
            leaderships.add(*last)
            await asyncio.gather(*(one.start() for one in last))
            await wait_for_leader(last)
            await asyncio.gather(*(one.close() for one in last))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run(random.Random(16)))
