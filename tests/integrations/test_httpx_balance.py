"""The balanced httpx transports on mock servers. With real ones: test_httpx_balance_real.py."""

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest

from sluicegate import ManualClock, RateLimited
from sluicegate.balance import (
    Balancer,
    ConsistentHash,
    Health,
    LeastActive,
    NoServers,
    PeakEwma,
    RoundRobin,
    Server,
)
from sluicegate.integrations.httpx import (
    AsyncBalancedTransport,
    BalancedTransport,
    NoServersAvailable,
    RateLimitTransport,
    RetryBudget,
)

A, B, C = "http://a", "http://b", "http://c"
URL = "http://service/"


class Fleet:
    """Mock servers, which note what they receive.

    The first answers are those `in_order`, whichever server is asked; after that each server gives
    its own, or 200. An answer is a status, an error to raise, or a function of the request.
    """

    def __init__(self, *in_order: Any, **by_host: Any) -> None:
        self._in_order = list(in_order)
        self._by_host = by_host
        self.received: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.received.append(request)
        answer = self._by_host.get(request.url.host, 200)
        if self._in_order:
            answer = self._in_order.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else httpx.Response(answer)

    @property
    def hosts(self) -> list[str]:
        return [request.url.host for request in self.received]


Sent = list[httpx.Response | Exception]
Send = Callable[..., Sent]


@pytest.fixture(params=["sync", "async"])
def send(request: pytest.FixtureRequest) -> Send:
    """Sends requests one after the other; for each a response, or the error.

    A request is a URL to GET, or a method, a URL and options.
    """

    def in_thread(transport: BalancedTransport, requests: list[Any]) -> Sent:
        results: Sent = []
        with httpx.Client(transport=transport) as client:
            for method, url, options in requests:
                try:
                    results.append(client.request(method, url, **options))
                except Exception as error:  # noqa: BLE001  it is a result
                    results.append(error)
        return results

    async def in_task(transport: AsyncBalancedTransport, requests: list[Any]) -> Sent:
        results: Sent = []
        async with httpx.AsyncClient(transport=transport) as client:
            for method, url, options in requests:
                try:
                    results.append(await client.request(method, url, **options))
                except Exception as error:  # noqa: BLE001  it is a result
                    results.append(error)
        return results

    def through(servers: Any, fleet: Any, requests: list[Any], **options: Any) -> Sent:
        inner = httpx.MockTransport(fleet)
        whole = [("GET", one, {}) if isinstance(one, str) else one for one in requests]
        if request.param == "sync":
            return in_thread(BalancedTransport(servers, inner, **options), whole)
        return asyncio.run(in_task(AsyncBalancedTransport(servers, inner, **options), whole))

    return through


def outcomes(results: Sent) -> list[Any]:
    """Statuses, and types of errors."""
    return [
        type(result) if isinstance(result, Exception) else result.status_code for result in results
    ]


def failures(balancer: Balancer) -> list[int]:
    return [one.failures for one in balancer.status()]


def active(balancer: Balancer) -> list[int]:
    return [one.active for one in balancer.status()]


# ------------------------------------------------------------------ where a request goes


@pytest.mark.parametrize(
    ("server", "url", "sent_to", "host"),
    [
        ("http://10.0.0.1:80", "http://service:8/x?y=1", "http://10.0.0.1/x?y=1", "10.0.0.1"),
        ("http://10.0.0.1:8000", "http://service", "http://10.0.0.1:8000/", "10.0.0.1:8000"),
        ("https://a.example/v1/", "http://service/x", "https://a.example/v1/x", "a.example"),
        ("https://a.example/v%2F1", "http://service", "https://a.example/v%2F1/", "a.example"),
        ("http://[::1]:8000", "http://service/x", "http://[::1]:8000/x", "[::1]:8000"),
        ("http://ü.example", "http://service/ü", "http://ü.example/ü", "xn--tda.example"),
        (A, "http://s/a%2Fb/%7e//?q=%zz&r=a+b", "http://a/a%2Fb/%7e//?q=%zz&r=a+b", "a"),
        (A, "http://user:password@service/x#part", "http://a/x", "a"),
    ],
)
def test_a_request_goes_to_the_server_below_its_prefix(
    send: Send, server: str, url: str, sent_to: str, host: str
) -> None:
    fleet = Fleet()
    (response,) = send([server], fleet, [url])
    assert isinstance(response, httpx.Response)
    (received,) = fleet.received
    assert received.url == sent_to
    assert received.url.raw_path == httpx.URL(sent_to).raw_path
    assert received.headers.get_list("host") == [host]
    assert response.request.url == url  # the caller's own
    assert response.extensions["sluicegate_server"] == Server(server)


