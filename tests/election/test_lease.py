"""`PaxosLease` in real time: members in one event loop, over a transport that encodes and drops.

Leases are short, so each test waits for a second or so. Only order and bounds are asserted: a
machine that stands still delays an election, and changes no verdict.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sluicegate.election import Election
from sluicegate.election.paxos import PaxosLease
from sluicegate.election.paxos.durable import DurableFile
from sluicegate.election.paxos.messages import Accept, Accepted, Ballot, Leading, Prepare, Promise
from sluicegate.errors import ConfigError, ProtocolError, Unavailable
from tests.harness.paxos_wire import Wire
from tests.harness.waits import PATIENCE, wait_until

SHORT = {"lease": 0.4, "attempt": 0.1}


class Cluster:
    def __init__(self, folder: Path, names: Sequence[str] = "abc", witnesses: str = "") -> None:
        self.folder = folder
        self.names = list(names)
        self.witnesses = witnesses
        self.wire = Wire()

    def make(self, name: str, **options: Any) -> PaxosLease:
        return PaxosLease(
            name,
            self.names,
            self.wire.end(name),
            self.folder / f"{name}.paxos",
            is_candidate=name not in self.witnesses,
            **SHORT | options,
        )

    async def start(self, *names: str, **options: Any) -> None:
        for name in names or self.names:
            member = self.make(name, **options)
            await member.start()
            self.wire.members[name] = member

    async def leader(self, among: Sequence[str] = ()) -> PaxosLease:
        """The one that leads, and that all others that can hear it know of."""
        members = [self.wire.members[name] for name in among or self.wire.members]

        def elected() -> PaxosLease | None:
            found = next((member for member in members if member.is_leader), None)
            names = {(member.leader, member.epoch) for member in members}
            return found if found is not None and len(names) == 1 else None

        await wait_until(elected)
        found = elected()
        # Between two looks the lease may have ended, on a machine that stood still.
        return found if found is not None else await self.leader(among)

    async def close(self) -> None:
        for member in self.wire.members.values():
            await member.close()
        assert self.wire.leaders_at_once <= 1


def run(
    folder: Path,
    scenario: Callable[[Cluster], Awaitable[None]],
    names: Sequence[str] = "abc",
    witnesses: str = "",
) -> None:
    async def play() -> None:
        cluster = Cluster(folder, names, witnesses)
        try:
            await scenario(cluster)
        finally:
            await cluster.close()

    asyncio.run(asyncio.wait_for(play(), 2 * PATIENCE))


def test_one_of_three_leads_and_hands_over_when_it_closes(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start()
        first = await cluster.leader()
        assert first.epoch > 0
        epoch = first.epoch
        await first.close()
        assert not first.is_leader
        assert first.deadline == float("-inf")
        del cluster.wire.members[first.name]
        second = await cluster.leader()
        assert second.name != first.name
        assert second.epoch > epoch

    run(tmp_path, scenario)


def test_a_leader_that_is_cut_off_is_replaced_and_learns_of_it(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start()
        first = await cluster.leader()
        cluster.wire.cut = {first.name}
        others = [name for name in "abc" if name != first.name]
        second = await cluster.leader(others)
        assert not first.is_leader
        assert first.leader is None
        cluster.wire.cut = set()
        await wait_until(lambda: first.leader in others and first.epoch >= second.epoch)

    run(tmp_path, scenario)


def test_nobody_leads_without_a_majority(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start()
        leader = await cluster.leader()
        cluster.wire.cut = set("abc")
        await wait_until(lambda: not leader.is_leader)
        await asyncio.sleep(1.0)  # in which it would have won again
        assert not any(member.is_leader for member in cluster.wire.members.values())
        assert {member.leader for member in cluster.wire.members.values()} == {None}

    run(tmp_path, scenario)


def test_a_witness_votes_and_never_leads(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start()
        first = await cluster.leader()
        assert first.name in "ab"
        await first.close()
        other = "b" if first.name == "a" else "a"
        del cluster.wire.members[first.name]
        assert (await cluster.leader()).name == other
        witness = cluster.wire.members["c"]
        assert not witness.is_leader
        await wait_until(lambda: witness.leader == other)
        assert "witness" in repr(witness)

    run(tmp_path, scenario, witnesses="c")


def test_one_member_alone_leads_and_its_epoch_outlives_it(tmp_path: Path) -> None:
    epochs: list[int] = []

    async def scenario(cluster: Cluster) -> None:
        await cluster.start()
        epochs.append((await cluster.leader()).epoch)

    for _ in range(2):
        run(tmp_path, scenario, names="a")
    assert epochs[1] > epochs[0]


def test_a_process_that_was_frozen_reads_that_it_does_not_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluicegate.election.election import boottime

    async def scenario(cluster: Cluster) -> None:
        await cluster.start()
        leader = await cluster.leader()
        with monkeypatch.context() as context:
            context.setattr("sluicegate.election.paxos.lease.boottime", lambda: boottime() + 60.0)
            assert not leader.is_leader  # nothing has run since
            assert leader.leader is None

    run(tmp_path, scenario)


def test_changes_wake_those_that_wait(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        member = cluster.make("a")
        seen: list[tuple[bool, str | None]] = []

        async def watch() -> None:
            while True:
                await member.changed()
                seen.append((member.is_leader, member.leader))

        watcher = asyncio.create_task(watch())
        async with member:
            assert isinstance(member, Election)
            await wait_until(lambda: (True, "a") in seen)
        await wait_until(lambda: seen[-1] == (False, None))
        watcher.cancel()

    run(tmp_path, scenario, names="a")


def test_a_cancelled_wait_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        member = cluster.make("a")
        await member.start()
        cluster.wire.members["a"] = member
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(member.changed(), 0.001)
        assert not member._waiting

    run(tmp_path, scenario, names="ab")


def test_a_start_that_is_cancelled_gives_the_file_back(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        for turns in range(4):
            member = cluster.make("a")
            starting = asyncio.create_task(member.start())
            for _ in range(turns):
                await asyncio.sleep(0)
            starting.cancel()
            await asyncio.wait({starting})
            if not starting.cancelled():  # it was quicker
                await member.close()
        await cluster.start("a")

    run(tmp_path, scenario)


def test_a_close_that_is_cancelled_releases_all_the_same(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start()
        leader = await cluster.leader()
        closing = asyncio.create_task(leader.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert not leader.is_leader
        await leader.close()
        await cluster.start(leader.name)  # its file is free
        await cluster.leader()

    run(tmp_path, scenario)


def test_no_vote_is_given_while_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster) -> None:
        def fail(self: DurableFile, epoch: int) -> None:
            raise Unavailable("cannot write: No space left on device")

        await cluster.start()
        with monkeypatch.context() as context:
            context.setattr(DurableFile, "raise_epoch", fail)
            await wait_until(lambda: "no vote of" in caplog.text)
            await asyncio.sleep(0.3)
            assert not any(member.is_leader for member in cluster.wire.members.values())
            await asyncio.sleep(0.7)  # for some more attempts
            assert all(caplog.text.count(f"no vote of {name} for") <= 1 for name in "abc")
        await cluster.leader()

    run(tmp_path, scenario)


def test_two_members_are_told_that_they_have_no_fault_tolerance(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start()
        assert "2 members have no fault tolerance" in caplog.text
        leader = await cluster.leader()
        cluster.wire.cut = {leader.name}
        await wait_until(lambda: not leader.is_leader)

    with caplog.at_level(logging.INFO, "sluicegate.election"):
        run(tmp_path, scenario, names="ab")
    assert "leads, epoch" in caplog.text
    assert "no longer leads" in caplog.text


def test_a_member_with_a_longer_lease_gets_no_vote_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start("a", lease=0.8)
        await cluster.start("b", "c")
        assert (await cluster.leader("bc")).name in "bc"
        # a hears of the leader and waits, until it does not.
        await wait_until(lambda: cluster.wire.members["a"].leader in ("b", "c"))
        cluster.wire.members["a"]._broadcast([Prepare(Ballot(900, 1, "a"), 0.8)])
        await wait_until(lambda: "no vote for a: its lease is 0.8 s" in caplog.text)

    run(tmp_path, scenario)


def test_messages_that_cannot_be_of_their_sender_are_refused(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start("a")
        member = cluster.wire.members["a"]
        own, other = Ballot(1, 1, "a"), Ballot(1, 1, "b")
        for peer, message in (
            ("x", Prepare(Ballot(1, 1, "x"), 0.4)),
            ("a", Prepare(own, 0.4)),
            ("c", Prepare(other, 0.4)),
            ("b", Promise(other, 0, None, 0.0)),
            ("b", Accepted(other)),
        ):
            with pytest.raises(ProtocolError):
                member.receive(peer, message)
        member.receive("b", Accepted(own))
        await member.close()
        member.receive("b", Prepare(other, 0.4))  # late: it is ignored

    run(tmp_path, scenario)


def test_a_leader_that_hears_of_another_does_not_take_its_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two lead at once if a clock is wrong. With one epoch, nodes could not tell them apart."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.start()
        leader = await cluster.leader()
        own = leader.epoch
        other = "b" if leader.name == "a" else "a"
        leader.receive(other, Leading(Ballot(900, 1, other), own + 5))
        assert not leader.is_leader
        assert f"{other} leads in epoch {own + 5} at the same time" in caplog.text
        await wait_until(lambda: any(each.is_leader for each in cluster.wire.members.values()))

    run(tmp_path, scenario)


def test_an_epoch_far_ahead_of_all_that_is_known_is_refused(tmp_path: Path) -> None:
    """The clock of a member that has lost its disk may be wrong by a century."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.start()
        leader = await cluster.leader()
        far = leader.epoch + 100 * 365 * 86_400
        own, other = Ballot(1, 1, leader.name), Ballot(1, 1, "b" if leader.name == "a" else "a")
        for message in (Promise(own, far, None, 0.0), Accept(other, 0.4, far), Leading(other, far)):
            with pytest.raises(ProtocolError, match="was its clock wrong"):
                leader.receive(other.node, message)
        assert leader.epoch < far

    run(tmp_path, scenario)


