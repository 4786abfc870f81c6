"""`Worker.run` in a program of one's own; `sluicegate worker` is tested in tests/cli."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from sluicegate import Dispatcher, SyncDispatcher, Worker
from tests import busy
from tests.harness.servers import RedisServer, default_signals, reserve_port
from tests.harness.waits import PATIENCE, Output, wait_until

PROGRAM = """
import logging, signal, sys
from sluicegate import Worker

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
before = signal.getsignal(signal.SIGINT)
worker = Worker(sys.argv[1], "q", lambda items: [2 * item for item in items])
unfinished = worker.run(5.0, metrics=f"127.0.0.1:{sys.argv[2]}")
print("unfinished:", unfinished)
print("restored:", signal.getsignal(signal.SIGINT) is before)
"""


def test_a_program_runs_a_worker_until_a_signal_and_goes_on(redis_server: RedisServer) -> None:
    with reserve_port() as reserved:
        port = reserved.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, redis_server.url, str(port)],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=default_signals,
        )
        assert process.stdout is not None
        output = Output(process.stdout)
        try:
            output.wait_for("worker started: ")
            with SyncDispatcher(redis_server.url, "q", timeout=PATIENCE) as client:
                assert client.call_many([1, 2], timeout=PATIENCE) == [2, 4]
            text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE).text
            assert 'sluicegate_dispatch_answered_total{queue="q"} 2' in text
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            process.wait()
    *_, stopped, unfinished, restored = output.text().splitlines()
    assert stopped.startswith("worker stopped: queue q: 2 answered, 0 failed, 0 dropped, ")
    assert (unfinished, restored) == ("unfinished: 0", "restored: True")


SLOW_TO_LOAD = """
import sys, time
from sluicegate import Worker

def handle(items):
    return items

if __name__ != "__main__":
    time.sleep(1.0)  # a model is loaded
{guard}
    import logging
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    Worker(sys.argv[1], "q", handle, processes=True, concurrency=2).run(5.0)
"""


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_handler_processes_have_loaded_the_handler_before_the_worker_takes_requests(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """So that the time of loading is not taken for that of a batch."""
    program = tmp_path / "program.py"
    program.write_text(SLOW_TO_LOAD.format(guard='if __name__ == "__main__":'))
    process = subprocess.Popen(
        [sys.executable, program, redis_server.url],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=default_signals,
    )
    assert process.stdout is not None
    output = Output(process.stdout)
    try:
        output.wait_for("worker started: ")
        assert len(children_of(process.pid)) >= 2
        with SyncDispatcher(redis_server.url, "q", timeout=PATIENCE) as client:
            assert client.call(1, timeout=PATIENCE) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


def test_a_program_without_the_guard_that_processes_need_ends_with_an_error(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(SLOW_TO_LOAD.format(guard="if True:"))
    done = subprocess.run(
        [sys.executable, program, redis_server.url],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        preexec_fn=default_signals,
    )
    assert done.returncode == 1
    assert "start it under if __name__ == '__main__':" in done.stderr
    assert "the handler's processes ended while they started" in done.stderr
    with redis_server.client as redis:
        assert redis.zcard("sluicegate:{q}:workers") == 0


HANGS = """
import os, signal, sys, time
from sluicegate import Worker

def hang(items):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(sys.argv[2], "a") as file:
        file.write(f"{os.getpid()}\\n")
    while True:
        time.sleep(60)

if __name__ == "__main__":
    options = {"processes": True, "concurrency": 2, "max_batch": 1, "lease": 1.0, "timeout": 60.0}
    print("unfinished:", Worker(sys.argv[1], "q", hang, **options).run(0.1))
"""


def is_running(pid: str) -> bool:
    """Not a zombie: those of a killed parent are left to whoever adopts them."""
    try:
        return busy.stat(int(pid))[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_a_worker_whose_handlers_hang(
    redis_server: RedisServer, tmp_path: Path, number: signal.Signals
) -> None:
    program, begun = tmp_path / "program.py", tmp_path / "begun"
    program.write_text(HANGS)
    begun.touch()
    process = subprocess.Popen(
        [sys.executable, program, redis_server.url, begun],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=default_signals,
    )
    assert process.stdout is not None
    output = Output(process.stdout)

    async def scenario() -> None:
        with redis_server.client as redis:
            await wait_until(lambda: redis.zcard("sluicegate:{q}:workers"))
        async with Dispatcher(redis_server.url, "q") as client:
            calls = [client.submit(item, timeout=PATIENCE) for item in range(2)]
            await wait_until(lambda: len(begun.read_text().splitlines()) == 2)
            children = children_of(process.pid)
            assert set(begun.read_text().split()) <= set(children)
            process.send_signal(number)
            code = await asyncio.to_thread(process.wait, PATIENCE)
            written = await asyncio.to_thread(output.text)
            is_killed = number == signal.SIGKILL
            assert (code, written) == ((-number, "") if is_killed else (0, "unfinished: 2\n"))
            await wait_until(lambda: not any(map(is_running, children)))
            async with Worker(redis_server.url, "q", lambda items: items, lease=1.0):
                assert await asyncio.gather(*calls) == [0, 1]

    try:
        asyncio.run(asyncio.wait_for(scenario(), 2 * PATIENCE))
    except BaseException:
        for pid in begun.read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        raise
    finally:
        process.kill()
        process.wait()