def test_all_else_arrives_at_each_server_as_it_was_sent(send: Send) -> None:
    fleet = Fleet(503)
    options = {"content": b"body", "headers": {"X-Own": "1"}, "timeout": 7.0}
    assert outcomes(send([A, B], fleet, [("PUT", URL, options)])) == [200]
    assert sorted(fleet.hosts) == ["a", "b"]
    for request in fleet.received:
        assert (request.method, request.content) == ("PUT", b"body")
        assert (request.headers["x-own"], request.headers["content-length"]) == ("1", "4")
        assert request.extensions["timeout"]["read"] == 7.0


def test_the_host_header_can_stay_the_callers(send: Send) -> None:
    fleet = Fleet()
    own = {"headers": {"Host": "own.example"}}
    same = {"headers": {"Host": "SERVICE"}}  # no other than that of the URL
    send([A], fleet, [("GET", URL, own), ("GET", URL, same)])
    send([A], fleet, [URL, ("GET", URL, own)], keep_host=True)
    hosts = [request.headers["host"] for request in fleet.received]
    assert hosts == ["own.example", "a", "service", "own.example"]


def test_mounts_leave_other_hosts_alone() -> None:
    balanced, plain = Fleet(), Fleet()
    transport = BalancedTransport([A], httpx.MockTransport(balanced))
    with httpx.Client(
        transport=httpx.MockTransport(plain), mounts={"all://service": transport}
    ) as client:
        client.get("http://service/x")
        client.get("https://service:8443/x")
        client.get("http://other/x")
    assert [balanced.hosts, plain.hosts] == [["a", "a"], ["other"]]


@pytest.mark.parametrize(
    "address",
    [
        *("10.0.0.1:8000", "a", "//a", "/a", "ftp://a", "unix:///a", "http://", "http:///a"),
        *("http://user@a", "http://user:password@a", "http://@a", "http://a?", "http://a/?x"),
        *("http://a#", "http://a:0", "http://a:99999", "http://a:b", "http://a b", "http://a\n"),
    ],
)
def test_what_is_no_base_url_is_refused_when_the_transport_is_made(address: str) -> None:
    for servers in ([A, address], RoundRobin([A, address])):
        with pytest.raises(ValueError, match="base URL like 'http://10.0.0.1:8000'") as caught:
            BalancedTransport(servers)
        assert repr(address) in str(caught.value)


def test_a_bad_address_that_is_added_later_fails_its_own_requests(send: Send) -> None:
    class Growing(Fleet):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            balancer.add("b:8000")
            return super().__call__(request)

    balancer = RoundRobin([A])
    results = send(balancer, Growing(), [URL] * 2)
    assert outcomes(results) == [200, ValueError]
    assert (failures(balancer), active(balancer)) == ([0, 0], [0, 0])


def test_wrong_arguments_are_refused_when_the_transport_is_made() -> None:
    wrong: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (A, {}, TypeError, "servers must be a list"),
        ([A], {"policy": "best"}, ValueError, "policy must be one of"),
        (RoundRobin([A]), {"policy": "round_robin"}, ValueError, "policy must be None"),
        ([A], {"policy": "consistent_hash"}, ValueError, "ConsistentHash needs key="),
        ([A], {"key": "path"}, TypeError, "key must be a function"),
        ([A], {"load": 7}, TypeError, "load must be a function"),
        ([A], {"retries": -1}, ValueError, "retries must be"),
        ([A], {"budget": 0}, ValueError, "retries=0 sends nothing twice"),
        ([A], {"retry_statuses": ["503"]}, TypeError, "retry_statuses must be"),
        ([A], {"transport": object()}, TypeError, "transport must be an httpx"),
    ]
    for servers, options, error, words in wrong:
        for kind in (BalancedTransport, AsyncBalancedTransport):
            with pytest.raises(error, match=words):
                kind(servers, **options)
    with pytest.raises(TypeError, match=r"must be an httpx\.BaseTransport"):
        BalancedTransport([A], httpx.AsyncHTTPTransport())  # type: ignore[arg-type]


def test_weights_and_policies_are_those_of_the_balancer(send: Send) -> None:
    fleet = Fleet()
    send([Server(A, 3), B], fleet, [URL] * 8, policy="round_robin")
    assert Counter(fleet.hosts) == {"a": 6, "b": 2}


