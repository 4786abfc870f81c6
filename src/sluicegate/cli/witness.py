"""`sluicegate witness`: runs a `Witness` until SIGTERM.

Exit code 0 after a clean stop; 1 when it could not start (the port is in use); 2 for wrong usage,
including a file that does not exist or cannot be used.
"""

import argparse
import asyncio
import logging
import sys
from typing import TYPE_CHECKING

from sluicegate.cli.central import add_peer_options, raise_file_limit
from sluicegate.clock import Clock
from sluicegate.errors import ConfigError, SluicegateError
from sluicegate.quota.central.net.tokens import Tokens, read_tokens

if TYPE_CHECKING:
    from sluicegate.quota.central.witness import Witness

__all__ = ["configure"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs a witness: a member of the election of the centrals that votes and never leads.\n"
        "With two centrals it is the third vote, so that one of the three may fail."
    )
    parser.epilog = """example:
  sluicegate witness --name w --listen 10.0.0.3:7411 --state w.state --token-file tokens.toml \\
      --peers a=ws://10.0.0.1:7411,b=ws://10.0.0.2:7411,w=ws://10.0.0.3:7411

the token file (chmod 600) has the line peer = "...", as on the centrals"""
    parser.add_argument("--name", required=True, metavar="W", help="name of this witness")
    parser.add_argument(
        "--listen",
        default="127.0.0.1:7411",
        metavar="HOST:PORT",
        help="address to listen on (default: 127.0.0.1:7411)",
    )
    parser.add_argument(
        "--state",
        required=True,
        metavar="FILE",
        help="FILE.election keeps what this witness must not forget",
    )
    parser.add_argument("--token-file", metavar="F", help="file with the token of the peers")
    parser.add_argument("--tls-cert", metavar="F", help="TLS certificate (PEM)")
    parser.add_argument("--tls-key", metavar="F", help="private key of the certificate (PEM)")
    add_peer_options(parser)
    parser.set_defaults(run=_run, parser=parser)


def _run(arguments: argparse.Namespace, clock: Clock) -> int:
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    # The library has a line for each connection, which does not say of whom.
    logging.getLogger("websockets").setLevel(logging.WARNING)
    raise_file_limit()
    try:
        asyncio.run(_serve(arguments))
    except (ConfigError, ValueError) as error:
        arguments.parser.error(str(error))
    except (SluicegateError, ModuleNotFoundError) as error:
        sys.stderr.write(f"sluicegate witness: {error}\n")
        return 1
    return 0


async def _serve(arguments: argparse.Namespace) -> None:
    from sluicegate.quota.central.witness import Witness

    tokens = read_tokens(arguments.token_file) if arguments.token_file else Tokens()
    witness = Witness(
        arguments.name,
        arguments.peers or {},
        arguments.listen,
        arguments.state,
        peer_token=tokens.peer,
        tls_cert=arguments.tls_cert,
        tls_key=arguments.tls_key,
        peer_ca=arguments.peer_ca,
        lease=arguments.lease,
    )
    await witness.run(_print_address)


def _print_address(witness: "Witness") -> None:
    sys.stdout.write(f"sluicegate witness {witness.name} listens on {witness.url}\n")
    sys.stdout.flush()
