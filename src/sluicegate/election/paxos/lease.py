"""`PaxosLease`: the asyncio shell around acceptor, proposer and observer of one member.

It reads the clock, keeps the timers and the file, and passes messages on. What leadership means is
decided in the state machines: nothing here can make a member lead longer than its deadline.

Votes are given by one task, in the order in which they were asked for, since an epoch must be on
the disk before the answer leaves. All else is done at once.
"""

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from sluicegate._validate import check_text
from sluicegate.election.election import Election, boottime
from sluicegate.election.paxos.acceptor import Acceptor
from sluicegate.election.paxos.durable import DurableFile
from sluicegate.election.paxos.messages import (
    Accept,
    Accepted,
    Leading,
    Message,
    Prepare,
    Promise,
    Proposal,
    Reject,
    Release,
)
from sluicegate.election.paxos.observer import Observer
from sluicegate.election.paxos.proposer import Proposer
from sluicegate.election.paxos.timing import Timing
from sluicegate.election.paxos.wire import LONGEST_NAME
from sluicegate.errors import ProtocolError, Unavailable

__all__ = ["PaxosLease", "Transport"]

_logger = logging.getLogger("sluicegate.election")

# Epochs begin at the time of a clock. None is believed that is ten years above all that is known
# here, or nodes would follow no other; a clock that stands at 1970 knows nothing of the time.
_EPOCHS_AHEAD = 10 * 365 * 86_400
_WRITTEN = 1_790_000_000  # when this was, in 2026

_MOST_WAITING = 256  # requests for a vote while the disk is slow; what is more is dropped


class Transport(Protocol):
    """Carries messages to other members. `wire` has them as bytes.

    What arrives is given to `PaxosLease.receive` on its event loop. Messages may be lost, doubled,
    late and in any order, but a peer is the one it says it is.
    """

    def send(self, peer: str, message: Message) -> None:
        """Send a message, or drop it. Must neither wait nor raise."""


