"""`Reporting`: the thread of a worker that reports, or waits for its turn to.

Every worker of a host has one. It tries for the host's lock ten times a second or less; the one
that has it makes the links to the centrals and moves messages between them and the `Reporter`,
until it is stopped. When it dies, however it dies, another has the lock at its next try and goes
on from the shared memory: totals are cumulative, so nothing is lost and nothing counted twice.

Rules:
- No request waits for this thread. It looks for newcomers every 5 ms, which is what a user whom
  the host has not met waits for before he is told to the leader.
- The last worker that closes says that the node leaves, so that its promised shares go back to
  the others at once. If that is one that did not report, it connects for it. Either takes three
  seconds at most: a machine may pause for one of them.
- A worker is present from the moment it is made, before its thread runs: a sibling that exits
  meanwhile must not take itself for the last.
- After a fork nothing of the parent's is used: `abandon` lets go of its descriptors in the child.
- A service that the leader has no limits for is told in the log, once: its users are all free, and
  a slip in its name looks the same.
- Whatever goes wrong in here is logged and tried again; the lock is dropped first.
"""

import asyncio
import contextlib
import logging
import os
import random
import selectors
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sluicegate.errors import Unavailable
from sluicegate.quota.messages import Ack, Quota, ServiceQuota
from sluicegate.quota.node.core._user_table import Host
from sluicegate.quota.node.core.quota_freshness import QuotaTimes
from sluicegate.quota.node.core.reporter import Reporter
from sluicegate.quota.node.link import Link, LinkOptions
from sluicegate.quota.node.reporter_lock import ReporterLock
from sluicegate.quota.node.status import EndNodeStatus, QuotaStanding, of_memory

__all__ = ["Reporting"]

LOOK_FOR_ASKS = 0.005
LOOK_WHEN_ALONE = 0.05
TRY_AGAIN = 1.0
LAST_WORDS = 3.0
JOIN_TIMEOUT = 5.0
STATUS_TIMEOUT = 5.0

log = logging.getLogger("sluicegate.quota.node")


class _Loop(asyncio.SelectorEventLoop):
    """Looks up names also while the interpreter exits, when no thread can be had for it."""

    async def getaddrinfo(
        self, host: bytes | str | None, port: bytes | str | int | None, **options: int
    ) -> list[Any]:
        try:
            return await super().getaddrinfo(host, port, **options)
        except RuntimeError:
            return socket.getaddrinfo(host, port, **options)


