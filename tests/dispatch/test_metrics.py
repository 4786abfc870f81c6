"""Metrics of workers and clients, read by Prometheus's own parser."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sluicegate import (
    Busy,
    Dispatcher,
    HandlerFailed,
    NoWorkers,
    SyncDispatcher,
    Unavailable,
    Worker,
)
from sluicegate.dispatch.metrics import client_text, worker_text
from sluicegate.dispatch.metrics_endpoint import MetricsEndpoint, parse_host_and_port
from sluicegate.dispatch.queue_admin import QueueAdmin, QueueStatus
from sluicegate.dispatch.stats import WorkerStats
from sluicegate.errors import ConfigError
from tests.harness.servers import RedisServer, reserve_port
from tests.harness.waits import PATIENCE, wait_until

PREFIX = "sluicegate_dispatch_"


def parse(text: str) -> dict[tuple[str, ...], float]:
    """Values by name and labels."""
    return {
        (sample.name.removeprefix(PREFIX), *sample.labels.values()): sample.value
        for metric in text_string_to_metric_families(text)
        for sample in metric.samples
    }


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 2 * PATIENCE))


def refuse_negative(items: list[int]) -> list[int]:
    if min(items) < 0:
        raise ValueError("an item is negative")
    return items


def test_the_text_of_a_worker_has_its_counts_and_the_state_of_its_queues() -> None:
    stats = WorkerStats()
    stats.tasks.update({"answered": 7, "failed": 1, "late": 2, "hopeless": 3, "redelivered": 4})
    for size in (1, 3, 300):
        stats.batch_sizes.observe(size)
    stats.wait_seconds.observe(0.03)
    stats.run_seconds.observe(90.0)
    status = QueueStatus(
        waiting={1: 0, 0: 5, -1: 6},
        running={1: 1, 0: 2, -1: 0},
        workers=["a", "b"],
        rate=None,
        dead=9,
        is_draining=True,
    )
    found = parse(worker_text({"q": stats}, {"q": 8}, {"q": status}))
    expected = {
        ("redis_up",): 1,
        ("queue_waiting", "q", "0"): 5,
        ("queue_waiting", "q", "-1"): 6,
        ("queue_running", "q", "1"): 1,
        ("queue_workers", "q"): 2,
        ("queue_dead", "q"): 9,
        ("queue_draining", "q"): 1,
        ("held", "q"): 8,
        ("answered_total", "q"): 7,
        ("failed_total", "q"): 1,
        ("redelivered_total", "q"): 4,
        ("disowned_total", "q"): 0,
        ("dropped_total", "q", "late"): 2,
        ("dropped_total", "q", "hopeless"): 3,
        ("dropped_total", "q", "cancelled"): 0,
        ("dropped_total", "q", "buried"): 0,
        ("batch_size_bucket", "q", "1"): 1,
        ("batch_size_bucket", "q", "4"): 2,
        ("batch_size_bucket", "q", "+Inf"): 3,
        ("batch_size_sum", "q"): 304,
        ("wait_seconds_bucket", "q", "0.02"): 0,
        ("wait_seconds_bucket", "q", "0.05"): 1,
        ("run_seconds_count", "q"): 1,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert ("queue_rate", "q") not in found  # nothing has run yet


def test_without_redis_the_text_has_what_the_worker_itself_knows() -> None:
    found = parse(worker_text({"q": WorkerStats()}, {"q": 0}, None))
    assert found["redis_up",] == 0
    assert found["answered_total", "q"] == 0
    assert not [name for name in found if name[0].startswith("queue_")]


def test_calls_are_counted_by_outcome(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        client = Dispatcher(redis_server.url, "q")
        async with client:
            with pytest.raises(NoWorkers):
                await client.call(1, timeout=PATIENCE)
            async with Worker(redis_server.url, "q", refuse_negative):
                await client.call_many([1, 2, 3], timeout=PATIENCE)
                with pytest.raises(HandlerFailed):
                    await client.call(-1, timeout=PATIENCE)
                admin = QueueAdmin(redis_server.url, "q")
                await admin.drain(PATIENCE)
                with pytest.raises(Busy):
                    await client.call(1, timeout=PATIENCE)
                await admin.close()
                client.submit(1, timeout=PATIENCE).cancel()
                await asyncio.sleep(0)
            left = client.submit(1, timeout=PATIENCE)
        with pytest.raises(Unavailable):  # the client was closed
            await left
        assert parse(client.metrics()) == {
            ("calls_total", "q", "answered"): 3,
            ("calls_total", "q", "failed"): 1,
            ("calls_total", "q", "busy"): 1,
            ("calls_total", "q", "no_workers"): 1,
            ("calls_total", "q", "cancelled"): 1,
            ("calls_total", "q", "unavailable"): 1,
        }

    run(scenario())
    assert SyncDispatcher(redis_server.url, "q").metrics() == client_text({"q": {}})


def test_the_endpoint_serves_a_worker_and_goes_on_while_redis_is_dead(
    redis_server: RedisServer,
) -> None:
    async def scenario() -> None:
        worker = Worker(redis_server.url, ["q", "r"], refuse_negative)
        endpoint = MetricsEndpoint("127.0.0.1", 0, worker.metrics)
        await endpoint.start()
        client = Dispatcher(redis_server.url, "q")
        async with worker, client, httpx.AsyncClient(timeout=PATIENCE) as http:
            await client.call_many(range(20), timeout=PATIENCE)
            tasks = worker.cores["q"].stats.tasks
            await wait_until(lambda: tasks["answered"] == 20)  # which Redis confirms a little later
            response = await http.get(endpoint.url)
            assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
            found = parse(response.text)
            assert found["answered_total", "q"] == found["wait_seconds_count", "q"] == 20
            assert found["batch_size_sum", "q"] == 20
            assert found["answered_total", "r"] == 0
            assert found["queue_workers", "q"] == found["queue_workers", "r"] == 1
            assert (await http.head(endpoint.url)).content == b""
            assert (await http.post(endpoint.url)).status_code == 405
            assert (await http.get(endpoint.url.removesuffix("metrics"))).status_code == 404
            redis_server.kill()
            assert parse((await http.get(endpoint.url)).text)["redis_up",] == 0
        await endpoint.close()

    run(scenario())


def test_a_connection_that_sends_too_much_is_closed() -> None:
    async def scenario() -> None:
        async def collect() -> str:
            raise OSError("no metrics today")

        endpoint = MetricsEndpoint("127.0.0.1", 0, collect)
        await endpoint.start()
        host, port = parse_host_and_port(endpoint.url.split("/")[2])
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 100_000)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        async with httpx.AsyncClient(timeout=PATIENCE) as http:
            assert (await http.get(endpoint.url)).status_code == 500
        await endpoint.close()

    run(scenario())


def test_a_port_in_use_is_reported() -> None:
    async def collect() -> str:
        return ""

    async def scenario(port: int) -> None:
        first = MetricsEndpoint("127.0.0.1", port, collect)
        await first.start()
        with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1:{port}: "):
            await MetricsEndpoint("127.0.0.1", port, collect).start()
        await first.close()

    with reserve_port() as reserved:
        run(scenario(reserved.getsockname()[1]))


@pytest.mark.parametrize("text", ["", "9100", ":9100", "host:", "host:x", "host:65536", "host:-1"])
def test_an_address_without_host_or_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        parse_host_and_port(text)


def test_an_ipv6_address_is_in_brackets() -> None:
    assert parse_host_and_port("[::1]:9100") == ("::1", 9100)
