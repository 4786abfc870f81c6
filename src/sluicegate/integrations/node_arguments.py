"""What `sluicegate node` takes, apart from what it does: `--help` must not need a server."""

import argparse

__all__ = ["EXAMPLES", "add_arguments"]

EXAMPLES = """examples:
  sluicegate node --listen 0.0.0.0:8000 --upstream http://127.0.0.1:8080 \\
      --central ws://10.0.0.5:7411 --service front --user-header X-User --token-file tokens.toml
  sluicegate node --listen 127.0.0.1:8000 --upstream http://127.0.0.1:8080 \\
      --central http://127.0.0.1:7411 --service front --user-address --workers 2

several centrals: --central once for each"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        default="127.0.0.1:8000",
        metavar="HOST:PORT",
        help="where to listen (default: 127.0.0.1:8000); port 0 takes any that is free",
    )
    parser.add_argument(
        "--upstream", required=True, metavar="URL", help="the service: http://HOST:PORT, or https"
    )
    parser.add_argument(
        "--central", required=True, action="append", metavar="URL", help="ws:// or http://, or TLS"
    )
    parser.add_argument(
        "--service", default="front", metavar="NAME", help="its name in the limits (default: front)"
    )
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument(
        "--user-header",
        metavar="NAME",
        help="a header has the user; who sends none is known by his address",
    )
    whose.add_argument("--user-address", action="store_true", help="the client's address is")
    parser.add_argument(
        "--trusted",
        action="append",
        default=[],
        metavar="NETWORK",
        help="a proxy in front of this one, whose X-Forwarded-For --user-address believes",
    )
    parser.add_argument(
        "--node-id",
        default=None,
        metavar="ID",
        help="the name of this node at the centrals (default: the host's name and the port)",
    )
    parser.add_argument("--token-file", metavar="F", help="has the centrals' node token")
    parser.add_argument("--ca", metavar="F", help="whom to trust for wss:// centrals, PEM")
    parser.add_argument(
        "--slot",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="how long a slot is (default: 1); as the centrals have it",
    )
    parser.add_argument(
        "--shared", metavar="NAME", help="of the workers' shared memory, or a path (default: own)"
    )
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes (default: 1)"
    )