def test_a_consistent_hash_goes_by_the_key_of_the_request(send: Send) -> None:
    fleet = Fleet()
    users = [f"user{number}" for number in range(20)]
    requests = [("GET", URL, {"headers": {"X-User": user}}) for user in users]
    send([A, B, C], fleet, requests, policy="consistent_hash", key=lambda r: r.headers["x-user"])
    by_hand = ConsistentHash([A, B, C])
    assert [f"http://{host}" for host in fleet.hosts] == [by_hand.pick(u).address for u in users]


def test_without_servers_it_is_a_connection_that_cannot_be_made(send: Send) -> None:
    down = RoundRobin([A])
    down.mark_down(A)
    for servers, words in [([], "the balancer has none"), (down, "all 1 are marked down")]:
        fleet = Fleet()
        (error,) = send(servers, fleet, [URL])
        assert type(error) is NoServersAvailable
        assert isinstance(error, NoServers)
        assert isinstance(error, httpx.ConnectError)
        assert words in str(error)
        assert error.request.url == URL
        assert fleet.received == []


# ------------------------------------------------------------------ retries


def busy_for_a_minute(_: httpx.Request) -> httpx.Response:
    return httpx.Response(503, headers={"Retry-After": "60"})


FAILURES = {
    "502": 502,
    "503": 503,
    "504": 504,
    "503 with Retry-After": busy_for_a_minute,
    "reset": httpx.ReadError("reset"),
    "read time-out": httpx.ReadTimeout("slow"),
    "write error": httpx.WriteError("broken"),
    "write time-out": httpx.WriteTimeout("slow"),
    "hung up": httpx.RemoteProtocolError("disconnected"),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize(
    ("method", "headers", "servers_asked"),
    [
        *((one, {}, 2) for one in ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE")),
        *((one, {}, 1) for one in ("POST", "PATCH", "CUSTOM")),
        *((one, {"Idempotency-Key": "7"}, 2) for one in ("POST", "PATCH")),
    ],
)
def test_after_a_failure_only_what_may_run_twice_goes_to_another_server(
    send: Send, method: str, headers: dict[str, str], servers_asked: int, failure: Any
) -> None:
    fleet = Fleet(failure)
    balancer = RoundRobin([A, B])
    (result,) = send(balancer, fleet, [(method, URL, {"headers": headers})])
    assert len(fleet.received) == len(set(fleet.hosts)) == servers_asked
    assert (outcomes([result]) == [200]) is (servers_asked == 2)
    assert sorted(failures(balancer)) == [0, 1]
    assert active(balancer) == [0, 0]


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ConnectTimeout("slow")])
@pytest.mark.parametrize("method", ["GET", "POST", "PATCH"])
def test_any_method_goes_to_another_server_when_no_connection_was_made(
    send: Send, error: Exception, method: str
) -> None:
    fleet = Fleet(a=error)
    results = send([A, B], fleet, [(method, URL, {})] * 4, policy="round_robin")
    assert outcomes(results) == [200] * 4
    assert Counter(fleet.hosts) == {"a": 2, "b": 4}


@pytest.mark.parametrize(
    "error",
    [
        *(httpx.PoolTimeout("full"), httpx.LocalProtocolError("x"), httpx.UnsupportedProtocol("x")),
        *(RuntimeError("bug"), StopAsyncIteration(), httpx.TooManyRedirects("x")),
    ],
    ids=repr,
)
def test_what_is_not_the_servers_fault_is_neither_a_failure_nor_retried(
    send: Send, error: Exception
) -> None:
    fleet = Fleet(error)
    balancer = RoundRobin([A, B])
    (result,) = send(balancer, fleet, [URL])
    assert result is error
    assert not getattr(error, "__notes__", [])
    assert len(fleet.received) == 1
    assert (failures(balancer), active(balancer)) == ([0, 0], [0, 0])


@pytest.mark.parametrize("status", [200, 302, 400, 404, 429, 500, 501])
def test_other_statuses_are_no_failures(send: Send, status: int) -> None:
    fleet = Fleet(status)
    balancer = RoundRobin([A, B])
    assert outcomes(send(balancer, fleet, [URL])) == [status]
    assert (len(fleet.received), failures(balancer)) == (1, [0, 0])


