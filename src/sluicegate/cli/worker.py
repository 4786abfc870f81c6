"""`sluicegate worker`: runs a function on the batches of a queue until SIGTERM.

It prints one line on stdout when it serves; everything after that is logged to stderr. Exit code 0
after a clean stop; 1 when it could not start (Redis does not answer, the metrics port is in use) or
when a batch had not ended in time; 2 for wrong usage, including a function that cannot be imported.
A second signal ends it at once.
"""

import argparse
import asyncio
import logging
import math
import os
import pickle
import sys
from typing import TYPE_CHECKING, Any

from sluicegate.cli.arguments import count, seconds
from sluicegate.cli.load_function import add_current_folder, load_function, module_name
from sluicegate.clock import Clock
from sluicegate.errors import ConfigError, SluicegateError, Unavailable

if TYPE_CHECKING:
    from sluicegate.dispatch import Worker

__all__ = ["configure"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serves a queue: takes requests that `Dispatcher` has put there, runs a function on\n"
        "batches of them, and answers. The function takes a list of items and returns a list of\n"
        "as many results; it may be async. It prints one line when it serves, and stops on\n"
        "SIGTERM: batches that run are finished, the rest is given back."
    )
    parser.epilog = """examples:
  sluicegate worker translate:handle --queue translate
  sluicegate worker app.models:embed --queue urgent --queue bulk --url redis://10.0.0.5 \\
      --batch 32 --concurrency 2 --processes --metrics 0.0.0.0:9100
  sluicegate worker translate:handle --queue translate --size builtins:len --reload

modules are found in the current folder, too; the first queue is served first"""
    parser.add_argument(
        "function", metavar="MODULE:FUNCTION", help="the handler: a list of items in, results out"
    )
    parser.add_argument(
        "--queue", required=True, action="append", metavar="Q", help="name of the queue; repeatable"
    )
    parser.add_argument(
        "--url",
        default="redis://127.0.0.1:6379",
        help="URL of Redis (default: %(default)s)",
    )
    _add_batching(parser)
    _add_running(parser)
    parser.add_argument(
        "--prefix",
        default="sluicegate:",
        metavar="P",
        help="prefix of the keys in Redis (default: %(default)s)",
    )
    parser.add_argument(
        "--metrics", metavar="HOST:PORT", help="serve Prometheus metrics; port 0 picks a free one"
    )
    parser.add_argument(
        "--reload",
        action="store_true",
        help="start again when a Python file in the folder of MODULE changes (for development)",
    )
    parser.set_defaults(run=_run, parser=parser)


def _add_batching(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batch", type=count, default=16, metavar="N", help="most items of a batch (default: 16)"
    )
    parser.add_argument(
        "--max-wait",
        type=_not_negative,
        default=0.0,
        metavar="S",
        help="seconds to wait for a batch to fill up (default: 0, take what is there)",
    )
    parser.add_argument(
        "--size",
        metavar="MODULE:FUNCTION",
        help="measure of an item, such as builtins:len; batches are of items alike in it",
    )
    parser.add_argument(
        "--cost",
        metavar="MODULE:FUNCTION",
        help="cost of an item, if the time of a batch depends on that and not on their number",
    )
    parser.add_argument(
        "--max-cost", type=seconds, metavar="C", help="most that the items of a batch may cost"
    )
    parser.add_argument(
        "--per-item", action="store_true", help="the function takes one item, not a list"
    )


def _add_running(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--concurrency",
        type=count,
        default=1,
        metavar="N",
        help="batches that run at once (default: 1)",
    )
    parser.add_argument(
        "--processes", action="store_true", help="run them in processes instead of threads"
    )
    parser.add_argument(
        "--isolate", action="store_true", help="run the items of a failed batch one by one"
    )
    parser.add_argument(
        "--tracebacks", action="store_true", help="send the traceback of an error to the caller"
    )
    parser.add_argument(
        "--lease",
        type=seconds,
        default=10.0,
        metavar="S",
        help="seconds after which others take over the requests of a dead worker (default: 10)",
    )
    parser.add_argument(
        "--stop-timeout",
        type=seconds,
        default=10.0,
        metavar="S",
        help="seconds for running batches to end after SIGTERM (default: 10)",
    )


