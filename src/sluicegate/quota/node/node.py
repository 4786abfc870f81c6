"""`Node`: the end node of a Python service.

    node = Node("ws://central:7411", node_id="web-1", services=["front"], token=...)
    node.start()
    ...
    node.throttle("front", user)                      raises Throttled, or the request may begin
    await node.throttle_async("front", user)          the same, and waits for the leader's answer
    node.consume("front", user, {"requests": 1})      it has ended

It has two parts: the `UserTable` decides and counts, in shared memory and compiled code; the
`ReporterThread` talks to the centrals. `allows`, `throttle` and `consume` are the table's own bound
methods, because a Python method around them would cost more than the decision.

A request that finds no credit may wait for the leader's answer: `wait` is for how many seconds at
most, None for as long as an answer takes. By default `throttle` and `allows` do not wait, and
`throttle_async` does. See `core/waiting.py`.

What a request reserves is released by its `consume`. Requests of a user are not told apart, unless
they have tickets: `ticket = node.throttle(..., ticket=True)`, then `node.consume(..., ticket)`.

- All workers of a service on a host make a `Node` with the same `node_id` and `shared`, and count
  together; one of them reports. It may be made, and started, before the workers are forked: each
  child then has a thread of its own.
- `start` does not wait for a central. Until one has answered, `fallback` applies.
- A node that was started lives until `close`, even if nothing refers to it. A process that exits
  without it (`sys.exit`, the end of its program) closes it then, which takes some seconds at most.
- A closed node cannot be started again; create a new one.
"""

import asyncio
import atexit
import logging
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, overload

from sluicegate._validate import check_positive
from sluicegate.clock import Clock
from sluicegate.errors import ConfigError
from sluicegate.quota.node.core import waiting
from sluicegate.quota.node.core._user_table import Ticket, UserTable
from sluicegate.quota.node.status import EndNodeStatus, prometheus_text, status_from_memory
from sluicegate.quota.urls import central_urls

if TYPE_CHECKING:
    import ssl

    from sluicegate.quota.node.reporter_thread import ReporterThread

__all__ = ["Node"]

_TOKEN = re.compile(r"[!-~]{1,500}")

log = logging.getLogger("sluicegate.quota.node")