def test_the_statuses_to_retry_can_be_others(send: Send) -> None:
    fleet = Fleet(429, 503)
    balancer = RoundRobin([A, B])
    assert outcomes(send(balancer, fleet, [URL], retry_statuses=[429])) == [503]
    assert len(fleet.received) == 2
    assert sorted(failures(balancer)) == [0, 1]  # the 503, though it is not retried


def test_each_retry_goes_to_another_server_until_all_were_tried(send: Send) -> None:
    fleet = Fleet(a=503, b=httpx.ReadError("reset"), c=504)
    balancer = RoundRobin([A, B, C])
    send(balancer, fleet, [URL], retries=9)
    assert sorted(fleet.hosts) == ["a", "b", "c"]
    assert (failures(balancer), active(balancer)) == ([1, 1, 1], [0, 0, 0])


def test_there_are_no_more_retries_than_allowed(send: Send) -> None:
    for retries in (0, 1, 2):
        fleet = Fleet(a=503, b=503, c=503)
        assert outcomes(send([A, B, C], fleet, [URL], retries=retries)) == [503]
        assert len(fleet.received) == 1 + retries


def test_an_error_says_which_servers_were_tried(send: Send) -> None:
    fleet = Fleet(*(httpx.ConnectError("refused") for _ in range(2)))
    (error,) = send([A, B], fleet, [URL])
    assert isinstance(error, httpx.ConnectError)
    tried = ", ".join(f"http://{host}" for host in fleet.hosts)
    assert error.__notes__ == [f"servers tried: {tried}"]
    assert error.request.url == URL


def test_a_fleet_that_is_down_is_not_hit_three_times_as_hard(send: Send) -> None:
    fleet = Fleet(a=503, b=503, c=503)
    never_ejected = RoundRobin([A, B, C], health=Health(max_failures=0))
    assert outcomes(send(never_ejected, fleet, [URL] * 200)) == [503] * 200
    assert len(fleet.received) == 200 + 10 + 0.2 * 200  # the reserve, and one for five


def test_transports_can_share_a_budget(send: Send) -> None:
    budget = RetryBudget(0.5, reserve=1)
    fleet = Fleet(a=503, b=503)
    for _ in range(4):
        send([A, B], fleet, [URL], budget=budget)
    assert len(fleet.received) == 4 + 1 + 2
    assert budget.left == 0.0


def test_a_body_that_cannot_be_sent_again_is_not() -> None:
    def body() -> Iterator[bytes]:
        yield b"once"

    async def async_body() -> AsyncIterator[bytes]:
        yield b"once"

    async def scenario() -> None:
        transport = AsyncBalancedTransport([A, B], httpx.MockTransport(fleet))
        async with httpx.AsyncClient(transport=transport) as client:
            assert (await client.put(URL, content=async_body())).status_code == 503

    fleet = Fleet(503)
    with httpx.Client(transport=BalancedTransport([A, B], httpx.MockTransport(fleet))) as client:
        assert client.put(URL, content=body()).status_code == 503
    assert len(fleet.received) == 1
    fleet = Fleet(503)
    asyncio.run(scenario())
    assert len(fleet.received) == 1


def test_a_server_that_goes_on_failing_is_left_out(send: Send) -> None:
    fleet = Fleet(a=httpx.ConnectError("refused"))
    balancer = RoundRobin([A, B, C], health=Health(max_failures=3), clock=ManualClock())
    assert outcomes(send(balancer, fleet, [URL] * 30)) == [200] * 30
    assert Counter(fleet.hosts)["a"] == 3


