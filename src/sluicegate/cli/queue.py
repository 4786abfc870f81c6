"""`sluicegate queue`: looks at a queue of dispatch, drains it, and retries its dead requests.

Exit code 1 if Redis does not answer or a drained queue is not empty in time, 2 for wrong usage. A
queue that no worker has served yet is empty; stderr says so, for its name may be misspelt.
"""

import argparse
import asyncio
import json
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sluicegate.cli.arguments import count, seconds
from sluicegate.cli.output import printable
from sluicegate.clock import Clock
from sluicegate.errors import SluicegateError, Unavailable

if TYPE_CHECKING:
    from sluicegate.dispatch.queue_admin import DeadRequest, QueueAdmin, QueueStatus

__all__ = ["configure", "format_dead", "format_status"]

_PRIORITIES = {1: "urgent", 0: "normal", -1: "background"}
_URL = "redis://127.0.0.1:6379"
_PREFIX = "sluicegate:"
_MOST_DATA = 60  # characters of a request that are shown


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Looks at a queue, refuses new requests until it is empty, and lists or retries the\n"
        "requests on its dead list. The exit code is 1 if Redis does not answer."
    )
    parser.epilog = (
        "examples:\n  sluicegate queue status translate --url redis://10.0.0.5\n"
        "  sluicegate queue drain translate --timeout 120\n"
        "  sluicegate queue drain translate --resume\n"
        "  sluicegate queue dead translate --json\n"
        "  sluicegate queue retry translate --most 10"
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("queue", metavar="QUEUE")
    common.add_argument("--url", default=_URL, help="URL of Redis (default: %(default)s)")
    common.add_argument(
        "--prefix",
        default=_PREFIX,
        metavar="P",
        help="prefix of the keys in Redis (default: %(default)s)",
    )
    common.add_argument("--json", action="store_true", help="print one JSON object")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    status = actions.add_parser(
        "status",
        parents=[common],
        help="what waits and runs, and which workers are alive",
        epilog="example: sluicegate queue status translate --json",
    )
    status.set_defaults(act=_status)
    _configure_drain(actions, common)
    dead = actions.add_parser(
        "dead",
        parents=[common],
        help="list the requests that were given up",
        description="Lists the oldest requests of the dead list: those that cannot be read, and "
        "those that several workers took and none has answered.",
        epilog="example: sluicegate queue dead translate --most 10",
    )
    dead.set_defaults(act=_dead)
    retry = actions.add_parser(
        "retry",
        parents=[common],
        help="put them back into the queue",
        description="Puts the oldest requests of the dead list back into the queue. Whoever made "
        "them does not wait for the answers any more.",
        epilog="example: sluicegate queue retry translate --most 10",
    )
    retry.set_defaults(act=_retry)
    for action in (dead, retry):
        action.add_argument(
            "--most", type=count, default=100, metavar="N", help="at most this many (default: 100)"
        )
    for action in (status, dead, retry):
        action.set_defaults(run=_run, parser=action)


def _configure_drain(actions: Any, common: argparse.ArgumentParser) -> None:
    drain = actions.add_parser(
        "drain",
        parents=[common],
        help="refuse new requests, and wait until the queue is empty",
        description="Refuses new requests (callers get Busy) and waits until those in the queue "
        "have ended. New requests are refused until --resume, or for as long as --for says.",
        epilog="example: sluicegate queue drain translate --timeout 120",
    )
    drain.add_argument(
        "--timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        help="how long to wait until the queue is empty (default: 60)",
    )
    drain.add_argument(
        "--for",
        dest="duration",
        type=seconds,
        default=3600.0,
        metavar="S",
        help="after this many seconds requests are accepted again by themselves (default: 3600)",
    )
    drain.add_argument("--resume", action="store_true", help="accept requests again")
    drain.set_defaults(act=_drain, run=_run, parser=drain)


def _run(arguments: argparse.Namespace, clock: Clock) -> int:
    try:
        from sluicegate.dispatch.queue_admin import QueueAdmin
    except ModuleNotFoundError as missing:
        sys.stderr.write(f"sluicegate queue: {missing}: pip install 'sluicegate[dispatch]'\n")
        return 1
    try:
        admin = QueueAdmin(arguments.url, arguments.queue, prefix=arguments.prefix)
    except ValueError as error:
        arguments.parser.error(str(error))
    act: Callable[..., int] = arguments.act
    with asyncio.Runner() as runner:
        try:
            if not runner.run(admin.exists()):
                sys.stderr.write(
                    f"sluicegate queue: no worker has served a queue {arguments.queue!r} yet "
                    f"(with the prefix {arguments.prefix!r})\n"
                )
            return act(_Queue(admin, runner), arguments, clock)
        except SluicegateError as error:
            sys.stderr.write(f"sluicegate queue: {_one_line(error)}{_advice(error)}\n")
            return 1
        except KeyboardInterrupt:
            return 128 + 2  # as a shell has it for SIGINT
        finally:
            with suppress(SluicegateError):
                runner.run(admin.close())


def _one_line(error: SluicegateError) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _advice(error: SluicegateError) -> str:
    """What to do about an error that Redis has answered, or about none at all."""
    from sluicegate.redis_client import ErrorReply

    if not isinstance(error, ErrorReply):
        return "; use --url if Redis is elsewhere" if isinstance(error, Unavailable) else ""
    if error.code in ("NOAUTH", "WRONGPASS"):
        return "; the password is part of --url: redis://:PASSWORD@HOST"
    return ""


class _Queue:
    """A `QueueAdmin` without asyncio: a command does one thing after the other."""

    def __init__(self, admin: "QueueAdmin", runner: asyncio.Runner) -> None:
        self._admin = admin
        self._runner = runner

    def status(self) -> "QueueStatus":
        return self._runner.run(self._admin.status())

    def drain(self, duration: float) -> None:
        self._runner.run(self._admin.drain(duration))

    def resume(self) -> None:
        self._runner.run(self._admin.resume())

    def dead(self, most: int) -> "list[DeadRequest]":
        return self._runner.run(self._admin.dead(most))

    def retry(self, most: int) -> int:
        return self._runner.run(self._admin.retry(most))


def _status(queue: _Queue, arguments: argparse.Namespace, clock: Clock) -> int:
    status = queue.status()
    _print(arguments, {"queue": arguments.queue, **status._asdict()}, format_status(status))
    return 0


def _drain(queue: _Queue, arguments: argparse.Namespace, clock: Clock) -> int:
    if arguments.resume:
        queue.resume()
        _print(arguments, {"queue": arguments.queue, "is_draining": False}, "accepts requests\n")
        return 0
    from sluicegate.dispatch.queue_admin import LOOK_EVERY

    queue.drain(arguments.duration)
    deadline = clock.now() + arguments.timeout
    while (left := (status := queue.status()).length) and clock.now() < deadline:
        clock.sleep(LOOK_EVERY)
    state = f"not empty after {arguments.timeout:g} s" if left else "empty"
    text = (
        f"{state}; new requests are refused for {arguments.duration:g} s, or until:\n"
        f"  {_resume_command(arguments)}\n"
    )
    if left:
        text += format_status(status)
    _print(arguments, {"queue": arguments.queue, "is_empty": not left, **status._asdict()}, text)
    return 1 if left else 0


def _dead(queue: _Queue, arguments: argparse.Namespace, clock: Clock) -> int:
    found = queue.dead(arguments.most)
    rows = [_describe(one) for one in found]
    if arguments.json:
        rows = [_as_json(row) for row in rows]
    _print(arguments, {"queue": arguments.queue, "dead": rows}, format_dead(rows))
    return 0


def _retry(queue: _Queue, arguments: argparse.Namespace, clock: Clock) -> int:
    number = queue.retry(arguments.most)
    _print(
        arguments, {"queue": arguments.queue, "retried": number}, f"requests put back: {number}\n"
    )
    return 0


def _print(arguments: argparse.Namespace, document: dict[str, Any], text: str) -> None:
    if arguments.json:
        text = json.dumps(document, default=repr) + "\n"
    encoding = sys.stdout.encoding or "utf-8"  # a terminal may lack characters of a name
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))