class Node:
    """One end node, as seen by one process.

    `centrals`: the URL of a central, or those of several. `node_id`: the name of this host at the
    centrals, the same in all its workers and on no other host. `services`: what is throttled
    here. `token`: the centrals' node token. `shared`: the name or path of the workers' common
    memory. `fallback`: units per second of each resource for a user without a quota from a
    central. `ca_file`: the authorities to trust with `wss://`, instead of the system's.
    """

    def __init__(
        self,
        centrals: str | Iterable[str],
        *,
        node_id: str,
        services: Iterable[str],
        token: str | None = None,
        shared: str | None = None,
        fallback: Mapping[str, float] | None = None,
        slot_seconds: float = 1.0,
        ca_file: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.centrals = central_urls(centrals)
        self.node_id = _name("node_id", node_id, 200)
        if isinstance(services, str):
            raise TypeError(
                f"services must be a list of names, like [{services!r}], got {services!r}"
            )
        self.services = tuple(_name("service", service, 50) for service in services)
        if not self.services:
            raise ValueError(f"services must name at least one service, got {services!r}")
        if token is not None and not _TOKEN.fullmatch(token):
            raise ValueError("token must be 1 to 500 printable ASCII characters without spaces")
        self._token = token
        if not 0.1 <= check_positive("slot_seconds", slot_seconds) <= 3600.0:
            raise ValueError(f"slot_seconds must be from 0.1 to 3600, got {slot_seconds!r}")
        self._slot_seconds = slot_seconds
        self._tls = _tls(self.centrals, ca_file)
        self._user_table = UserTable(
            node_id,
            self.services,
            shared=shared,
            fallback=fallback,
            slot_seconds=slot_seconds,
            clock=clock,
        )
        self.allows = self._user_table.allows
        self.throttle = self._user_table.throttle
        self.consume = self._user_table.consume
        self._reporter_thread: ReporterThread | None = None
        self._abandoned: list[ReporterThread] = []  # the parent's, which must not be collected
        self._is_closed = False
        self._lifecycle_lock = threading.Lock()  # held while starting or closing
        os.register_at_fork(after_in_child=_start_in_child(weakref.ref(self)))

    def start(self) -> None:
        """Start the reporter thread, in the background. A second call does nothing."""
        # websockets is an extra: programs that limit without centrals do without it.
        from sluicegate.quota.node.link import LinkOptions
        from sluicegate.quota.node.reporter_thread import ReporterThread

        with self._lifecycle_lock:
            if self._is_closed:
                raise RuntimeError(f"node {self.node_id!r} is closed: create a new Node")
            if self._reporter_thread is None:
                options = LinkOptions(self._token, self._slot_seconds, self._tls)
                self._reporter_thread = ReporterThread(
                    self._user_table, self.node_id, self.services, self.centrals, options
                )
                atexit.unregister(self.close)  # the parent's, in a forked child
                atexit.register(self.close)

    def close(self) -> None:
        """Stop the thread and unmap the memory. The last worker reports that the node leaves."""
        atexit.unregister(self.close)
        with self._lifecycle_lock:
            self._is_closed = True
            reporter_thread, self._reporter_thread = self._reporter_thread, None
        if reporter_thread is not None:
            reporter_thread.stop()
        self._user_table.close()

    @overload
    async def throttle_async(
        self,
        service: str,
        user: str,
        expect: Mapping[str, float] | None = None,
        *,
        wait: float | None = None,
        ticket: Literal[False] = False,
    ) -> None: ...
    @overload
    async def throttle_async(
        self,
        service: str,
        user: str,
        expect: Mapping[str, float] | None = None,
        *,
        wait: float | None = None,
        ticket: Literal[True],
    ) -> Ticket: ...
    async def throttle_async(
        self,
        service: str,
        user: str,
        expect: Mapping[str, float] | None = None,
        *,
        wait: float | None = None,
        ticket: bool = False,
    ) -> Ticket | None:
        """As `throttle`. A request that finds no credit waits, without blocking the event loop.

        Nothing is reserved before it returns: a task that is cancelled gives nothing away.
        """
        given = Ticket() if ticket else None
        await waiting.throttle_async(self._user_table, service, user, expect, wait, given)
        return given

    def status(self) -> EndNodeStatus:
        """The status of the node, as far as this worker knows."""
        reporter_thread = self._reporter_thread
        if reporter_thread is None:
            if self._is_closed:
                return EndNodeStatus(self.node_id, False, False, None)
            now = self._user_table.now()
            return status_from_memory(self._user_table, now, is_started=False, reporter_pid=None)
        return reporter_thread.status()

    def metrics(self) -> str:
        """The status as Prometheus text. Of all workers, the one that reports has the most."""
        return prometheus_text(self.status())

    def _after_fork(self) -> None:
        self._lifecycle_lock = threading.Lock()  # a thread that is not here may have held the other
        reporter_thread, self._reporter_thread = self._reporter_thread, None
        if reporter_thread is None:
            return
        self._abandoned.append(reporter_thread)
        reporter_thread.abandon()
        try:
            self.start()
        except ConfigError:
            log.exception("node %s: cannot report from process %d", self.node_id, os.getpid())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)

    def __repr__(self) -> str:
        state = (
            "closed" if self._is_closed else "started" if self._reporter_thread else "not started"
        )
        return f"Node({list(self.centrals)}, node_id={self.node_id!r}, {state})"


def _name(what: str, name: str, most: int) -> str:
    """A name as the centrals take it."""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, got {name!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be encodable as UTF-8, got {name!r}") from None
    if not 1 <= size <= most:
        raise ValueError(f"{what} must have 1 to {most} bytes of UTF-8, got {name!r}")
    return name


def _start_in_child(node: "weakref.ref[Node]") -> Callable[[], None]:
    def start() -> None:
        alive = node()
        if alive is not None:
            alive._after_fork()

    return start


def _tls(
    centrals: tuple[str, ...], ca_file: str | os.PathLike[str] | None
) -> "ssl.SSLContext | None":
    if not any(url.startswith("wss:") for url in centrals):
        if ca_file is not None:
            raise ValueError(f"ca_file requires a wss:// central, got {list(centrals)}")
        return None
    import ssl  # takes as long to import as all the rest

    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise ConfigError(f"cannot load ca_file {ca_file!s}: {error}") from error
