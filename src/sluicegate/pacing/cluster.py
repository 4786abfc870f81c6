"""`Cluster`: a node of a pacing cluster: its counters, its limiters, and its sync thread.

    with Cluster(RedisStore("redis://localhost"), "shop") as cluster:
        ads = cluster.limiter("ads", target=10_000, period=60)
        if ads.acquire():
            ...

- `start` does not wait for the store. Until it has answered, a limiter passes the line's part for
  one node of `nodes`.
- While the store is away, nodes go on with their last share, and catch up when it is back. That is
  logged once, and once more when it answers again.
- `close` syncs a last time: all counts are told and what is held is given back, so that other nodes
  can pass it. After that, limiters of this cluster let nothing pass. A process that exits without
  it (`sys.exit`, the end of its program) closes it then. The store stays open: others may share it.
- A forked child is a node of its own that has counted nothing. If the parent had its thread
  running, the child has one, too.
- Without `start`, call `sync()` every `sync_interval` seconds, or as a `ManualClock` moves.
"""

import asyncio
import contextlib
import logging
import math
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from datetime import datetime
from multiprocessing.util import Finalize, register_after_fork
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack, cast

from sluicegate._validate import check_between, check_number, check_positive, check_whole
from sluicegate.clock import Clock
from sluicegate.errors import SluicegateError
from sluicegate.pacing._cluster_clock import ClusterClock
from sluicegate.pacing._counter import ClusterCounter
from sluicegate.pacing._limiter import ClusterLimiter
from sluicegate.pacing.definitions import DefinitionsFile
from sluicegate.pacing.limiter_options import LimiterKeywords, check_name, options_from
from sluicegate.pacing.registry import Family, Registry
from sluicegate.pacing.schedule import Schedule
from sluicegate.pacing.state import ClusterState
from sluicegate.pacing.status import ClusterStatus, prometheus_text
from sluicegate.pacing.sync_thread import SyncThread
from sluicegate.stores.store import Store

__all__ = ["Cluster"]

_CLOSE_TIMEOUT = 3.0  # seconds for the last sync
_RETRY_AFTER = 0.1
_FORK_TIMEOUT = 0.1  # a sync of a store that answers takes some milliseconds

log = logging.getLogger("sluicegate.pacing")


