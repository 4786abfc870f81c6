"""`ReporterThread`: the thread of a worker that runs the `Reporter`, or waits for its lock.

Every worker of a host has one. It tries for the host's lock ten times a second or less; the one
that has it makes the links to the centrals and moves messages between them and the `Reporter`,
until it is stopped. When it dies, however it dies, another has the lock at its next try and goes
on from the shared memory: totals are cumulative, so nothing is lost and nothing counted twice.

Rules:
- It sleeps until the reporter has something to send, and is woken when a request of any process on
  the host needs credit while an Ask may be sent. To poll for that every 5 ms took 2 to 4 % of a
  core (`asyncio` takes some 100 microseconds for a turn), on a host without any requests, too.
- The last worker that closes reports that the node leaves, so that its promised shares go back to
  the others at once. A worker that was not the reporter connects for it. Either takes three
  seconds at most: a machine may pause for one of them.
- A worker is present from the moment it is made, before its thread runs: a sibling that exits
  meanwhile must not take itself for the last.
- After a fork nothing of the parent's is used: `abandon` replaces its descriptors in the child.
- A service that the leader has no limits for is logged once: its users are all free, and a typo in
  its name looks the same.
- A leader that is away for two seconds is logged, and when it or another is heard.
- Any failure in here is logged and retried; the lock is released first.
"""

import asyncio
import contextlib
import logging
import os
import random
import selectors
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sluicegate.errors import Unavailable
from sluicegate.quota.messages import Ack, Quota
from sluicegate.quota.name_list import name_list
from sluicegate.quota.node.core._shared_header import SharedHeader
from sluicegate.quota.node.core._user_table import UserTable
from sluicegate.quota.node.core.quota_freshness import FreshnessTracker
from sluicegate.quota.node.core.reporter import Reporter, has_limits
from sluicegate.quota.node.link import Link, LinkOptions
from sluicegate.quota.node.reporter_lock import ReporterLock
from sluicegate.quota.node.status import EndNodeStatus, QuotaFreshness, status_from_memory

__all__ = ["ReporterThread"]

MAX_SLEEP = 1.0
# Asks are taken out of their ring at least so often: it has room for 512.
MAX_ASK_SLEEP = 0.05
# With many users there is credit to give back at any time; it is looked for no more often.
MIN_SLEEP = 0.02
# An ask that is there and was not taken is still being written.
UNFINISHED_ASK_SLEEP = 0.001
WATCH_SECONDS = 0.5
LEAVE_POLL_INTERVAL = 0.005
RETRY_DELAY = 1.0
LEAVE_TIMEOUT = 3.0
JOIN_TIMEOUT = 5.0
STATUS_TIMEOUT = 5.0
LOGGED_SECONDS = 2.0  # a leader that is away for less is not worth a line

log = logging.getLogger("sluicegate.quota.node")


class _EventLoop(asyncio.SelectorEventLoop):
    """Resolves host names also while the interpreter exits, when no thread can be started."""

    async def getaddrinfo(
        self, host: bytes | str | None, port: bytes | str | int | None, **options: int
    ) -> list[Any]:
        try:
            return await super().getaddrinfo(host, port, **options)
        except RuntimeError:
            return socket.getaddrinfo(host, port, **options)


