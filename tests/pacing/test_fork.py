"""A forked child is a node of its own that has counted nothing."""

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from sluicegate import Cluster, ManualClock
from sluicegate.stores import MemoryStore, RedisStore
from sluicegate.stores.store import SyncReply, SyncRequest
from tests.harness.children import Children
from tests.harness.servers import RedisServer
from tests.harness.waits import PATIENCE, wait_for


@pytest.fixture
def parent(redis_server: RedisServer) -> Iterator[Cluster]:
    with closing(RedisStore(redis_server.url)) as store:
        yield Cluster(store, "shop", sync_interval=0.05)


def total(redis_server: RedisServer) -> float:
    with closing(RedisStore(redis_server.url)) as store:
        observer = Cluster(store, "shop")
        hits = observer.counter("hits")
        observer.sync()
        return hits.history[-1][2]  # as the store has it, without what may have come since


@pytest.mark.parametrize("is_started", [False, True])
def test_counts_of_parent_and_children_add_up(
    parent: Cluster, redis_server: RedisServer, children: Children, is_started: bool
) -> None:
    hits = parent.counter("hits")
    hits.add(5)
    parent.sync()
    hits.add(2)  # not told before the fork
    if is_started:
        parent.start()

    def child() -> None:
        assert hits.local() == 0.0
        hits.add(10)
        parent.close()

    for _ in range(3):
        children.start(child)
    children.join()
    parent.close()
    assert total(redis_server) == 37.0


def test_the_child_has_a_thread_if_the_parent_had_one(
    parent: Cluster, redis_server: RedisServer, children: Children
) -> None:
    hits = parent.counter("hits")
    parent.start()
    wait_for(lambda: parent.status().syncs, seen=parent.status)

    def child() -> None:
        assert parent.status().is_started
        assert parent.node_id.endswith(f"-{os.getpid()}")
        hits.add(4)
        wait_for(lambda: parent.status().syncs >= 2, seen=parent.status)
        os._exit(0)  # without close: the thread must have told it

    children.start(child)
    children.join()
    parent.close()
    assert total(redis_server) == 4.0


def test_the_child_does_not_spend_what_the_parent_holds(
    parent: Cluster, redis_server: RedisServer, children: Children
) -> None:
    ads = parent.limiter("ads", target=1000, period=86_400)
    for _ in range(3):
        ads.acquire()
        parent.sync()

    def child() -> None:
        ads.acquire()
        assert ads._hold_left == 0.0
        assert ads.requests.local() == 1.0
        parent.close()

    children.start(child)
    children.join()
    assert ads.requests.local() == 3.0
    parent.close()


def test_a_fork_while_the_thread_syncs_never_hangs(
    parent: Cluster, redis_server: RedisServer, children: Children
) -> None:
    hits = parent.counter("hits")
    ads = parent.limiter("ads", target=100, period=0.05)  # turns its period all the time
    with parent:
        for _ in range(20):

            def child() -> None:
                for _ in range(10):
                    hits.add()
                    ads.acquire()
                parent.close()

            children.start(child)
            ads.acquire()
        children.join()
    assert total(redis_server) == 200.0


class SlowStore(MemoryStore):
    """Each sync holds a lock for a while, as a store in memory does under load."""

    def __init__(self) -> None:
        super().__init__()
        self._slow = threading.Lock()

    def sync(self, request: SyncRequest) -> SyncReply:
        with self._slow:
            time.sleep(0.005)
            return super().sync(request)


def test_a_lock_that_a_sync_holds_is_not_left_behind_in_the_child(children: Children) -> None:
    with Cluster(SlowStore(), sync_interval=0.01) as cluster:
        hits = cluster.counter("hits")

        def child() -> None:
            hits.add()
            cluster.close()
            assert cluster.status().syncs >= 1  # the last one at least

        for _ in range(20):
            children.start(child)
        children.join()
        syncs = cluster.status().syncs
        wait_for(lambda: cluster.status().syncs > syncs, seen=cluster.status)  # nor in the parent


def test_a_fork_does_not_wait_for_a_store_that_hangs(children: Children) -> None:
    release = threading.Event()

    class HangingStore(MemoryStore):
        def sync(self, request: SyncRequest) -> SyncReply:
            release.wait(PATIENCE)
            return super().sync(request)

    with Cluster(HangingStore(), sync_interval=0.01):
        begin = time.monotonic()
        child = children.start(lambda: os._exit(0))
        assert time.monotonic() - begin < PATIENCE / 2
        assert child in children.running
        release.set()


def test_a_child_of_multiprocessing_tells_its_counts_when_it_returns(
    parent: Cluster, redis_server: RedisServer
) -> None:
    """It ends with `os._exit`: what is registered with atexit is not called."""
    with parent:
        hits = parent.counter("hits")
        child = multiprocessing.get_context("fork").Process(target=hits.add, args=(1000,))
        child.start()
        child.join(PATIENCE)
        assert child.exitcode == 0
        assert hits.local() == 0.0
    assert total(redis_server) == 1000.0


def test_a_child_has_the_target_that_was_set(children: Children) -> None:
    cluster = Cluster(MemoryStore(), node_id="a", clock=ManualClock(1e9))
    ads = cluster.limiter("ads", target=10_000, period=60)
    ads.target = 10
    cluster.sync()

    def check() -> None:
        assert ads.target == 10.0

    children.start(check)
    children.join()


def test_a_child_without_a_store_has_the_first_guess_of_the_share(children: Children) -> None:
    cluster = Cluster(MemoryStore(), node_id="a", nodes=8, clock=ManualClock(1e9))
    ads = cluster.limiter("ads", target=600, period=60)
    cluster.sync()
    assert ads.requests.share == 1.0

    def check() -> None:
        assert ads.requests.share == 1 / 8

    children.start(check)
    children.join()
