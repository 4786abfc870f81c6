"""`sluicegate central`: what the command line makes of a `Central`.

It prints one line when it listens, on stdout, so that a program that has started it knows where;
everything after that is logged to stderr. Exit code 0 after a clean stop; 1 when the world did not
let it start (a port that is taken, a Redis that does not answer, limits of which none is valid); 2
when it was asked wrongly, also with a file that is not there or cannot be used.
"""

import argparse
import gc
import logging
import resource
import sys

from sluicegate.errors import ConfigError, SluicegateError
from sluicegate.quota.central.central import Central
from sluicegate.quota.central.keeper import NoValidLimits
from sluicegate.quota.central.tokens import Tokens, read_tokens

__all__ = ["EXAMPLES", "add_arguments", "serve"]

EXAMPLES = """examples:
  sluicegate central --limits limits.toml
  sluicegate central --limits limits.db --state central.state
  sluicegate central --listen 0.0.0.0:7411 --limits redis://10.0.0.5/0 --token-file tokens.toml \\
      --tls-cert central.crt --tls-key central.key

a token file (chmod 600) has two lines, node = "..." and admin = "..."; one bare line is both"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        default="127.0.0.1:7411",
        metavar="HOST:PORT",
        help="where to listen (default: 127.0.0.1:7411); port 0 takes any that is free",
    )
    parser.add_argument(
        "--limits",
        required=True,
        metavar="SOURCE",
        help="FILE.toml, FILE.db (SQLite, can be edited through the API) or redis://...",
    )
    parser.add_argument("--name", default="central", metavar="N", help="of this central")
    parser.add_argument("--token-file", metavar="F", help="what nodes and administrators present")
    parser.add_argument("--tls-cert", metavar="F", help="a certificate, PEM")
    parser.add_argument("--tls-key", metavar="F", help="its key, PEM")
    parser.add_argument(
        "--slot",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="how long a slot is, from 0.1 (default: 1); nodes must have the same",
    )
    parser.add_argument("--state", metavar="FILE", help="buckets survive a restart in this file")


def serve(arguments: argparse.Namespace) -> int:
    """Run it until it is told to stop; the exit code."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    try:
        tokens = read_tokens(arguments.token_file) if arguments.token_file else Tokens()
        central = Central(
            arguments.limits,
            name=arguments.name,
            listen=arguments.listen,
            slot_seconds=arguments.slot,
            node_token=tokens.node,
            admin_token=tokens.admin,
            tls_cert=arguments.tls_cert,
            tls_key=arguments.tls_key,
            state=arguments.state,
        )
        _allow_many_files()
        _collect_seldom()
        central.run(_tell)
    except NoValidLimits as error:  # the command is right: its usage would be beside the point
        return _failed(error)
    except (ConfigError, ValueError) as error:
        arguments.parser.error(str(error))
    except SluicegateError as error:
        return _failed(error)
    return 0


def _failed(error: SluicegateError) -> int:
    sys.stderr.write(f"sluicegate central: {error}\n")
    return 1


def _tell(central: Central) -> None:
    sys.stdout.write(f"sluicegate central {central.name} listens on {central.url}\n")
    sys.stdout.flush()


def _collect_seldom() -> None:
    """A long text makes a hundred thousand objects that soon go by themselves; to look through
    them for cycles meanwhile makes it four times as long."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def _allow_many_files() -> None:
    """Each connection is a file, and the usual bound is 1,024 of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