def _run(arguments: argparse.Namespace, clock: Clock) -> int:
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    add_current_folder()
    if arguments.reload:
        return _run_reloading(arguments)
    try:
        worker = _make_worker(arguments)
    except (ConfigError, ValueError, TypeError) as error:
        arguments.parser.error(str(error))
    except _Missing as error:
        return _failed(error)
    try:
        unfinished = asyncio.run(_serve(worker, arguments))
    except SluicegateError as error:
        return _failed(error)
    if unfinished:
        # Python would wait for the processes of the handler.
        logging.shutdown()
        os._exit(1)
    return 0


def _failed(error: SluicegateError) -> int:
    is_redis = isinstance(error, Unavailable) and "Redis" in str(error)
    advice = " (--url names another Redis)" if is_redis else ""
    sys.stderr.write(f"sluicegate worker: {error}{advice}\n")
    return 1


def _run_reloading(arguments: argparse.Namespace) -> int:
    from sluicegate.cli.reload import folder_of, run_reloading

    try:
        folder = folder_of(module_name(arguments.function))
    except ConfigError as error:
        arguments.parser.error(str(error))
    words = [word for word in arguments.words if word != "--reload"]
    command = [sys.executable, "-m", "sluicegate", *words]
    return run_reloading(command, folder, arguments.stop_timeout)


def _make_worker(arguments: argparse.Namespace) -> "Worker":
    handler = load_function(
        arguments.function, "an item" if arguments.per_item else "a list of items"
    )
    options: dict[str, Any] = {
        name: load_function(getattr(arguments, name), "an item")
        for name in ("size", "cost")
        if getattr(arguments, name) is not None
    }
    if arguments.processes:
        _check_picklable(arguments.function, handler)
    try:
        from sluicegate.dispatch.metrics_endpoint import parse_host_and_port
        from sluicegate.dispatch.worker import Worker
    except ModuleNotFoundError as missing:
        raise _Missing(f"{missing}: pip install 'sluicegate[dispatch]'") from None
    if arguments.metrics is not None:
        parse_host_and_port(arguments.metrics)  # now, and not after the start
    return Worker(
        arguments.url,
        arguments.queue,
        handler,
        max_batch=arguments.batch,
        max_wait=arguments.max_wait,
        max_cost=arguments.max_cost,
        concurrency=arguments.concurrency,
        processes=arguments.processes,
        per_item=arguments.per_item,
        isolate=arguments.isolate,
        tracebacks=arguments.tracebacks,
        lease=arguments.lease,
        prefix=arguments.prefix,
        **options,
    )


class _Missing(SluicegateError):
    """A package that the command needs is not installed."""


def _check_picklable(text: str, handler: object) -> None:
    try:
        pickle.dumps(handler)
    except Exception as error:  # noqa: BLE001  an object may fail in its own way
        raise ConfigError(f"{text}: --processes needs a function of a module: {error}") from None


async def _serve(worker: "Worker", arguments: argparse.Namespace) -> int:
    from sluicegate.dispatch.worker_process import serve

    def tell(metrics_url: str | None) -> None:
        queues = ", ".join(arguments.queue)
        more = "" if metrics_url is None else f", metrics at {metrics_url}"
        sys.stdout.write(f"sluicegate worker {worker.name} serves {queues}{more}\n")
        sys.stdout.flush()

    logging.getLogger("sluicegate.dispatch").info(
        "worker starting: %s for queue %s, batches of up to %d, %d at once",
        arguments.function,
        ", ".join(arguments.queue),
        arguments.batch,
        arguments.concurrency,
    )
    return await serve(
        worker, stop_timeout=arguments.stop_timeout, metrics=arguments.metrics, on_start=tell
    )


def _not_negative(text: str) -> float:
    try:
        duration = float(text)
    except ValueError:
        duration = math.nan
    if not 0 <= duration < math.inf:
        raise argparse.ArgumentTypeError(f"expected a finite number of 0 or more, got {text!r}")
    return duration
