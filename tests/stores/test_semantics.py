"""All stores give the answers of `PlainStore`, whatever is lost, late, repeated or gone.

Numbers are multiples of a quarter, so all of them are exact and answers can be compared with `==`.
The time is given by the test, to Redis as well.
"""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.stores import MemoryStore, RedisStore
from sluicegate.stores.store import (
    FOLD_AFTER,
    CounterKey,
    CounterUpdate,
    SyncRequest,
)
from tests.harness.servers import RedisServer
from tests.harness.store_requests import RedisAt
from tests.harness.waits import PATIENCE
from tests.stores.plain_store import PlainStore

START = 2_000_000_000.0
FAR = START + 1e8  # the end of all periods: here no counter expires
PERIOD = 2.0  # short, so that rates have led for a while when a period turns
LIVE_FOR = 6.0
LONGEST_DELAY = FOLD_AFTER / 2  # of a request, and of a silence after which a node takes a new name

clusters = itertools.count()


@pytest.fixture(scope="module")
def redis_stores(redis_process: RedisServer) -> Iterator[list[RedisAt]]:
    redis_process.freshen()
    stores = [RedisStore(redis_process.url, timeout=PATIENCE)]
    stores.append(RedisStore(redis_process.url, "go:", "go", timeout=PATIENCE))
    yield [RedisAt(store) for store in stores]
    for store in stores:
        store.close()


class Node:
    """Counts, and makes requests as a `Cluster` does."""

    def __init__(self, name: str, time: float) -> None:
        self.name = name
        self.lives = 0
        self.begin = START
        self.restart(time)

    def restart(self, time: float) -> None:
        self.lives += 1
        self.number = 0
        self.heard_at = time
        self.counts: dict[tuple[int, float], tuple[float, int]] = {(0, self.begin): (0.0, 0)}
        self.claims: dict[int, tuple[float, float, float, float]] = {}

    def count(self, counter: int, amount: float) -> None:
        total, count = self.counts.get((counter, self.begin), (0.0, 0))
        self.counts[counter, self.begin] = (total + amount, count + 1)

    def turn(self) -> None:
        self.begin += PERIOD
        for counter in {counter for counter, _ in self.counts}:
            self.counts.setdefault((counter, self.begin), (0.0, 0))

    def request(self, cluster: str, time: float, may_fold: bool) -> SyncRequest:
        if time - self.heard_at > LONGEST_DELAY:
            self.restart(time)
        self.number += 1
        updates = []
        for (counter, begin), (total, count) in sorted(self.counts.items()):
            key = CounterKey(f"counter:{counter}", ("de", "a:b"), begin, FAR, PERIOD)
            claim = self.claims.get(counter, (1.0, 2.0, 1.0, 20.0))
            if begin < self.begin:
                claim = (0.0, 0.0, 1.0, 0.0)
            updates.append(CounterUpdate(key, total, count, *claim))
        return SyncRequest(
            cluster,
            f"{self.name}.{self.lives}",
            self.number,
            time,
            LIVE_FOR,
            0.0,
            may_fold,
            updates,
        )

    def receive(self, request: SyncRequest, time: float) -> None:
        self.heard_at = time
        for update in request.updates:
            if update.key.begin < self.begin:
                self.counts.pop((int(update.key.name[8:]), update.key.begin), None)


class World:
    """Some nodes, and stores that must agree with the plain one after each request."""

    def __init__(self, stores: list[RedisAt]) -> None:
        self.time = START
        self.cluster = f"world-{next(clusters)}"
        self.plain = PlainStore()
        self.memory = MemoryStore()
        self.stores = [self.memory, *stores]
        self.nodes = [Node(name, self.time) for name in "abc"]
        self.under_way: list[SyncRequest] = []
        self.delivered: list[SyncRequest] = []

    def step(self, action: tuple[object, ...]) -> None:
        match action:
            case ("wait", float(seconds)):
                self.time += seconds
            case ("count", int(node), int(counter), float(amount), claim):
                self.nodes[node].count(counter, amount)
                self.nodes[node].claims[counter] = claim
            case ("turn",):
                for node in self.nodes:
                    node.turn()
            case ("turn", int(node)):
                self.nodes[node].turn()
            case ("restart", int(node)):
                self.nodes[node].restart(self.time)
            case ("sync", int(node), str(fate), bool(may_fold)):
                self.sync(self.nodes[node], fate, may_fold)
            case ("deliver", int(place)):
                if self.under_way:
                    self.deliver(self.under_way.pop(place % len(self.under_way)))
            case ("repeat", int(place)):
                if self.delivered:
                    self.deliver(self.delivered[place % len(self.delivered)])
            case _:
                raise AssertionError(action)

    def sync(self, node: Node, fate: str, may_fold: bool) -> None:
        request = node.request(self.cluster, self.time, may_fold)
        if fate == "is late":
            self.under_way.append(request)
        elif fate != "is lost":
            self.deliver(request)
            if fate == "is answered":
                node.receive(request, self.time)

    def deliver(self, request: SyncRequest) -> None:
        """The request reaches the store now. A store's time is its own."""
        if self.time - request.time > LONGEST_DELAY:
            return
        self.delivered.append(request)
        now = request._replace(time=self.time)
        expected = self.plain.sync(now)
        for store in self.stores:
            assert store.sync(now) == expected, store


nodes = st.integers(0, 2)
counters = st.integers(0, 1)
quarters = st.integers(0, 40).map(lambda number: number / 4)
claims = st.tuples(  # rate, want, unit, ceiling
    quarters, quarters, st.sampled_from([0.25, 0.5, 1.0, 3.0]), st.integers(-4, 100).map(float)
)
fates = st.sampled_from(["is answered"] * 3 + ["is unanswered", "is late", "is lost"])
short_waits = st.sampled_from([0.25, 1.0, 2.0, 4.0, 6.25])
long_waits = st.sampled_from([30.0, 1000.0, 1790.0, FOLD_AFTER + 10.0, 2 * FOLD_AFTER, 90_000.0])
count = st.tuples(st.just("count"), nodes, counters, quarters, claims)
sync = st.tuples(st.just("sync"), nodes, fates, st.booleans())
wait = st.tuples(st.just("wait"), short_waits)
seldom = st.one_of(
    st.tuples(st.just("wait"), long_waits),
    st.tuples(st.just("restart"), nodes),
    st.tuples(st.just("deliver"), st.integers(0, 5)),
    st.tuples(st.just("repeat"), st.integers(0, 50)),
)
turn = st.one_of(st.tuples(st.just("turn")), st.tuples(st.just("turn"), nodes))
actions = st.one_of(count, sync, sync, sync, wait, turn, seldom)


@given(st.lists(actions, min_size=60, max_size=100))
def test_all_stores_answer_as_the_plain_one(
    redis_stores: list[RedisAt], story: list[tuple[object, ...]]
) -> None:
    world = World(redis_stores)
    for action in story:
        world.step(action)
    for node in world.nodes:  # and all that is not told yet
        world.sync(node, "is answered", may_fold=True)