# ------------------------------------------------------------------ from the pick to the end


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Two chunks, between which something may happen."""

    def __init__(self, between: Callable[[], Any] = lambda: None) -> None:
        self._between = between
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        yield b"begin "
        self._between()
        yield b"end"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"begin "
        if asyncio.iscoroutine(result := self._between()):
            await result
        yield b"end"

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1


def streaming(body: Body, status: int = 200) -> Callable[[httpx.Request], httpx.Response]:
    return lambda _: httpx.Response(status, stream=body)


def test_a_call_is_active_until_its_response_is_closed() -> None:
    balancer = LeastActive([A])
    body = Body()
    transport = BalancedTransport(balancer, httpx.MockTransport(Fleet(a=streaming(body))))
    with httpx.Client(transport=transport) as client:
        with client.stream("GET", URL) as first, client.stream("GET", URL) as second:
            assert active(balancer) == [2]
            assert second.read() == b"begin end"
            assert active(balancer) == [1]
            second.close()
            assert next(first.iter_raw()) == b"begin "
            assert active(balancer) == [1]
        assert active(balancer) == [0]
        first.close()
        assert (active(balancer), failures(balancer), body.closed) == ([0], [0], 2)


def test_a_call_of_a_task_is_active_until_its_response_is_closed() -> None:
    async def scenario() -> None:
        inner = httpx.MockTransport(Fleet(a=streaming(body)))
        async with httpx.AsyncClient(transport=AsyncBalancedTransport(balancer, inner)) as client:
            async with client.stream("GET", URL) as first, client.stream("GET", URL) as second:
                assert active(balancer) == [2]
                assert await second.aread() == b"begin end"
                assert active(balancer) == [1]
                assert await anext(first.aiter_raw()) == b"begin "
                assert active(balancer) == [1]
            assert active(balancer) == [0]

    balancer = LeastActive([A])
    body = Body()
    asyncio.run(scenario())
    assert (active(balancer), failures(balancer), body.closed) == ([0], [0], 2)


def test_a_response_that_nobody_closes_ends_when_it_is_collected() -> None:
    balancer = LeastActive([A])
    transport = BalancedTransport(balancer, httpx.MockTransport(Fleet(a=streaming(Body()))))
    client = httpx.Client(transport=transport)
    response = client.send(client.build_request("GET", URL), stream=True)
    assert active(balancer) == [1]
    del response
    gc.collect()
    assert active(balancer) == [0]


def test_the_latency_is_the_time_until_the_head(send: Send, clock: ManualClock) -> None:
    def after(seconds: float) -> Callable[[httpx.Request], httpx.Response]:
        def answer(_: httpx.Request) -> httpx.Response:
            clock.advance(seconds)
            return httpx.Response(200, stream=Body(lambda: clock.advance(50.0)))

        return answer

    balancer = PeakEwma([A], clock=clock)
    send(balancer, Fleet(after(0.25)), [URL], clock=clock)
    assert balancer.status()[0].latency == 0.25
    assert clock.now() == 50.25


def test_an_error_in_the_body_is_a_failure_and_not_retried(send: Send) -> None:
    def broken() -> None:
        raise httpx.ReadError("reset")

    body = Body(broken)
    fleet = Fleet(streaming(body))
    balancer = RoundRobin([A, B])
    assert outcomes(send(balancer, fleet, [URL])) == [httpx.ReadError]
    assert (len(fleet.received), sorted(failures(balancer))) == (1, [0, 1])
    assert (active(balancer), body.closed) == ([0, 0], 1)


def test_a_failed_status_counts_once_its_body_is_closed(send: Send) -> None:
    body = Body()
    balancer = RoundRobin([A])
    (response,) = send(balancer, Fleet(a=streaming(body, 503)), [URL])
    assert isinstance(response, httpx.Response)
    assert (response.content, body.closed, failures(balancer)) == (b"begin end", 1, [1])


def test_a_response_that_is_not_handed_on_is_closed_first(send: Send) -> None:
    first = Body()
    closed_before: list[int] = []

    def second(_: httpx.Request) -> httpx.Response:
        closed_before.append(first.closed)
        return httpx.Response(200)

    balancer = RoundRobin([A, B])
    assert outcomes(send(balancer, Fleet(streaming(first, 503), second), [URL])) == [200]
    assert (closed_before, first.closed) == ([1], 1)
    assert (sorted(failures(balancer)), active(balancer)) == ([0, 1], [0, 0])


@pytest.mark.parametrize(
    ("error", "outcome"), [(httpx.CloseError("x"), 200), (KeyError("bug"), KeyError)]
)
def test_a_connection_that_cannot_be_closed_holds_up_no_retry(
    error: Exception, outcome: Any
) -> None:
    class Stuck(Body):
        def close(self) -> None:
            raise error

    balancer = RoundRobin([A, B])
    inner = httpx.MockTransport(Fleet(streaming(Stuck(), 503)))
    with httpx.Client(transport=BalancedTransport(balancer, inner)) as client:
        try:
            assert client.get(URL).status_code == outcome
        except KeyError:
            assert outcome is KeyError
    assert (sorted(failures(balancer)), active(balancer)) == ([0, 1], [0, 0])


def test_a_cancelled_task_ends_its_call_and_says_nothing_of_the_server() -> None:
    async def scenario() -> None:
        waits = asyncio.Event()

        async def hang(*_: Any) -> httpx.Response:
            waits.set()
            await asyncio.Event().wait()
            raise AssertionError

        async def begin(_: httpx.Request) -> httpx.Response:
            return httpx.Response(200, stream=Body(hang))

        for answer in (hang, begin):  # before the head, and in the body
            waits.clear()
            transport = AsyncBalancedTransport(balancer, httpx.MockTransport(answer))
            async with httpx.AsyncClient(transport=transport) as client:
                task = asyncio.create_task(client.get(URL))
                await waits.wait()
                assert sum(active(balancer)) == 1
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert active(balancer) == [0, 0]

    balancer = RoundRobin([A, B])
    balancer.use().end(failed=True)
    balancer.use().end(failed=True)
    asyncio.run(scenario())
    assert failures(balancer) == [1, 1]  # neither a failure nor a success


def test_a_server_may_be_removed_while_it_answers(send: Send) -> None:
    def leave(_: httpx.Request) -> httpx.Response:
        balancer.remove(A)
        return httpx.Response(200, headers={"endpoint-load-metrics": report(7)})

    balancer = RoundRobin([A])
    results = send(balancer, Fleet(leave), [URL] * 2)
    assert outcomes(results) == [200, NoServersAvailable]
    assert repr(balancer) == "RoundRobin(0 servers, 0 usable, 0 calls)"


def test_a_failed_response_is_handed_on_when_no_server_is_left(send: Send) -> None:
    def leave(_: httpx.Request) -> httpx.Response:
        balancer.mark_down(A)
        balancer.mark_down(B)
        return httpx.Response(503)

    balancer = RoundRobin([A, B])
    assert outcomes(send(balancer, Fleet(leave), [URL])) == [503]
    assert active(balancer) == [0, 0]


def test_a_limit_of_each_server_fits_inside(clock: ManualClock) -> None:
    inner = RateLimitTransport("1/minute", httpx.MockTransport(Fleet()), timeout=0, clock=clock)
    balancer = RoundRobin([A, B])
    with httpx.Client(transport=BalancedTransport(balancer, inner)) as client:
        assert [client.get(URL).status_code for _ in range(2)] == [200, 200]
        with pytest.raises(RateLimited):
            client.get(URL)
    assert (failures(balancer), active(balancer)) == ([0, 0], [0, 0])


# ------------------------------------------------------------------ the load of servers


def report(in_flight: float) -> str:
    return f"TEXT cpu_utilization=0.3, named_metrics.in_flight={in_flight}"


def test_the_load_that_a_server_reports_decides_where_requests_go(send: Send) -> None:
    def loaded(request: httpx.Request) -> httpx.Response:
        load = 50 if request.url.host == "a" else 0
        return httpx.Response(200, headers={"Endpoint-Load-Metrics": report(load)})

    fleet = Fleet(a=loaded, b=loaded)
    send(LeastActive([A, B], clock=ManualClock()), fleet, [URL] * 20)
    assert fleet.hosts.count("a") <= 1


def test_a_load_counts_from_the_head_on() -> None:
    def loaded(_: httpx.Request) -> httpx.Response:
        headers = {"endpoint-load-metrics": report(7)}
        return httpx.Response(200, headers=headers, stream=Body())

    balancer = LeastActive([A], clock=ManualClock())
    transport = BalancedTransport(balancer, httpx.MockTransport(Fleet(a=loaded)))
    with httpx.Client(transport=transport) as client, client.stream("GET", URL):
        assert (balancer.status()[0].load, active(balancer)) == (7.0, [1])


@pytest.mark.parametrize(
    ("load", "found"),
    [
        (None, None),
        (lambda response: float(response.headers["x-load"]), 3.0),
        (lambda response: None, None),
    ],
)
def test_the_load_can_be_read_from_elsewhere_or_not_at_all(
    send: Send, load: Any, found: float | None
) -> None:
    headers = {"endpoint-load-metrics": report(7), "X-Load": "3"}
    balancer = LeastActive([A])
    send(balancer, Fleet(lambda _: httpx.Response(200, headers=headers)), [URL], load=load)
    assert balancer.status()[0].load == found


@pytest.mark.parametrize(
    ("load", "error"),
    [(lambda response: response.headers["x"], KeyError), (lambda _: -2, ValueError)],
)
def test_a_load_that_cannot_be_used_is_raised_and_the_response_closed(
    send: Send, load: Any, error: type[Exception]
) -> None:
    body = Body()
    balancer = LeastActive([A])
    assert outcomes(send(balancer, Fleet(streaming(body)), [URL], load=load)) == [error]
    assert (body.closed, active(balancer), failures(balancer)) == (1, [0], [0])