def _resume_command(arguments: argparse.Namespace) -> str:
    """The command that ends a drain. A login is not repeated: what is printed may be logged."""
    words = ["sluicegate", "queue", "drain", arguments.queue]
    if arguments.url != _URL:
        words += ["--url", "URL" if "@" in arguments.url else arguments.url]
    if arguments.prefix != _PREFIX:
        words += ["--prefix", arguments.prefix]
    return shlex.join([*words, "--resume"])


def format_status(status: "QueueStatus") -> str:
    rate = "unknown rate" if status.rate is None else f"{status.rate:.4g} requests/s"
    lines = [
        f"workers alive: {len(status.workers)}" + (f", {rate}" if status.workers else ""),
        *(f"  {printable(name)}" for name in status.workers),
        f"{'priority':12}{'waiting':>9}{'running':>9}",
        *(
            f"{name:12}{status.waiting[priority]:9}{status.running[priority]:9}"
            for priority, name in _PRIORITIES.items()
        ),
        f"dead: {status.dead}",
    ]
    if status.is_draining:
        lines.append("draining: new requests are refused")
    return "\n".join(lines) + "\n"


def _describe(dead: "DeadRequest") -> dict[str, Any]:
    """A request of the dead list, as data."""
    from sluicegate.dispatch.wire import decode_data
    from sluicegate.errors import ProtocolError

    row: dict[str, Any] = {"id": dead.id, "priority": dead.priority, "reason": dead.reason}
    try:
        if isinstance(dead.request, ProtocolError):
            raise dead.request
        row["data"] = decode_data(dead.request)
    except ProtocolError:
        row["fields"] = {
            name.decode(errors="replace"): value.decode(errors="replace")
            for name, value in dead.fields
        }
    return row


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose data JSON can say: a key of msgpack may be bytes."""
    try:
        json.dumps(row, default=repr)
    except (TypeError, ValueError, RecursionError):
        return {**row, "data": repr(row["data"])}
    return row


def format_dead(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "no dead requests\n"
    lines = [f"{'ID':22}{'PRIORITY':12}REASON, DATA"]
    for row in rows:
        lines.append(f"{row['id']:22}{_PRIORITIES[row['priority']]:12}{printable(row['reason'])}")
        data = printable(repr(row["data"] if "data" in row else row["fields"]))
        shown = data if len(data) <= _MOST_DATA else f"{data[:_MOST_DATA]}..."
        lines.append(f"{'':34}{shown}")
    return "\n".join(lines) + "\n"
