"""The load of queues, read from the metrics of workers, to balance calls over them."""

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate import Dispatcher, Worker
from sluicegate.balance import LeastActive
from sluicegate.dispatch.metrics import worker_text
from sluicegate.dispatch.queue_admin import QueueAdmin, QueueStatus
from sluicegate.dispatch.queue_load import load_of_metrics
from sluicegate.dispatch.stats import WorkerStats
from tests.harness.servers import RedisServer
from tests.harness.waits import PATIENCE


def text_of(**lengths: int) -> str:
    """The metrics of a worker of these queues, a third of whose requests run."""
    return worker_text(
        {queue: WorkerStats() for queue in lengths},
        dict.fromkeys(lengths, 0),
        {queue: status_of(length) for queue, length in lengths.items()},
    )


def status_of(length: int) -> QueueStatus:
    running = length // 3
    return QueueStatus(
        waiting={1: 0, 0: length - running, -1: 0},
        running={1: running, 0: 0, -1: 0},
        workers=["w"],
        rate=None,
        dead=3,
        is_draining=False,
    )


def test_what_waits_and_runs_is_the_load_of_a_queue() -> None:
    text = text_of(q=7, other=100)
    assert load_of_metrics(text, "q") == 7.0
    assert load_of_metrics(text, "other") == 100.0
    assert load_of_metrics(text.replace("\n", "\r\n"), "q") == 7.0
    assert load_of_metrics(text_of(q=0), "q") == 0.0


def test_a_worker_without_the_queue_or_without_redis_does_not_say() -> None:
    assert load_of_metrics(text_of(q=7), "r") is None
    assert load_of_metrics(worker_text({"q": WorkerStats()}, {"q": 0}, None), "q") is None
    assert load_of_metrics("", "q") is None


@pytest.mark.parametrize("value", ["-1", "NaN", "+Inf", "many"])
def test_a_value_that_is_no_load_is_not_believed(value: str) -> None:
    broken = f'sluicegate_dispatch_queue_running{{queue="q",priority="0"}} {value}\n'
    assert load_of_metrics(broken, "q") is None
    assert load_of_metrics(text_of(q=7) + broken, "q") is None


@given(st.text(min_size=1), st.text(min_size=1))
def test_any_name_of_a_queue_is_found(queue: str, other: str) -> None:
    loads = {other: 5, queue: 7}
    text = text_of(**loads)
    assert load_of_metrics(text, queue) == 7.0
    assert load_of_metrics(text, other) == loads[other]


def test_the_queue_with_less_to_do_is_picked(redis_server: RedisServer) -> None:
    may_end = threading.Event()

    def hold(items: list[int]) -> list[int]:
        may_end.wait(PATIENCE)
        return items

    async def scenario() -> None:
        balancer = LeastActive(["q", "r"])
        busy = Worker(redis_server.url, "q", hold, max_batch=1)
        idle = Worker(redis_server.url, "r", hold)
        async with busy, idle, Dispatcher(redis_server.url, "q") as client:
            calls = [client.submit(number, timeout=PATIENCE) for number in range(3)]
            async with QueueAdmin(redis_server.url, "q") as admin:
                await wait_until_length(admin, 3)
            for queue, worker in (("q", busy), ("r", idle)):
                load = load_of_metrics(await worker.metrics(), queue)
                assert load is not None
                balancer.report(queue, load)
            assert [one.load for one in balancer.status()] == [3.0, 0.0]
            assert balancer.pick().address == "r"
            may_end.set()
            await asyncio.gather(*calls)

    async def wait_until_length(admin: QueueAdmin, length: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while (await admin.status()).length != length:  # noqa: ASYNC110  it is Redis that has it
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(scenario(), 2 * PATIENCE))
