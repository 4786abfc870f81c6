"""`sluicegate node`: an end node as a process of its own, a reverse proxy in front of a service.

With `--workers` above 1 this process only holds the socket and watches: each worker is a fork
with its own event loop on the same socket, and all count in the host's shared memory. A worker
that dies is replaced; when the parent dies, however it dies, they stop. SIGTERM (or Ctrl-C) lets
the requests that are running end, for 30 s at most.

It prints one line when it listens, on stdout; everything after that is logged to stderr. Exit
code 0 after a clean stop, 1 when it could not start, 2 when it was asked wrongly.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from sluicegate.errors import ConfigError, reason_of
from sluicegate.integrations.http.keys import by_address
from sluicegate.integrations.http.request import Request
from sluicegate.integrations.quota.asgi import QuotaASGIMiddleware
from sluicegate.integrations.quota.metering import UserFunction
from sluicegate.proxy.proxy import BoundedProtocol, Proxy
from sluicegate.quota.central.net.tokens import read_tokens
from sluicegate.quota.node import Node
from sluicegate.quota.node.core.waiting import check_wait

__all__ = ["listen", "serve"]

GRACE = 30  # seconds for running requests after SIGTERM
BACKLOG = 2048
SOON = 1.0  # a worker that dies earlier than this is not replaced at once
SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("sluicegate.proxy")


def serve(arguments: argparse.Namespace) -> int:
    """Run it until it is told to stop; the exit code."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("websockets").setLevel(logging.WARNING)
    try:
        _check_wait(arguments.wait)
        if not 1 <= arguments.workers <= 256:
            raise ValueError(f"--workers must be from 1 to 256, got {arguments.workers}")
        proxy = Proxy(arguments.upstream)
        listener = listen(arguments.listen)
    except (ConfigError, ValueError) as error:
        arguments.parser.error(str(error))
    except OSError as error:
        sys.stderr.write(
            f"sluicegate node: cannot listen on {arguments.listen}: {reason_of(error)}\n"
        )
        return 1
    with listener:
        host, port = listener.getsockname()[:2]
        try:
            user = _user(arguments)
            node = _node(arguments, port)
        except (ConfigError, ValueError) as error:
            arguments.parser.error(str(error))
        app = QuotaASGIMiddleware(
            proxy, node, service=arguments.service, user=user, wait=arguments.wait
        )

        def work(parent: int | None = None) -> None:
            asyncio.run(_serve(app, proxy, node, listener, parent))

        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        sys.stdout.write(f"sluicegate node {node.node_id} listens on http://{where}\n")
        sys.stdout.flush()
        if arguments.workers == 1:
            work()
        else:
            _Workers(work, arguments.workers).run()
    return 0


def _check_wait(wait: float | None) -> None:
    try:
        check_wait(wait)
    except ValueError:
        raise ValueError(f"--wait must be finite and not below 0, got {wait:g}") from None


def _node(arguments: argparse.Namespace, port: int) -> Node:
    node_id = arguments.node_id or f"{socket.gethostname()}:{port}"
    token = read_tokens(arguments.token_file).node if arguments.token_file else None
    return Node(
        arguments.central,
        node_id=node_id,
        services=[arguments.service],
        token=token,
        shared=arguments.shared or f"proxy-{port}",
        slot_seconds=arguments.slot,
        ca_file=arguments.ca,
    )


def _user(arguments: argparse.Namespace) -> str | UserFunction:
    if arguments.user_header is not None:
        if arguments.trusted:
            raise ValueError("--trusted goes with --user-address")
        header: str = arguments.user_header
        return header
    find = by_address(arguments.trusted)

    def user_of(request: Request) -> str:
        return str(find(request))

    return user_of


def listen(text: str) -> socket.socket:
    """A socket that listens on HOST:PORT."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"--listen takes HOST:PORT, like 127.0.0.1:8000, got {text!r}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio sets TCP_NODELAY only where it is: without that each
    # answer would wait 40 ms for the acknowledgement of its header.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, int(port)))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


async def _serve(
    app: QuotaASGIMiddleware,
    proxy: Proxy,
    node: Node,
    listener: socket.socket,
    parent: int | None,
) -> None:
    """Until a signal comes, or the pipe `parent` says that who holds its other end is no more."""
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        proxy_headers=False,  # whose word counts is by_address's matter
        server_header=False,
        date_header=False,  # the upstream has set its own
        access_log=False,
        log_config=None,
        log_level="critical",
        timeout_graceful_shutdown=GRACE,
    )
    server = uvicorn.Server(config)

    def stop(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    # Before uvicorn takes the signals itself; and after, when it raises them once more for whoever
    # had them, so that they do not end us before the node has said good-bye.
    for number in SIGNALS:
        signal.signal(number, stop)
    if parent is not None:
        loop = asyncio.get_running_loop()

        def parent_is_gone() -> None:
            loop.remove_reader(parent)
            log.error("worker %d stops: its parent is gone", os.getpid())
            server.should_exit = True

        loop.add_reader(parent, parent_is_gone)
    async with node, proxy:
        await server.serve(sockets=[listener])


class _Workers:
    """Forks that serve, and a parent that waits for them."""

    def __init__(self, work: Callable[[int], None], count: int) -> None:
        self._work = work
        # Nothing is ever written: it ends when this process does, even by SIGKILL.
        self._parent, self._alive = os.pipe()
        self._count = count
        self._started: dict[int, float] = {}  # by process id
        self._is_stopping = False

    def run(self) -> None:
        """Until a signal has come and all have ended."""
        for number in SIGNALS:
            signal.signal(number, self._stop)
        while not self._is_stopping and len(self._started) < self._count:
            self._fork()
        while self._started:
            process, status = os.wait()
            began = self._started.pop(process, None)
            if began is None or self._is_stopping:
                continue
            log.error("worker %d ended: %d", process, os.waitstatus_to_exitcode(status))
            if time.monotonic() - began < SOON:
                time.sleep(SOON)
            self._fork()

    def _fork(self) -> None:
        """Start a worker, unless a signal to stop has come."""
        # None may come between this look, the fork and the note of it: nobody would pass it on.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        if self._is_stopping:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            return
        process = os.fork()
        if process == 0:
            code = 1
            try:
                for number in SIGNALS:
                    signal.signal(number, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
                os.close(self._alive)
                self._work(self._parent)
                code = 0
            except Exception:
                log.exception("worker %d failed", os.getpid())
            finally:
                os._exit(code)  # what comes after `run` is the parent's
        self._started[process] = time.monotonic()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._is_stopping = True
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