class Reporting:
    """One thread with an event loop. Made in the process that it runs in."""

    def __init__(
        self,
        host: Host,
        node_id: str,
        services: Sequence[str],
        centrals: Sequence[str],
        options: LinkOptions,
    ) -> None:
        self._host = host
        self._node_id = node_id
        self._services = tuple(dict.fromkeys(services))
        self._centrals = tuple(centrals)
        self._options = options
        self._lock = ReporterLock(f"{host.path}.lock")
        self._lock.enter()  # or, while a last one is leaving, later in `_wait_for_turn`
        self._reporter: Reporter | None = None
        self._links: dict[str, Link] = {}
        self._times: QuotaTimes | None = None
        self._unlimited: frozenset[str] = frozenset()  # of our services, as the leader said last
        self._has_left = False
        self._selector = selectors.EpollSelector()
        self._loop = _Loop(self._selector)
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name="sluicegate-node", daemon=True)
        self._thread.start()

    # From other threads

    def stop(self) -> None:
        """End it, and wait for that."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(JOIN_TIMEOUT)
        if self._thread.is_alive():
            log.warning("the reporting thread of node %s did not end in time", self._node_id)

    def status(self) -> EndNodeStatus:
        """How it stands, told by its own thread; Unavailable if that does not answer."""
        asked = asyncio.run_coroutine_threadsafe(self._status(), self._loop)
        try:
            return asked.result(STATUS_TIMEOUT)
        except TimeoutError:
            asked.cancel()
            raise Unavailable(
                f"the reporting thread did not answer within {STATUS_TIMEOUT:g} s"
            ) from None

    def abandon(self) -> None:
        """In a forked child: let go of all descriptors that are the parent's.

        They are covered and not closed. Their objects live on here and may close the numbers
        again; and to close an event loop would take its sockets out of the parent's epoll.
        """
        self._lock.drop()
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        sockets = [key.fd for key in self._selector.get_map().values()]
        for descriptor in (*sockets, self._selector.fileno()):
            os.dup2(nowhere, descriptor, inheritable=False)
        os.close(nowhere)

    # In the thread

    def _main(self) -> None:
        try:
            self._loop.run_until_complete(self._run())
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if await self._wait_for_turn():
                    await self._report()
            except Exception:
                # Requests go on by the quota in hand, and another worker may do better.
                log.exception("node %s cannot report; tried again", self._node_id)
                self._lock.drop()
                await self._pause(TRY_AGAIN)
        try:
            if not self._has_left and self._lock.is_last():
                await self._report()
        finally:
            self._lock.drop()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _wait_for_turn(self) -> bool:
        """Until the lock is ours; False if we are to stop before."""
        while not self._lock.enter():
            await self._pause(0.1)
            if self._stopping.is_set():
                return False
        while not self._lock.take():
            await self._pause(0.1 + 0.1 * random.random())
            if self._stopping.is_set():
                return False
        return True

    async def _report(self) -> None:
        """Talk to the centrals until we are to stop; then, if we are the last, say so."""
        host = self._host
        reporter = Reporter(host, self._centrals)
        times = QuotaTimes(host.now(), slot_seconds=self._options.slot_seconds)

        def receive(central: str, message: Ack | Quota) -> None:
            now = host.now()
            reporter.receive(now, central, message)
            if isinstance(message, Quota):
                times.receive(now, message)
                if message.whole and message.epoch == reporter.epoch:
                    self._look_for_unlimited(message)

        links = {
            central: Link(central, self._options, now=host.now, receive=receive)
            for central in self._centrals
        }
        running = [asyncio.create_task(link.run()) for link in links.values()]
        self._reporter, self._links, self._times = reporter, links, times
        try:
            while not self._stopping.is_set():
                for task in running:
                    if task.done():
                        task.result()  # raises why
                        raise RuntimeError("a link has ended by itself")
                now = host.now()
                if host.head.has_asks or now >= reporter.due(now):
                    for central, message in reporter.outgoing(now):
                        links[central].send(message)
                await asyncio.sleep(self._until_next(now))
            if self._lock.is_last():
                await self._leave()
        finally:
            self._reporter, self._links, self._times = None, {}, None
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _look_for_unlimited(self, quota: Quota) -> None:
        """Tell of services that have lost their limits, never had any, or have got them."""
        before = self._unlimited
        self._unlimited = frozenset(
            service for service in self._services if not _has_limits(quota.services.get(service))
        )
        if self._unlimited == before:
            return
        for service in self._services:
            if service in self._unlimited - before:
                log.warning(
                    "the central has no limits for the service %r: all of its users are free",
                    service,
                )
            elif service in before - self._unlimited:
                log.info("the central has limits for the service %r now", service)

    def _until_next(self, now: float) -> float:
        """A nap. Asks are of no use while nobody is there to be asked."""
        assert self._reporter is not None
        due = max(self._reporter.due(now) - now, 0.001)
        is_heard = any(link.standing.is_connected for link in self._links.values())
        return min(due, LOOK_FOR_ASKS if is_heard else LOOK_WHEN_ALONE)

    async def _leave(self) -> None:
        """Send the last reports; wait for those who may answer."""
        assert self._reporter is not None
        self._has_left = True
        waiting = {}
        for central, report in self._reporter.leave(self._host.now()):
            self._links[central].send(report)
            waiting[central] = report.sequence
        end = self._loop.time() + LAST_WORDS
        while waiting and self._loop.time() < end:
            await asyncio.sleep(LOOK_FOR_ASKS)
            for central in list(waiting):
                standing = self._links[central].standing
                is_away = standing.failures > 0 and not standing.is_connected
                if is_away or standing.acknowledged >= waiting[central]:
                    del waiting[central]

    async def _status(self) -> EndNodeStatus:
        reporter, times = self._reporter, self._times
        pid = self._lock.reporter()
        now = self._host.now()
        if reporter is None or times is None:
            return of_memory(self._host, now, is_started=True, reporter_pid=pid)
        known = reporter.status(now)
        state, seconds = times.state(now)
        return EndNodeStatus(
            self._node_id,
            is_started=True,
            is_reporting=True,
            reporter_pid=pid,
            quota=QuotaStanding(state, seconds, times.totals(now)),
            slot=known.slot,
            epoch=known.epoch,
            leader=known.leader,
            nodes=known.nodes,
            quota_age=known.quota_age,
            users=known.users,
            unlimited=tuple(sorted(self._unlimited)),
            unacknowledged=known.unacknowledged,
            centrals=tuple(replace(link.standing) for link in self._links.values()),
        )


def _has_limits(part: ServiceQuota | None) -> bool:
    """Whether somebody of a service may have a limit. A rule of its own may give shares alone."""
    return part is not None and (bool(part.newcomers) or any(part.users.values()))
