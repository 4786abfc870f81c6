"""`sluicegate node`: runs an end node as a reverse proxy until SIGTERM.

It prints one line on stdout when it listens; everything after that is logged to stderr. Exit code 0
after a clean stop, 1 when it could not start, 2 for wrong usage.
"""

import argparse
import sys

from sluicegate.clock import Clock

__all__ = ["configure"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs an end node as a reverse proxy: requests that the quota covers are passed on to\n"
        "the upstream, others are answered with 429. It counts requests and the bytes of bodies\n"
        "in both directions, prints one line when it listens, and stops on SIGTERM."
    )
    parser.epilog = """examples:
  sluicegate node --listen 0.0.0.0:8000 --upstream http://127.0.0.1:8080 \\
      --central ws://10.0.0.5:7411 --service front --user-header X-User --token-file tokens.toml
  sluicegate node --listen 127.0.0.1:8000 --upstream http://127.0.0.1:8080 \\
      --central http://127.0.0.1:7411 --service front --user-address --workers 2

for several centrals, repeat --central"""
    parser.add_argument(
        "--listen",
        default="127.0.0.1:8000",
        metavar="HOST:PORT",
        help="address to listen on (default: 127.0.0.1:8000); port 0 picks a free one",
    )
    parser.add_argument(
        "--upstream",
        required=True,
        metavar="URL",
        help="the service behind it: http://HOST:PORT or https://HOST:PORT",
    )
    parser.add_argument(
        "--central",
        required=True,
        action="append",
        metavar="URL",
        help="URL of a central: ws://, wss://, http:// or https://",
    )
    parser.add_argument(
        "--service",
        default="front",
        metavar="NAME",
        help="name of the service in the limits (default: front)",
    )
    identity = parser.add_mutually_exclusive_group(required=True)
    identity.add_argument(
        "--user-header",
        metavar="NAME",
        help="header that names the user; a request without it counts for the client's address",
    )
    identity.add_argument(
        "--user-address", action="store_true", help="the client's address is the user"
    )
    parser.add_argument(
        "--trusted",
        action="append",
        default=[],
        metavar="NETWORK",
        help="network of a proxy in front of this one whose X-Forwarded-For is trusted",
    )
    parser.add_argument(
        "--node-id",
        default=None,
        metavar="ID",
        help="name of this node at the centrals (default: host name and port)",
    )
    parser.add_argument("--token-file", metavar="F", help="file with the centrals' node token")
    parser.add_argument(
        "--ca", metavar="F", help="CA certificates for wss:// (PEM), instead of the system's"
    )
    parser.add_argument(
        "--slot",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="length of a slot (default: 1); must be the same on the centrals",
    )
    parser.add_argument(
        "--wait",
        type=float,
        metavar="SECONDS",
        help="how long a request may wait for credit from the central, at most "
        "(default: as long as an answer takes, 0.05 to 0.3); 0 turns it off",
    )
    parser.add_argument(
        "--shared",
        metavar="NAME",
        help="name or path of the workers' shared memory (default: from the port)",
    )
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="number of processes (default: 1)"
    )
    parser.set_defaults(run=_run, parser=parser)


def _run(arguments: argparse.Namespace, clock: Clock) -> int:
    try:
        from sluicegate.proxy.server import serve
    except ModuleNotFoundError as missing:
        sys.stderr.write(f"sluicegate node: {missing}\n")
        return 1
    return serve(arguments)