def test_requests_beyond_the_bound_are_dropped(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start("a")
        member = cluster.wire.members["a"]
        for counter in range(1000):
            member.receive("b", Prepare(Ballot(counter, 1, "b"), 0.4))
        assert member._requests.qsize() == 256

    run(tmp_path, scenario)


def test_one_file_cannot_be_used_twice(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start("a")
        with pytest.raises(ConfigError, match="in use by another process"):
            await cluster.make("a").start()
        with pytest.raises(RuntimeError, match="was started before"):
            await cluster.wire.members["a"].start()

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("name", "members", "options", "complaint"),
    [
        ("a", "abc", {}, "members must be a list of names, got 'abc'"),
        ("a", ["b", "c"], {}, "members must include this one, 'a', got \\['b', 'c'\\]"),
        ("a", ["a", "b", "b"], {}, "members must be different"),
        ("a", ["a", ""], {}, "a member must not be empty"),
        ("a", ["a", 7], {}, "a member must be a str, got 7"),
        ("a", ["a", "x" * 101], {}, "at most 100 characters"),
        ("a", ["a"], {"lease": -1.0}, "lease must be from 0.01 to 3600, got -1.0"),
        ("a", ["a"], {"attempt": 1.0}, "attempt must be from 0.001 to 0.5, got 1.0"),
    ],
)
def test_wrong_arguments_raise_at_once(
    tmp_path: Path, name: str, members: Any, options: dict[str, float], complaint: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=complaint):
        PaxosLease(name, members, Wire().end(name), tmp_path / "a.paxos", **options)