class PaxosLease(Election):
    """One member of an election among `members`, which must be the same list on all of them.

    `path`: the member's own durable file, on a disk that outlives it. `is_candidate=False` makes it
    a witness, which votes and never leads. `lease`, `clock_error` and `attempt` are those of
    `Timing`, `floor` is that of `Proposer`.
    """

    def __init__(
        self,
        name: str,
        members: Sequence[str],
        transport: Transport,
        path: str | os.PathLike[str],
        *,
        lease: float = 2.0,
        clock_error: float = 0.01,
        attempt: float = 0.1,
        is_candidate: bool = True,
        floor: Callable[[], int] = lambda: 0,
    ) -> None:
        self.name = name
        self.members = _check_members(name, members)
        self.timing = Timing(lease, clock_error, attempt)
        self.is_candidate = is_candidate
        self._transport = transport
        self._floor = floor
        self._file = DurableFile(path, name)
        self._observer = Observer(self.timing)
        self._proposer: Proposer | None = None
        self._voter: asyncio.Task[None] | None = None
        self._requests: asyncio.Queue[tuple[str, Prepare | Accept | Release] | None]
        self._timer: asyncio.TimerHandle | None = None
        self._is_running = False
        self._reported: tuple[bool, int, str | None] = (False, 0, None)
        self._waiting: set[asyncio.Future[None]] = set()
        self._warned: set[str] = set()
        self._disk_problem: str | None = None  # that was logged, and has not passed

    def __repr__(self) -> str:
        role = "leader" if self.is_leader else "standby" if self.is_candidate else "witness"
        return f"PaxosLease({self.name}, {role}, leader={self.leader}, epoch={self.epoch})"

    @property
    def is_leader(self) -> bool:
        return boottime() < self.deadline

    @property
    def deadline(self) -> float:
        return float("-inf") if self._proposer is None else self._proposer.deadline

    @property
    def epoch(self) -> int:
        own = 0 if self._proposer is None else self._proposer.epoch
        return max(own, self._observer.epoch)

    @property
    def leader(self) -> str | None:
        if self.is_leader:
            return self.name
        leader = self._observer.leader(boottime())
        return None if leader == self.name else leader

    async def changed(self) -> None:
        change = asyncio.get_running_loop().create_future()
        self._waiting.add(change)
        try:
            await change
        finally:
            self._waiting.discard(change)

    async def start(self) -> None:
        if self._voter is not None:
            raise RuntimeError(f"{self!r} was started before")
        try:
            await asyncio.to_thread(self._file.open)
        except asyncio.CancelledError:
            self._file.close()  # when the thread is done with it
            raise
        now = boottime()
        acceptor = Acceptor(now, self._file.epoch, self.timing)
        if self.is_candidate:
            self._proposer = Proposer(
                now,
                self.name,
                self._file.restart,
                self.members,
                self.timing,
                random.Random(),
                self._floor,
            )
        self._requests = asyncio.Queue(_MOST_WAITING)
        self._voter = asyncio.create_task(self._vote(acceptor), name=f"{self.name} votes")
        self._is_running = True
        if len(self.members) == 2:
            _logger.warning(
                "2 members have no fault tolerance: none leads while one is down; add a witness"
            )
        self._update()

    async def close(self) -> None:
        if self._is_running:
            self._is_running = False
            if self._timer is not None:
                self._timer.cancel()
            releases = () if self._proposer is None else self._proposer.stop()
            self._report(is_closing=True)
            # By now nobody here can read that it leads.
            self._broadcast(releases)
            if self._requests.full():
                self._requests.get_nowait()
            self._requests.put_nowait(None)
        if self._voter is not None:
            await asyncio.shield(self._voter)

    def receive(self, peer: str, message: Message) -> None:
        """Handle a message that a peer has sent. Raises `ProtocolError` if it cannot be its own."""
        is_answer = isinstance(message, Promise | Reject | Accepted)
        if peer == self.name or peer not in self.members:
            raise ProtocolError(f"unknown peer: expected one of {self.members}, got {peer!r}")
        if message.ballot.node != (self.name if is_answer else peer):
            raise ProtocolError(f"{peer!r} sent a message with a ballot of another: {message}")
        if isinstance(message, Promise | Accept | Leading):
            self._check_epoch(peer, message.epoch)
        if self._is_running:
            self._handle(peer, message)
            self._update()

    def _check_epoch(self, peer: str, epoch: int) -> None:
        known = max(self.epoch, self._file.epoch, int(time.time()), _WRITTEN)
        if epoch > known + _EPOCHS_AHEAD:
            raise ProtocolError(
                f"epoch of {peer!r} must be at most {known + _EPOCHS_AHEAD}, got {epoch}: was its "
                f"clock wrong when its file was made?"
            )

    def _handle(self, peer: str, message: Message) -> None:
        now = boottime()
        if isinstance(message, Promise | Reject | Accepted):
            if self._proposer is not None:
                self._broadcast(self._proposer.receive(now, peer, message))
            return
        if isinstance(message, Leading | Release):
            is_news = self._observer.hear(now, message)
            if isinstance(message, Leading) and peer != self.name:
                self._hear_of_leader(peer, message.epoch)
            if is_news and peer != self.name and self._proposer is not None:
                self._proposer.expect(now, self._observer.until)
        if not isinstance(message, Leading) and not self._requests.full():
            self._requests.put_nowait((peer, message))

    def _hear_of_leader(self, peer: str, epoch: int) -> None:
        if self._proposer is None:
            return
        was_leader = self.is_leader
        self._proposer.hear(epoch)
        if was_leader and not self.is_leader:
            _logger.error(
                "%s stops leading in epoch %d: %s leads in epoch %d at the same time; check the "
                "clocks, the names and the lists of members",
                *(self.name, self._proposer.epoch, peer, epoch),
            )

    def _broadcast(self, messages: Iterable[Proposal]) -> None:
        for message in messages:
            for member in self.members:
                if member != self.name:
                    self._transport.send(member, message)
            self._handle(self.name, message)

    async def _vote(self, acceptor: Acceptor) -> None:
        """Give one vote after the other."""
        try:
            while (request := await self._requests.get()) is not None:
                peer, message = request
                reply = acceptor.receive(boottime(), message)
                if reply is None:
                    self._warn_of_longer_lease(peer, message)
                elif await self._make_durable(reply.durable_epoch):
                    if peer != self.name:
                        self._transport.send(peer, reply.answer)
                    elif self._is_running:
                        self._handle(peer, reply.answer)
                        self._update()
        finally:
            self._file.close()

    async def _make_durable(self, epoch: int) -> bool:
        if epoch > self._file.epoch:
            try:
                await asyncio.to_thread(self._file.raise_epoch, epoch)
            except Unavailable as error:
                if str(error) != self._disk_problem:  # it is asked several times in a second
                    self._disk_problem = str(error)
                    _logger.error("no vote of %s for epoch %d: %s", self.name, epoch, error)
                return False
            if self._disk_problem is not None:
                self._disk_problem = None
                _logger.info("%s votes again: its file was written", self.name)
        return True

    def _warn_of_longer_lease(self, peer: str, message: Message) -> None:
        if not isinstance(message, Prepare | Accept) or message.lease <= self.timing.lease:
            return
        if peer not in self._warned:
            self._warned.add(peer)
            _logger.warning(
                "no vote for %s: its lease is %g s, that of %s is %g s; give all members the same",
                peer,
                message.lease,
                self.name,
                self.timing.lease,
            )

    def _update(self) -> None:
        """After any event: report what has changed, and set the timer for what comes next."""
        self._report()
        if self._timer is not None:
            self._timer.cancel()
        now = boottime()
        time = float("inf") if self._proposer is None else self._proposer.next_time
        if now < self._observer.until:
            time = min(time, self._observer.until)
        if time < float("inf"):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, time - now), self._on_timer)

    def _on_timer(self) -> None:
        if self._proposer is not None:
            self._broadcast(self._proposer.tick(boottime()))
        self._update()

    def _report(self, *, is_closing: bool = False) -> None:
        state = (self.is_leader, self.epoch, self.leader)
        if state == self._reported and not is_closing:
            return
        if state[0] != self._reported[0]:
            what = "leads" if state[0] else "no longer leads"
            _logger.info("election of %s: %s, epoch %d", self.name, what, self.epoch)
        elif state[2] is None and self._reported[2] is not None:
            _logger.info("election of %s: no leader, last epoch %d", self.name, self.epoch)
        elif state != self._reported:
            _logger.info("election of %s: leader is %s, epoch %d", self.name, state[2], state[1])
        self._reported = state
        for change in self._waiting:
            if not change.done():
                change.set_result(None)


def _check_members(name: str, members: Sequence[str]) -> tuple[str, ...]:
    if isinstance(members, str):
        raise TypeError(f"members must be a list of names, got {members!r}")
    for member in members:
        if len(check_text("a member", member)) > LONGEST_NAME:
            raise ValueError(f"a member must have at most {LONGEST_NAME} characters: {member!r}")
    if len(set(members)) != len(members):
        raise ValueError(f"members must be different, got {list(members)!r}")
    if name not in members:
        raise ValueError(f"members must include this one, {name!r}, got {list(members)!r}")
    return tuple(members)
