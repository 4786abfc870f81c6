"""`sluicegate central`: runs a `Central` until SIGTERM.

It prints one line on stdout when it listens, so that the program that started it learns the
address; everything after that is logged to stderr. Exit code 0 after a clean stop; 1 when it could
not start (the port is in use, Redis does not answer, no entry of the limits is valid); 2 for wrong
usage, including a file that does not exist or cannot be used.
"""

import argparse
import gc
import logging
import resource
import sys

from sluicegate.clock import Clock
from sluicegate.errors import ConfigError, SluicegateError
from sluicegate.quota.central.central import Central
from sluicegate.quota.central.limit_sources.sync import NoValidLimits
from sluicegate.quota.central.membership import LEAD_ALL, LEAD_CHOICES, parse_peers
from sluicegate.quota.central.net.tokens import Tokens, read_tokens

__all__ = ["add_peer_options", "configure", "raise_file_limit"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs a central: nodes report to it what users consumed, and it assigns each node its\n"
        "share of the limits. It prints one line when it listens, and stops on SIGTERM."
    )
    parser.epilog = """examples:
  sluicegate central --limits limits.toml
  sluicegate central --limits limits.db --state central.state
  sluicegate central --listen 0.0.0.0:7411 --limits redis://10.0.0.5/0 --token-file tokens.toml \\
      --tls-cert central.crt --tls-key central.key
  sluicegate central --listen 10.0.0.1:7411 --limits redis://10.0.0.5/0 --token-file tokens.toml \\
      --state a.state --name a --election paxos \\
      --peers a=ws://10.0.0.1:7411,b=ws://10.0.0.2:7411,c=ws://10.0.0.3:7411

a token file (chmod 600) has two lines, node = "..." and admin = "..."; a file with one bare line
uses it for both. Centrals with peers need a third, peer = "..."."""
    parser.add_argument(
        "--listen",
        default="127.0.0.1:7411",
        metavar="HOST:PORT",
        help="address to listen on (default: 127.0.0.1:7411); port 0 picks a free one",
    )
    parser.add_argument(
        "--limits",
        required=True,
        metavar="SOURCE",
        help="FILE.toml, FILE.db (SQLite, editable through the API) or redis://...",
    )
    parser.add_argument(
        "--name", default="central", metavar="N", help="name of this central (default: central)"
    )
    parser.add_argument(
        "--token-file", metavar="F", help="file with the tokens of nodes and administrators"
    )
    parser.add_argument("--tls-cert", metavar="F", help="TLS certificate (PEM)")
    parser.add_argument("--tls-key", metavar="F", help="private key of the certificate (PEM)")
    parser.add_argument(
        "--slot",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="length of a slot, at least 0.1 (default: 1); must be the same on all nodes",
    )
    parser.add_argument(
        "--state", metavar="FILE", help="file that keeps the buckets across a restart"
    )
    add_peer_options(parser)
    parser.add_argument(
        "--election",
        metavar="HOW",
        help="how several centrals elect the active one: paxos (among themselves), "
        "etcd://HOST:PORT,... or redis://...",
    )
    parser.set_defaults(run=_run, parser=parser)


def add_peer_options(parser: argparse.ArgumentParser) -> None:
    """What all members of an election have."""
    parser.add_argument(
        "--peers",
        type=_peers,
        metavar="N=URL,...",
        help="all members of the election by name, this one included; the same on each",
    )
    parser.add_argument(
        "--lease",
        type=float,
        metavar="SECONDS",
        help="how long a leader leads without a renewal, 0.4 to 60 (default: 2); the same on each",
    )
    parser.add_argument(
        "--lead",
        choices=LEAD_CHOICES,
        default=LEAD_ALL,
        help="all: the elected central leads all services (default); per-service: it divides them "
        "among the centrals; the same on all of them",
    )
    parser.add_argument(
        "--peer-ca",
        metavar="F",
        help="CA certificates for peers with wss:// (PEM), instead of the system's",
    )


def _peers(text: str) -> dict[str, str]:
    try:
        return parse_peers(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _run(arguments: argparse.Namespace, clock: Clock) -> int:
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
            peer_token=tokens.peer,
            tls_cert=arguments.tls_cert,
            tls_key=arguments.tls_key,
            state=arguments.state,
            peers=arguments.peers,
            election=arguments.election,
            lease=arguments.lease,
            lead=arguments.lead,
            peer_ca=arguments.peer_ca,
        )
        raise_file_limit()
        _tune_gc()
        central.run(_print_address)
    except NoValidLimits as error:  # not a usage error: the command itself is right
        return _failed(error)
    except (ConfigError, ValueError) as error:
        arguments.parser.error(str(error))
    except SluicegateError as error:
        return _failed(error)
    return 0


def _failed(error: SluicegateError) -> int:
    sys.stderr.write(f"sluicegate central: {error}\n")
    return 1


def _print_address(central: Central) -> None:
    sys.stdout.write(f"sluicegate central {central.name} listens on {central.url}\n")
    sys.stdout.flush()


def _tune_gc() -> None:
    """A long JSON frame creates 100,000 short-lived objects; collecting at the default threshold
    meanwhile makes reading it four times slower."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def raise_file_limit() -> None:
    """Each connection needs a descriptor, and the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