class ReporterThread:
    """One thread with an event loop. Made in the process that it runs in."""

    def __init__(
        self,
        user_table: UserTable,
        node_id: str,
        services: Sequence[str],
        centrals: Sequence[str],
        options: LinkOptions,
    ) -> None:
        self._user_table = user_table
        self._node_id = node_id
        self._services = tuple(dict.fromkeys(services))
        self._centrals = tuple(centrals)
        self._options = options
        self._lock = ReporterLock(f"{user_table.path}.lock")
        self._lock.enter()  # or, while a last one is leaving, later in `_wait_for_lock`
        self._reporter: Reporter | None = None
        self._links: dict[str, Link] = {}
        self._freshness: FreshnessTracker | None = None
        # Services without limits, by the last whole Quota of each one's leader.
        self._unlimited: frozenset[str] = frozenset()
        # Leaders that are logged as away, and their services.
        self._missing: dict[str | None, list[str]] = {}
        self._has_left = False
        self._selector = selectors.EpollSelector()
        self._loop = _EventLoop(self._selector)
        self._stopping = asyncio.Event()
        self._has_work = asyncio.Event()
        self._sleeps_until = 0.0
        self._thread = threading.Thread(target=self._main, name="sluicegate-node", daemon=True)
        self._thread.start()

    # From other threads

    def stop(self) -> None:
        """End it, and wait for that."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(JOIN_TIMEOUT)
        if self._thread.is_alive():
            log.warning(
                "node %s: reporter thread did not stop within %g s", self._node_id, JOIN_TIMEOUT
            )

    def status(self) -> EndNodeStatus:
        """The status, read in the thread itself; Unavailable if it does not answer."""
        asked = asyncio.run_coroutine_threadsafe(self._status(), self._loop)
        try:
            return asked.result(STATUS_TIMEOUT)
        except TimeoutError:
            asked.cancel()
            raise Unavailable(
                f"reporter thread did not answer within {STATUS_TIMEOUT:g} s"
            ) from None

    def abandon(self) -> None:
        """In a forked child: release all descriptors that are the parent's.

        They are replaced and not closed. Their objects live on here and may close the numbers
        again; and to close an event loop would take its sockets out of the parent's epoll.
        """
        self._lock.release()
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
                if await self._wait_for_lock():
                    await self._run_reporter()
            except Exception:
                # Requests go on with the last quota, and another worker may do better.
                log.exception(
                    "node %s: reporting failed, retrying in %g s", self._node_id, RETRY_DELAY
                )
                self._lock.release()
                await self._pause(RETRY_DELAY)
        try:
            if not self._has_left and self._lock.take_if_last():
                await self._run_reporter()
        finally:
            self._lock.release()

    def _stop(self) -> None:
        self._stopping.set()
        self._has_work.set()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _wait_for_lock(self) -> bool:
        """Wait until this worker has the lock; False if it is stopped before."""
        while not self._lock.enter():
            await self._pause(0.1)
            if self._stopping.is_set():
                return False
        while not self._lock.take():
            await self._pause(0.1 + 0.1 * random.random())
            if self._stopping.is_set():
                return False
        return True

    async def _run_reporter(self) -> None:
        """Talk to the centrals until stopped; then, if this is the last worker, send the leave."""
        user_table = self._user_table
        reporter = Reporter(user_table, self._centrals)
        freshness = FreshnessTracker(user_table.now(), slot_seconds=self._options.slot_seconds)

        def receive(central: str, message: Ack | Quota) -> None:
            now = user_table.now()
            reporter.receive(now, central, message)
            if isinstance(message, Quota):
                if reporter.hears_all_leaders:
                    freshness.receive(now, message)
                if message.whole and message.epoch == reporter.epoch:
                    self._log_unlimited_services(
                        message,
                        [
                            service
                            for service in self._services
                            if service in message.services
                            or reporter.leads_unlimited(now, central, service)
                        ],
                    )
                if reporter.due(now) < self._sleeps_until - MIN_SLEEP:  # credit to give back
                    self._has_work.set()

        def disconnected(central: str) -> None:
            reporter.lose_connection(user_table.now(), central)

        links = {
            central: Link(
                central,
                self._options,
                now=user_table.now,
                receive=receive,
                disconnected=disconnected,
            )
            for central in self._centrals
        }
        running = [asyncio.create_task(link.run()) for link in links.values()]
        for task in running:
            task.add_done_callback(lambda _: self._has_work.set())
        watcher = AskWatcher(user_table.header, self._loop, self._has_work.set)
        self._reporter, self._links, self._freshness = reporter, links, freshness
        try:
            while not self._stopping.is_set():
                for task in running:
                    if task.done():
                        task.result()  # raises its error
                        raise RuntimeError("link task ended unexpectedly")
                self._has_work.clear()
                now = user_table.now()
                if now >= reporter.due(now) or user_table.header.has_asks:
                    for central, message in reporter.outgoing(now):
                        links[central].send(message)
                self._log_missing_leaders(reporter, now)
                await self._sleep(now, watcher)
            if self._lock.take_if_last():
                await self._leave()
        finally:
            watcher.stop()
            self._reporter, self._links, self._freshness = None, {}, None
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _log_missing_leaders(self, reporter: Reporter, now: float) -> None:
        missing = reporter.missing_leaders(now - LOGGED_SECONDS)
        if missing == self._missing:
            return
        self._missing = missing
        for central, services in missing.items():
            log.warning(
                "%s is not heard: users%s live on their safe shares",
                f"leader {central}" if central else "the leader of some services",
                f" of {name_list(services)}" if services else "",
            )
        if not missing:
            log.info(
                "leader %s is heard, epoch %d",
                reporter.status(now).leader or "none",
                reporter.epoch,
            )

    def _log_unlimited_services(self, quota: Quota, led: Sequence[str]) -> None:
        """Log the services that have lost their limits, never had any, or have got them.

        `led`: those whose limits are all in this Quota.
        """
        before = self._unlimited
        self._unlimited = before.difference(led).union(
            service
            for service in led
            if service not in quota.services or not has_limits(quota.services[service])
        )
        if self._unlimited == before:
            return
        for service in self._services:
            if service in self._unlimited - before:
                log.warning(
                    "central has no limits for service %r: its users are not limited",
                    service,
                )
            elif service in before - self._unlimited:
                log.info("central now has limits for service %r", service)

    async def _sleep(self, now: float, watcher: "AskWatcher") -> None:
        """Sleep until there may be something to send.

        A new ask is no reason to wake up before an Ask may be sent, nor while no central is
        connected: then asks are only kept from filling their ring.
        """
        assert self._reporter is not None
        seconds = min(max(self._reporter.due(now) - now, MIN_SLEEP), MAX_SLEEP)
        is_connected = any(link.status.is_connected for link in self._links.values())
        until_ask = self._reporter.can_ask_at - now if is_connected else MAX_ASK_SLEEP
        if until_ask > 0.0:
            seconds = min(seconds, until_ask, MAX_ASK_SLEEP)
        elif self._user_table.header.has_asks:
            seconds = UNFINISHED_ASK_SLEEP
        else:
            watcher.watch()
        self._sleeps_until = now + seconds
        alarm = self._loop.call_later(seconds, self._has_work.set)
        try:
            await self._has_work.wait()
        finally:
            alarm.cancel()

    async def _leave(self) -> None:
        """Send the last reports, and wait for the centrals that may answer."""
        assert self._reporter is not None
        self._has_left = True
        waiting = {}
        for central, report in self._reporter.leave(self._user_table.now()):
            self._links[central].send(report)
            waiting[central] = report.sequence
        end = self._loop.time() + LEAVE_TIMEOUT
        while waiting and self._loop.time() < end:
            await asyncio.sleep(LEAVE_POLL_INTERVAL)
            for central in list(waiting):
                status = self._links[central].status
                is_disconnected = status.failures > 0 and not status.is_connected
                if is_disconnected or status.acknowledged >= waiting[central]:
                    del waiting[central]
        self._reporter.end_leave(self._user_table.now())

    async def _status(self) -> EndNodeStatus:
        reporter, freshness = self._reporter, self._freshness
        pid = self._lock.reporter_pid()
        now = self._user_table.now()
        if reporter is None or freshness is None:
            return status_from_memory(self._user_table, now, is_started=True, reporter_pid=pid)
        known = reporter.status(now)
        state, seconds = freshness.state(now)
        waits, waited_seconds = self._user_table.header.waits
        return EndNodeStatus(
            self._node_id,
            is_started=True,
            is_reporting=True,
            reporter_pid=pid,
            quota=QuotaFreshness(state, seconds, freshness.totals(now)),
            slot=known.slot,
            epoch=known.epoch,
            leader=known.leader,
            leaders=known.leaders,
            nodes=known.nodes,
            quota_age=known.quota_age,
            users=known.users,
            waits=waits,
            waited_seconds=waited_seconds,
            unlimited=tuple(sorted(self._unlimited)),
            unacknowledged=known.unacknowledged,
            centrals=tuple(replace(link.status) for link in self._links.values()),
        )


class AskWatcher:
    """A thread that waits for asks of any process of the host, and tells the event loop.

    It sleeps in the kernel (`SharedHeader.wait_for_asks`), and holds no lock of Python meanwhile.
    `watch` is called by the event loop each time it wants to know of the next ask.
    """

    def __init__(
        self, header: SharedHeader, loop: asyncio.AbstractEventLoop, tell: Callable[[], None]
    ) -> None:
        self._header = header
        self._loop = loop
        self._tell = tell
        self._is_wanted = threading.Event()
        self._is_stopped = False
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        """Tell the event loop, once, as soon as there are asks."""
        self._is_wanted.set()
        if self._thread is None:  # not earlier: the last report is sent while no thread can start
            self._thread = threading.Thread(
                target=self._run, name="sluicegate-node-asks", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for that."""
        self._is_stopped = True
        self._is_wanted.set()
        while self._thread is not None and self._thread.is_alive():
            # Again and again: it may be just about to fall asleep.
            self._header.wake_reporter()
            self._thread.join(0.001)

    def _run(self) -> None:
        while not self._is_stopped:
            if self._header.wait_for_asks(WATCH_SECONDS):
                self._is_wanted.clear()
                if self._is_stopped:
                    return
                self._loop.call_soon_threadsafe(self._tell)
            self._is_wanted.wait()
