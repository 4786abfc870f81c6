"""Runs a worker as a process: until a signal, with its metrics port and its log lines.

The first SIGTERM or SIGINT stops the worker in good order; from then on both have their default
action, so that a second one ends the process at once, whatever its event loop is doing. The tasks
of a worker that ended so are taken over by others when their leases have run out.

`begin_handler_process` sets up the processes in which handlers run with `processes=True`, and
`prepare_handler` loads the handler in each of them before the worker takes requests.
"""

import asyncio
import ctypes
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from sluicegate.dispatch.metrics_endpoint import MetricsEndpoint, parse_host_and_port

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

    from sluicegate.dispatch.handler import Handler
    from sluicegate.dispatch.worker import Worker

__all__ = ["begin_handler_process", "is_importing_main", "prepare_handler", "serve"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1

log = logging.getLogger("sluicegate.dispatch")


async def serve(
    worker: "Worker",
    *,
    stop_timeout: float,
    metrics: str | None = None,
    on_start: Callable[[str | None], object] = lambda metrics_url: None,
) -> int:
    """Serve until a signal; how many batches had not ended `stop_timeout` seconds after it.

    `metrics` is HOST:PORT. `on_start` is called with the URL of the metrics, if there are any.
    """
    loop = asyncio.get_running_loop()
    received: asyncio.Future[signal.Signals] = loop.create_future()
    endpoint = None
    if metrics is not None:
        endpoint = MetricsEndpoint(*parse_host_and_port(metrics), worker.metrics)

    def receive(number: signal.Signals) -> None:
        for one in _SIGNALS:
            loop.remove_signal_handler(one)
            signal.signal(one, signal.SIG_DFL)
        if not received.done():
            received.set_result(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        loop.add_signal_handler(number, receive, number)
    try:
        if endpoint is not None:
            await endpoint.start()
        await worker.start()
        log.info("worker started: %s", worker.name)
        on_start(None if endpoint is None else endpoint.url)
        name = (await received).name
        log.info("worker stopping: %s received, %g s for what runs", name, stop_timeout)
        unfinished = await worker.stop(stop_timeout)
    finally:
        if endpoint is not None:
            await endpoint.close()
        for number, action in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, action)
    if unfinished:
        log.warning(
            "batches did not end within %g s, or Redis did not take their answers; their requests "
            "are given back: %d",
            stop_timeout,
            unfinished,
        )
    log.info("worker stopped: %s", _summary(worker))
    return unfinished


def _summary(worker: "Worker") -> str:
    parts = []
    for queue, core in worker.cores.items():
        tasks = core.stats.tasks
        dropped = tasks["late"] + tasks["hopeless"] + tasks["buried"]
        parts.append(
            f"queue {queue}: {tasks['answered']} answered, {tasks['failed']} failed, "
            f"{dropped} dropped, {core.stats.batch_sizes.count} batches"
        )
        if tasks["disowned"]:
            parts[-1] += f", {tasks['disowned']} ended elsewhere or given up by their callers"
    return "; ".join(parts)


_all_started: "Barrier | None" = None  # of a handler process: when the others have started, too


def begin_handler_process(parent: int, all_started: "Barrier") -> None:
    """Set up a process that runs a handler for the worker with this process id.

    Ctrl-C reaches all processes of a terminal: the worker's is to finish the batch. However the
    worker dies, the process must not outlive it: the kernel kills it then.
    """
    global _all_started
    _all_started = all_started
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it has died before the kernel knew
        os._exit(1)


def prepare_handler(handler: "Handler") -> None:
    """Called once in each handler process: the argument has loaded the handler's module.

    No process takes a second call before all of them have had their first.
    """
    assert _all_started is not None
    _all_started.wait()


def is_importing_main() -> bool:
    """Whether this is a handler process that runs the program's main module once more."""
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))
