"""`layout="go"`: totals are shared with a Go node, which is played by plain Redis commands."""

import time
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from sluicegate import Cluster, ManualClock, Unavailable
from sluicegate.stores import RedisStore
from sluicegate.stores.store import KEEP_AFTER_END, CounterKey, SyncReply, SyncRequest
from tests.harness.servers import RedisServer
from tests.harness.store_requests import ALWAYS, RedisAt, Writer, minute, update

ALL_TIME = (
    int(datetime(1900, 1, 1).astimezone().timestamp()),
    int(datetime(3000, 1, 1).astimezone().timestamp()),
)


class GoNode:
    """What a Go node does to one counter: it adds, renews the expiry, and reads."""

    def __init__(self, server: RedisServer, name: str, begin: int, end: int, *labels: str) -> None:
        self.client = server.client
        self.key = "####".join([name, f"{begin}_{end}", "####".join(sorted(labels))])
        self.seconds = min(end - begin, 2**63 // 10**9)  # the longest of Go's durations

    def add(self, amount: float, count: int) -> None:
        self.client.incrbyfloat(f"{self.key}:sum", amount)
        self.client.incrby(f"{self.key}:cnt", count)
        self.client.expire(f"{self.key}:sum", self.seconds)
        self.client.expire(f"{self.key}:cnt", self.seconds)

    def read(self) -> tuple[float, int]:
        total, count = self.client.mget(f"{self.key}:sum", f"{self.key}:cnt")
        return float(total or 0), int(count or 0)


@pytest.fixture
def store(connect: Callable[..., RedisStore]) -> Iterator[RedisStore]:
    return connect("go:", layout="go")


def test_a_limiter_with_begin_and_end_is_shared_both_ways(
    redis_server: RedisServer, store: RedisStore
) -> None:
    begin = int(time.time())
    key = CounterKey("budget:pass", (), float(begin), begin + 86_400.0, 0.0)
    node = GoNode(redis_server, "go:shopbudget:pass", begin, begin + 86_400)
    node.add(10.5, 4)  # before ours came
    a, b = Writer(store, "a"), Writer(store, "b")
    assert a.tell(key, 2.0)[:2] == (12.5, 6)
    assert node.read() == (12.5, 6)
    node.add(1.0, 1)
    assert b.tell(key, 3.0)[:2] == (16.5, 10)
    assert a.tell(key, 4.0)[:2] == (18.5, 12)
    assert node.read() == (18.5, 12)


def test_a_periodic_limiter_counts_from_the_begin_of_its_period(
    redis_server: RedisServer, store: RedisStore
) -> None:
    node = GoNode(redis_server, "go:shopads:pass", *ALL_TIME)
    node.add(1000.25, 1000)  # earlier periods
    a, b = Writer(store, "a"), Writer(store, "b")
    assert a.tell(minute(), 0.0).sum == 0.0
    node.add(5.0, 5)
    assert a.tell(minute(), 2.0)[:2] == (7.0, 7)
    assert b.tell(minute(), 3.0)[:2] == (10.0, 10)
    assert node.read() == (1010.25, 1010)

    assert a.sync(update(minute(), 4.0), update(minute(1), 1.0)).totals[1][:2] == (1.0, 1)
    node.add(2.0, 2)
    late, now = b.sync(update(minute(), 6.0), update(minute(1), 2.0)).totals
    assert late[:2] == (15.0, 15)  # all of the first period
    assert now[:2] == (5.0, 5)
    assert node.read() == (1020.25, 1020)


def test_a_request_that_is_repeated_is_added_once(
    redis_server: RedisServer, store: RedisStore
) -> None:
    node = GoNode(redis_server, "go:shopads:pass", *ALL_TIME)
    request = Writer(store, "a").request(update(minute(), 3.0))
    for _ in range(3):
        assert store.sync(request).totals[0].sum == 3.0
    assert node.read() == (3.0, 3)


def test_what_go_nodes_passed_leaves_less_room_for_holds(
    redis_server: RedisServer, store: RedisStore
) -> None:
    node = GoNode(redis_server, "go:shopads:pass", *ALL_TIME)
    writer = Writer(store, "a")
    writer.tell(minute(), 0.0)
    node.add(7.0, 7)
    assert writer.tell(minute(), 0.0, want=5.0, ceiling=10.0).granted == 3.0


def test_labels_are_sorted_as_go_sorts_them(redis_server: RedisServer, store: RedisStore) -> None:
    node = GoNode(redis_server, "go:shopads:pass", *ALL_TIME, "web", "de")
    one, other = (minute()._replace(labels=labels) for labels in [("web", "de"), ("de", "web")])
    Writer(store, "a").sync(update(one, 1.0), update(other, 2.0))
    assert node.read() == (3.0, 3)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        *(("sluicegate", ()), ("sluicegate", ("sluicegate",)), (":sluicegate:", ())),
        *(("ads", ("sluicegate", "x")), ("ads", ("a:sluicegate:b", "%73luicegate"))),
    ],
)
def test_our_own_name_may_be_a_name_or_a_label(
    redis_server: RedisServer, store: RedisStore, name: str, labels: tuple[str, ...]
) -> None:
    node = GoNode(redis_server, f"go:shop{name}", *ALL_TIME, *labels)
    Writer(store, "a").tell(minute()._replace(name=name, labels=labels), 3.0)
    assert node.read() == (3.0, 3)