class Cluster:
    """A node of the cluster `name`, whose nodes share their counters through `store`.

    `node_id`: the name of this node in logs and metrics; host name and process id by default.
    `sync_interval`: seconds between syncs. `nodes`: a first guess of how many nodes there are.
    `decay`: what the last rate and share weigh at the next sync.
    """

    def __init__(
        self,
        store: Store,
        name: str = "default",
        *,
        node_id: str | None = None,
        sync_interval: float = 2.0,
        decay: float = 0.5,
        nodes: int = 1,
        clock: Clock | None = None,
    ) -> None:
        _check_store(store)
        if not 0.0 <= check_number("decay", decay) < 1.0:
            raise ValueError(f"decay must be from 0 to less than 1, got {decay!r}")
        self._has_own_id = node_id is not None
        self._store = store
        self._clock = ClusterClock(clock)
        self.state = ClusterState(
            _check_cluster_name(name),
            _default_id() if node_id is None else check_name("node_id", node_id),
            self._clock,
            check_between("sync_interval", sync_interval, 0.01, 3600.0),
            decay,
            check_whole("nodes", nodes, 1),
        )
        self._registry = Registry(self.state, self._check_open)
        self._files: dict[Path, DefinitionsFile] = {}
        self._thread: SyncThread | None = None
        self._is_closed = False
        self._has_told_all = False  # the last sync was answered
        self._lifecycle_lock = threading.Lock()  # held while starting or closing
        self._sync_lock = threading.Lock()  # one sync at a time
        self._syncs = 0
        self._failures = 0
        self._answered_at = -math.inf
        self._last_error: str | None = None  # None after a sync that was answered
        self._forking: set[int] = set()  # threads that hold the sync lock while they fork
        self._has_warned = False  # that it was not started
        self.state.wake = self._warn_if_not_started
        self._at_exit: Finalize | None = None  # closes this node when the process ends
        _register_at_fork(weakref.ref(self))
        register_after_fork(self, Cluster._close_at_exit)

    @property
    def name(self) -> str:
        return self.state.name

    @property
    def node_id(self) -> str:
        return self.state.node_id

    def counter(
        self,
        name: str,
        *,
        period: float | None = None,
        begin: float | datetime | None = None,
        end: float | datetime | None = None,
        timezone: str | None = None,
    ) -> ClusterCounter:
        """The counter of this name, made at the first call. Without a period it never resets."""
        self._check_open()
        return self._registry.counter(name, Schedule(period, begin, end, timezone))

    def limiter(self, name: str, **options: Unpack[LimiterKeywords]) -> ClusterLimiter:
        """The limiter of this name, made at the first call.

        It needs `target`, and `period` or `begin` and `end`. The others, with their defaults, are
        in `limiter_options.py` and in docs/pacing.md.
        """
        self._check_open()
        return self._registry.limiter(name, options_from(options))

    def counter_family(
        self,
        name: str,
        *,
        labels: list[str] | tuple[str, ...],
        max_members: int = 1000,
        period: float | None = None,
        begin: float | datetime | None = None,
        end: float | datetime | None = None,
        timezone: str | None = None,
    ) -> Family[ClusterCounter]:
        """Counters by label values: `family.labels("de").add()`."""
        self._check_open()
        schedule = Schedule(period, begin, end, timezone)
        check_whole("max_members", max_members, 1)
        family = self._registry.family(name, schedule, labels, max_members)
        return cast(Family[ClusterCounter], family)

    def limiter_family(
        self,
        name: str,
        *,
        labels: list[str] | tuple[str, ...],
        max_members: int = 1000,
        **options: Unpack[LimiterKeywords],
    ) -> Family[ClusterLimiter]:
        """Limiters by label values, each with the whole target."""
        self._check_open()
        check_whole("max_members", max_members, 1)
        family = self._registry.family(name, options_from(options), labels, max_members)
        return cast(Family[ClusterLimiter], family)

    @property
    def limiters(self) -> dict[str, ClusterLimiter]:
        """All limiters without labels by name, those from files included."""
        found = list(self.state.limiters.items())
        return {name: limiter for (name, labels), (limiter, _) in found if not labels}

    def remove(self, name: str) -> None:
        """Remove a counter, a limiter or a family. Its last counts are told at the next sync."""
        self._registry.remove(name)

    def load(self, path: str | os.PathLike[str]) -> tuple[str, ...]:
        """Make the limiters of a file (TOML or JSON), and change them when the file changes.

        The file is looked at with each sync; another call reads it at once. Returns what is wrong
        with it, one line for each entry that cannot be used; raises `ConfigError` if a file that
        was not loaded before cannot be read at all.
        """
        self._check_open()
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"path must be a str or a path, got {path!r}")
        where = Path(path).absolute()
        file = self._files.get(where)
        if file is None:
            file = DefinitionsFile(where, self._registry)
            try:
                file.read()
            except BaseException:
                file.remove_all()
                raise
            self._files[where] = file
        else:
            file.reload()
        return file.problems

    def start(self) -> None:
        """Start the thread that syncs. A second call does nothing."""
        with self._lifecycle_lock:
            self._check_open()
            if self._thread is None:
                is_system_clock = self._clock.source is None
                self._thread = SyncThread(
                    self._try_sync, self._due, is_system_clock=is_system_clock
                )
                self.state.wake = self._thread.wake
                self._close_at_exit()

    def _close_at_exit(self) -> None:
        """Have `close` called at exit; unlike atexit, a child of multiprocessing does that too."""
        if self._thread is not None:
            self._at_exit = Finalize(None, self.close, exitpriority=0)

    def sync(self) -> None:
        """Tell the store everything, and take its answer. Raises `Unavailable` without one."""
        self._check_open()
        self._sync(is_last=False)

    def close(self, timeout: float = _CLOSE_TIMEOUT) -> None:
        """Sync a last time, within `timeout` seconds, and stop the thread."""
        deadline = time.monotonic() + check_positive("timeout", timeout)
        if self._at_exit is not None:
            self._at_exit.cancel()
        with self._lifecycle_lock:
            if self._is_closed:
                return
            self._is_closed = True
            thread, self._thread = self._thread, None
        self.state.end()
        # A store may take longer than we have: nobody waits for it.
        last = threading.Thread(target=self._end, args=(thread, deadline), daemon=True)
        last.start()
        last.join(max(deadline - time.monotonic(), 0.0))
        if last.is_alive() or not self._has_told_all:
            lost = "since its last sync" if self._syncs else "(it was never synced)"
            log.warning(
                "cluster %s: the final sync failed, what node %s counted %s is lost",
                *(self.name, self.node_id, lost),
            )

    def _end(self, thread: SyncThread | None, deadline: float) -> None:
        """Stop the thread, and sync until the store has everything or the time is over."""
        if thread is not None and not thread.stop(max(deadline - time.monotonic(), 0.0)):
            return
        while not self._try_sync(is_last=True):
            if time.monotonic() + _RETRY_AFTER >= deadline:
                return
            time.sleep(_RETRY_AFTER)
        self._has_told_all = True

    def status(self) -> ClusterStatus:
        """How this node is doing."""
        return ClusterStatus(
            self.name,
            self.node_id,
            is_started=self._thread is not None,
            is_in_touch=self.state.is_in_touch,
            nodes=self.state.nodes,
            since_answer=self._clock.now() - self._answered_at,
            syncs=self._syncs,
            failures=self._failures,
            last_error=self._last_error,
            counters=len(self.state.counters),
            limiters=len(self.state.limiters),
            problems=tuple(line for file in list(self._files.values()) for line in file.problems),
        )

    def metrics(self) -> str:
        """The status, and all counters and limiters, as Prometheus text."""
        counters = [
            (self._registry.labels_of("counter", key), counter)
            for key, counter in list(self.state.counters.items())
        ]
        limiters = [
            (self._registry.labels_of("limiter", key), limiter)
            for key, (limiter, _) in list(self.state.limiters.items())
        ]
        return prometheus_text(self.status(), counters, limiters)

    def _due(self) -> float:
        """Seconds until the next sync."""
        now = self._clock.now()
        return self.state.next_sync(now) - now

    def _sync(self, *, is_last: bool) -> None:
        with self._sync_lock:
            try:
                for file in list(self._files.values()):
                    file.reload_if_changed()
                if not self.state.knows_time and not is_last:
                    self._exchange(is_last=False)
                self._exchange(is_last=is_last)
            except Exception as error:
                self._failures += 1
                self._log_failure(error)
                self.state.fail(self._clock.now())
                raise
            self._syncs += 1
            self._answered_at = self._clock.now()
            if self._last_error is not None:
                self._last_error = None
                log.info("cluster %s: the store answers again", self.name)

    def _exchange(self, *, is_last: bool) -> None:
        pending = self.state.request(self._clock.now(), is_last=is_last)
        reply = self._store.sync(pending.request)
        self.state.receive(pending, reply, self._clock.now())

    def _try_sync(self, *, is_last: bool = False) -> bool:
        """Sync; whether the store has answered. A failure is counted and logged."""
        failures = self._failures
        with contextlib.suppress(Exception):
            self._sync(is_last=is_last)
        return self._failures == failures

    def _log_failure(self, error: Exception) -> None:
        """Log the first of a row of failures."""
        is_first = self._last_error is None
        self._last_error = f"{type(error).__name__}: {error}"
        if is_first and isinstance(error, SluicegateError):
            share = "its last share" if self._syncs else self._first_share()
            log.warning(
                "cluster %s: cannot sync: %s. Node %s goes on with %s",
                *(self.name, error, self.node_id, share),
            )
        elif is_first:
            log.error("cluster %s: sync failed: %s", self.name, error, exc_info=error)

    def _warn_if_not_started(self) -> None:
        """Called when a limiter has had more requests than it foresaw: it should sync."""
        if self._syncs + self._failures == 0 and not self._has_warned:
            self._has_warned = True
            log.warning(
                "cluster %s: limiters are asked and nothing is synced yet: use `with`, or call "
                "start(). Until then node %s passes %s",
                *(self.name, self.node_id, self._first_share()),
            )

    def _first_share(self) -> str:
        return f"1/{self.state.nodes} of each target (nodes={self.state.nodes})"

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(f"cluster {self.name!r} is closed: make a new one")

    def _before_fork(self) -> None:
        """Let a sync end, so that the child has no half of one; but a fork need not wait long."""
        if self._sync_lock.acquire(timeout=_FORK_TIMEOUT):
            self._forking.add(threading.get_ident())

    def _after_fork_in_parent(self) -> None:
        if threading.get_ident() in self._forking:
            self._forking.discard(threading.get_ident())
            self._sync_lock.release()

    def _after_fork(self) -> None:
        """In the child: be a new node, which has counted nothing."""
        self._lifecycle_lock = threading.Lock()  # threads that are not here may have held them
        self._sync_lock = threading.Lock()
        self._forking.clear()
        if self._is_closed:
            return
        if not self._has_own_id:
            self.state.node_id = _default_id()
        self.state.restart()
        self._registry.begin_anew()
        self._answered_at = -math.inf
        self._last_error = None
        self._syncs = self._failures = 0
        thread, self._thread = self._thread, None
        if thread is not None:
            self.start()

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
        state = "closed" if self._is_closed else "started" if self._thread else "not started"
        return f"Cluster({self._store!r}, {self.name!r}, node_id={self.node_id!r}, {state})"


def _check_store(store: Store) -> None:
    methods = (getattr(store, name, None) for name in ("sync", "close"))
    if isinstance(store, type) or not all(map(callable, methods)):
        raise TypeError(
            "store must be a MemoryStore(), a RedisStore(url) or have methods sync() and close(), "
            f"got {store!r}"
        )


def _check_cluster_name(name: str) -> str:
    check_name("name", name)
    if "{" in name or "}" in name:
        raise ValueError(
            f"name must not contain braces, which mark the hash tag of a key in Redis, got {name!r}"
        )
    return name


def _default_id() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def _register_at_fork(cluster: "weakref.ref[Cluster]") -> None:
    def calling(method: Callable[[Cluster], None]) -> Callable[[], None]:
        def call() -> None:
            alive = cluster()
            if alive is not None:
                method(alive)

        return call

    os.register_at_fork(
        before=calling(Cluster._before_fork),
        after_in_parent=calling(Cluster._after_fork_in_parent),
        after_in_child=calling(Cluster._after_fork),
    )
