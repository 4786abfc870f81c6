"""The httpx transports, on a manual clock: no test waits."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any

import httpx
import pytest

from sluicegate import Keyed, ManualClock, RateLimited
from sluicegate.integrations.httpx import AsyncRateLimitTransport, RateLimitTransport
from sluicegate.integrations.server_backoff import ServerBackoff, requested_pause

Answer = Callable[[httpx.Request], httpx.Response]
NOON = 1_700_000_000.0


class Server:
    """Answers what it is told to, and notes when it was asked."""

    def __init__(self, clock: ManualClock, *answers: httpx.Response) -> None:
        self._clock = clock
        self._responses = list(answers)
        self.asked: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(round(self._clock.now(), 3))
        return self._responses.pop(0) if self._responses else httpx.Response(200)


Get = Callable[..., list[int]]


@pytest.fixture(params=["sync", "async"])
def get(request: pytest.FixtureRequest, clock: ManualClock) -> Get:
    """Sends requests one after the other through a transport; their statuses."""

    def through(server: Server, limit: Any, urls: list[str], **options: Any) -> list[int]:
        content = options.pop("content", None)
        method = "GET" if content is None else "POST"
        mock = httpx.MockTransport(server)
        if request.param == "sync":
            transport = RateLimitTransport(limit, mock, clock=clock, **options)
            with httpx.Client(transport=transport) as client:
                return [client.request(method, url, content=content).status_code for url in urls]

        async def story() -> list[int]:
            transport = AsyncRateLimitTransport(limit, mock, clock=clock, **options)
            async with httpx.AsyncClient(transport=transport) as client:
                answers = [await client.request(method, url, content=content) for url in urls]
                return [answer.status_code for answer in answers]

        return asyncio.run(story())

    return through


A, B = "http://a.example/x", "http://b.example/x"


def test_requests_wait_their_turn_each_host_by_itself(get: Get, clock: ManualClock) -> None:
    server = Server(clock)
    assert get(server, "2/second burst 1", [A, A, B, A, B]) == [200] * 5
    assert server.asked == [0.0, 0.5, 0.5, 1.0, 1.0]


def test_a_time_out_that_cannot_be_met_is_refused_at_once(get: Get, clock: ManualClock) -> None:
    server = Server(clock)
    with pytest.raises(RateLimited):
        get(server, "1/minute", [A, A], timeout=5.0)
    assert server.asked == [0.0]
    assert clock.now() == 0.0


@pytest.mark.parametrize(
    ("status", "headers", "pause"),
    [
        (429, {"Retry-After": "7"}, 7.0),
        (503, {"Retry-After": "7"}, 7.0),
        (429, {"Retry-After": formatdate(NOON + 9, usegmt=True)}, 9.0),
        (429, {"Retry-After": formatdate(NOON - 9, usegmt=True)}, 0.0),
        (429, {"Retry-After": "soon"}, 0.0),
        (429, {"Retry-After": "-5"}, 0.0),
        (429, {"Retry-After": "1e3"}, 0.0),
        (200, {"Retry-After": "7"}, 0.0),
        (200, {"RateLimit": '"api";r=0;t=12'}, 12.0),
        (200, {"RateLimit": '"api";r=1;t=12'}, 0.0),
        (200, {"RateLimit": '"a";r=5;t=9, "b";r=0;t=4, "c";r=0;t=3'}, 4.0),
        (200, {"RateLimit": '"a";r=0;t=9;pk=:cHsdsRa894==:'}, 9.0),
        (200, {"RateLimit": '"a";r=0;t=9', "Age": "30"}, 0.0),
        (200, {"RateLimit": "limit=10, remaining=0, reset=5"}, 0.0),
        (200, {"RateLimit": '"a";r=0;t=9, "b'}, 0.0),
        (429, {"Retry-After": "7", "RateLimit": '"a";r=0;t=50'}, 7.0),
        (429, {"RateLimit": '"a";r=0;t=5'}, 5.0),
        (429, {"Retry-After": "99999999999999999999"}, 300.0),
    ],
)
def test_a_host_is_left_alone_for_as_long_as_it_asks(
    get: Get, status: int, headers: dict[str, str], pause: float, clock: ManualClock
) -> None:
    clock.advance(NOON)
    server = Server(clock, httpx.Response(status, headers=headers))
    assert get(server, None, [A, B, A], timeout=1000) == [status, 200, 200]
    assert server.asked == [NOON, NOON, NOON + pause]


def test_a_pause_longer_than_the_time_out_is_refused_at_once(get: Get, clock: ManualClock) -> None:
    server = Server(clock, httpx.Response(429, headers={"Retry-After": "120"}))
    with pytest.raises(RateLimited, match="try again in 120 s"):
        get(server, "10/second", [A, A])
    assert clock.now() == 0.0


def test_a_refused_request_is_tried_again_when_asked(get: Get, clock: ManualClock) -> None:
    later = {"Retry-After": "3"}
    server = Server(clock, httpx.Response(429, headers=later), httpx.Response(503))
    assert get(server, "100/second", [A], retries=2, content=b"again") == [200]
    assert server.asked == [0.0, 3.0, 5.0]  # the 503 did not say: 2 seconds the second time


def test_retries_are_bounded_in_number_and_time(get: Get, clock: ManualClock) -> None:
    always = [httpx.Response(429, headers={"Retry-After": "10"}) for _ in range(9)]
    server = Server(clock, *always)
    assert get(server, None, [A], retries=2) == [429]
    assert server.asked == [0.0, 10.0, 20.0]
    server = Server(clock, *always)
    start = clock.now()
    assert get(server, None, [B], retries=9, timeout=15.0) == [429]
    assert [when - start for when in server.asked] == [0.0, 10.0]


def test_a_body_that_cannot_be_sent_again_is_not(clock: ManualClock) -> None:
    def body() -> Iterator[bytes]:
        yield b"once"

    server = Server(clock, httpx.Response(429))
    transport = RateLimitTransport(None, httpx.MockTransport(server), retries=3, clock=clock)
    with httpx.Client(transport=transport) as client:
        assert client.post(A, content=body()).status_code == 429
    assert server.asked == [0.0]


def test_an_answer_that_is_not_handed_on_is_closed(clock: ManualClock) -> None:
    closed: list[int] = []

    class Stream(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b"busy"

        def close(self) -> None:
            closed.append(1)

    server = Server(clock, httpx.Response(503, stream=Stream()))
    transport = RateLimitTransport(None, httpx.MockTransport(server), retries=1, clock=clock)
    with httpx.Client(transport=transport) as client:
        assert client.get(A).status_code == 200
    assert closed == [1]


def test_tasks_share_the_limit_and_the_pause(clock: ManualClock) -> None:
    server = Server(clock, httpx.Response(200, headers={"RateLimit": '"a";r=0;t=5'}))

    async def story() -> None:
        transport = AsyncRateLimitTransport(
            Keyed("2/second burst 1", clock=clock), httpx.MockTransport(server), clock=clock
        )
        async with httpx.AsyncClient(transport=transport) as client:
            await asyncio.gather(*[client.get(A) for _ in range(4)])

    asyncio.run(story())
    assert server.asked[0] == 0.0
    assert server.asked[1:] == [5.0, 5.5, 6.0]  # after the pause, one after the other again


def test_the_key_says_which_requests_belong_together(get: Get, clock: ManualClock) -> None:
    server = Server(clock)
    get(server, "1/second", [A, B], key=lambda request: "everybody")
    assert server.asked == [0.0, 1.0]


class Blocking:
    """As `RedisKeyed`: it waits, and only in a thread."""

    def __init__(self, keyed: Keyed) -> None:
        self.acquire = keyed.acquire


class Coroutines:
    """As `AsyncRedisKeyed`: to wait is all it does differently."""

    def __init__(self, keyed: Keyed) -> None:
        self._keyed = keyed

    async def acquire(self, key: Any, cost: float = 1.0, timeout: float | None = None) -> float:
        return await self._keyed.acquire_async(key, cost, timeout)


def test_limiters_wait_in_threads_or_in_tasks(clock: ManualClock) -> None:
    server = Server(clock)
    mock = httpx.MockTransport(server)
    blocking = Blocking(Keyed("1/second", clock=clock))
    coroutines: Any = Coroutines(Keyed("1/second", clock=clock))
    with httpx.Client(transport=RateLimitTransport(blocking, mock, clock=clock)) as client:
        client.get(A)
        client.get(A)

    async def story() -> None:
        transport = AsyncRateLimitTransport(coroutines, mock, clock=clock)
        async with httpx.AsyncClient(transport=transport) as client:
            await client.get(A)
            await client.get(A)

    asyncio.run(story())
    assert server.asked == [0.0, 1.0, 1.0, 2.0]
    with pytest.raises(TypeError, match="is async; use"):
        RateLimitTransport(coroutines, mock)
    with pytest.raises(TypeError, match="would stall the event loop"):
        AsyncRateLimitTransport(blocking, mock)


def test_wrong_arguments_are_told_at_once() -> None:
    for wrong, words in [
        ({"retries": -1}, "retries must be"),
        ({"timeout": -1.0}, "timeout must be"),
        ({"longest_hold": 0}, "longest_hold must be"),
    ]:
        with pytest.raises(ValueError, match=words):
            RateLimitTransport("1/s", httpx.MockTransport(lambda _: httpx.Response(200)), **wrong)  # type: ignore[arg-type]


def test_holds_are_bounded_and_forgotten() -> None:
    backoff = ServerBackoff(longest=60.0)
    for number in range(10_050):
        backoff.back_off(f"host{number}", 10.0 + number / 1e6, now=0.0)
    assert len(backoff) == 10_000
    assert backoff.wait("host49", now=0.0) == 0.0  # the first to end made room
    assert backoff.wait("host10049", now=0.0) > 10.0
    backoff.back_off("host10049", 1.0, now=0.0)  # a shorter one changes nothing
    assert backoff.wait("host10049", now=5.0) > 5.0
    assert backoff.wait("host10049", now=99.0) == 0.0
    for late in ("late", "later"):
        backoff.back_off(late, 1.0, now=99.0)
    assert len(backoff) == 2


def test_nothing_is_asked_for_by_an_answer_without_fields() -> None:
    assert requested_pause(200, {}.get, 0.0) == 0.0


def test_those_who_waited_out_a_pause_do_not_all_go_at_once(clock: ManualClock) -> None:
    server = Server(clock, httpx.Response(429, headers={"Retry-After": "4"}))

    async def story() -> None:
        transport = AsyncRateLimitTransport(
            "5/second burst 1", httpx.MockTransport(server), clock=clock
        )
        async with httpx.AsyncClient(transport=transport) as client:
            await asyncio.gather(*(client.get(A) for _ in range(20)))

    asyncio.run(story())
    assert len(server.asked) == 20
    after = [when for when in server.asked if when > 0]
    assert min(after) >= 4.0
    assert all(later - earlier > 0.19 for earlier, later in itertools.pairwise(after))


def test_a_date_that_is_no_date_is_ignored() -> None:
    for text in ("Mon, 1 Jan 99999999999 00:00:00 GMT", "Mon, 99 Foo", "\x00"):
        assert requested_pause(429, {"retry-after": text}.get, NOON) == 0.0