def test_totals_of_a_limiter_that_happens_once_expire_and_others_stay(
    redis_server: RedisServer, store: RedisStore
) -> None:
    begin = int(time.time())
    once = CounterKey("budget:pass", (), float(begin), begin + 600.0, 0.0)
    Writer(store, "a").sync(update(once, 0.0), update(minute(), 1.0))
    client = redis_server.client
    name = f"go:shopbudget:pass####{begin}_{begin + 600}####"
    for key in (f"{name}:sum", f"{name}:cnt", *client.keys(f"{name}:sluicegate:*")):
        assert client.ttl(key) == pytest.approx(600.0 + KEEP_AFTER_END, abs=90)
    assert client.ttl("go:shopads:pass####{}_{}####:sum".format(*ALL_TIME)) == -1


@pytest.mark.parametrize("earlier", [0.0, 1000.0])
@pytest.mark.parametrize("part", ["sum", "cnt"])
def test_a_total_that_is_deleted_takes_nothing_from_its_period(
    redis_server: RedisServer, store: RedisStore, earlier: float, part: str
) -> None:
    node = GoNode(redis_server, "go:shopads:pass", *ALL_TIME)
    node.add(earlier, int(earlier))
    a, b = Writer(store, "a"), Writer(store, "b")
    a.tell(minute(), 0.0)
    node.add(5.0, 5)
    a.tell(minute(), 20.0)
    assert b.tell(minute(), 30.0)[:2] == (55.0, 55)
    redis_server.client.delete(f"{node.key}:{part}")
    assert a.tell(minute(), 20.0)[:2] == (55.0, 55)
    assert b.tell(minute(), 31.0)[:2] == (56.0, 56)
    node.add(2.0, 2)
    assert a.tell(minute(), 21.0)[:2] == (59.0, 59)
    assert a.tell(minute(1), 1.0)[:2] == (1.0, 1)


def test_a_total_that_is_set_back_takes_nothing_from_its_period(
    redis_server: RedisServer, store: RedisStore
) -> None:
    node = GoNode(redis_server, "go:shopads:pass", *ALL_TIME)
    node.add(1000.0, 1000)
    writer = Writer(store, "a")
    writer.tell(minute(), 0.0)
    assert writer.tell(minute(), 20.0, want=5.0, ceiling=30.0).granted == 5.0
    node.add(-600.0, -600)
    assert writer.tell(minute(), 22.0, want=10.0, ceiling=30.0)[:2] == (22.0, 22)
    assert writer.tell(minute(), 22.0, want=10.0, ceiling=30.0).granted == 8.0
    assert node.read() == (422.0, 422)


def test_a_total_that_is_deleted_expires_again(
    redis_server: RedisServer, store: RedisStore
) -> None:
    begin = int(time.time())
    once = CounterKey("budget:pass", (), float(begin), begin + 600.0, 0.0)
    writer = Writer(store, "a")
    writer.tell(once, 3.0)
    client = redis_server.client
    name = f"go:shopbudget:pass####{begin}_{begin + 600}####"
    client.delete(f"{name}:sum", f"{name}:cnt")
    assert writer.tell(once, 4.0)[:2] == (4.0, 4)
    for key in (f"{name}:sum", f"{name}:cnt"):
        assert client.ttl(key) == pytest.approx(600.0 + KEEP_AFTER_END, abs=90)


class AwayStore:
    """A store that is away at times. It may carry out a request whose reply is lost."""

    def __init__(self, store: RedisStore) -> None:
        self._store = RedisAt(store)
        self.is_away = False
        self.loses_replies = False

    def sync(self, request: SyncRequest) -> SyncReply:
        if self.is_away and not self.loses_replies:
            raise Unavailable("away")
        reply = self._store.sync(request)
        if self.is_away:
            raise Unavailable("no reply")
        return reply

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("syncs_per_period", "lost_replies"),
    [*((rate, lost) for rate in (0.2, 1, 5) for lost in (0, 1, 1000)), (1, 3), (5, 15)],
)
def test_an_outage_of_many_periods_loses_and_doubles_nothing(
    redis_server: RedisServer, store: RedisStore, syncs_per_period: float, lost_replies: int
) -> None:
    clock = ManualClock(minute().begin)
    away = AwayStore(store)
    cluster = Cluster(away, "shop", clock=clock, sync_interval=1.0)
    hits = cluster.counter("hits", period=10.0)
    hits.add(3.0)
    cluster.sync()
    failures = 0
    away.is_away = True
    for second in range(1, 301):
        clock.advance(1.0)
        hits.add()
        if second % (10.0 / syncs_per_period) == 0:
            failures += 1
            away.loses_replies = failures <= lost_replies
            with pytest.raises(Unavailable):
                cluster.sync()
    away.is_away = False
    cluster.sync()
    assert GoNode(redis_server, "go:shophits", *ALL_TIME).read() == (303.0, 301)


@pytest.mark.parametrize("part", ["sum", "cnt"])
@pytest.mark.parametrize("value", ["many", "", "0x10", " 1", "inf", "nan", "1e301", ["a list"]])
def test_a_total_that_is_not_a_number_is_left_alone_and_so_is_its_other_half(
    redis_server: RedisServer,
    store: RedisStore,
    part: str,
    value: str | list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    client, node = redis_server.client, GoNode(redis_server, "go:shopads:pass", *ALL_TIME)
    writer = Writer(store, "a")
    writer.tell(minute(), 1.0)
    key, other = (f"{node.key}:{name}" for name in (part, "cnt" if part == "sum" else "sum"))
    client.delete(key)
    client.rpush(key, *value) if isinstance(value, list) else client.set(key, value)
    for _ in range(3):
        reply = writer.sync(update(minute(), 3.0), update(ALWAYS, 3.0))
        assert (reply.skipped, reply.totals[1].sum) == ({0}, 3.0)
    assert client.get(other) == "1"
    assert caplog.text.count(f"the total in {key} is not a number") == 1
    client.set(key, "1")
    assert writer.tell(minute(), 3.0)[:2] == (3.0, 3)
    assert node.read() == (3.0, 3)
