"""`sluicegate nginx-conf`: prints the configuration of an nginx that is an end node.

Exit code 0 when it was printed or written; 1 when the file could not be written, or the Lua files
of this installation are missing; 2 for wrong usage.
"""

import argparse
import ipaddress
import os
import re
import shlex
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from sluicegate.cli.nginx_template import HttpPart, ServerPart, UserFrom, nginx_string
from sluicegate.cli.output import printable, tell_written
from sluicegate.clock import Clock
from sluicegate.quota.lua_files import LUA

__all__ = ["configure"]

_CENTRAL_PORT = 7411
_SYSTEM_CA = "/etc/ssl/certs/ca-certificates.crt"
_SCHEMES = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}
_PORTS = {"ws": 80, "wss": 443}
_HOST_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_HEADER = re.compile(r"[A-Za-z0-9-]+")
_SIZE = re.compile(r"([1-9][0-9]{0,6})([km])", re.IGNORECASE)
_MIN_DICT_BYTES = 64 << 10


class _Central(NamedTuple):
    """A central as it was written; without a scheme it is --tls that decides."""

    scheme: str | None
    host: str
    port: int | None

    def url(self, tls: bool) -> str:
        scheme = self.scheme or ("wss" if tls else "ws")
        port = self.port or (_PORTS[scheme] if self.scheme else _CENTRAL_PORT)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{port}"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Prints the configuration of an nginx that enforces a quota, as an end node in Lua.\n"
        "The part for http {} is to be included there; it closes with an example of a server.\n"
        "With --part server, the lines of that server are printed for a file of their own."
    )
    parser.epilog = """examples:
  sluicegate nginx-conf --central 10.0.0.1 --central 10.0.0.2 --service front \\
      --user-from header:X-User --token-file /etc/sluicegate/node-token \\
      --out /etc/nginx/conf.d/sluicegate.conf
  sluicegate nginx-conf --part server --service front --user-from header:X-User \\
      --out /etc/nginx/snippets/sluicegate.conf

then: include snippets/sluicegate.conf; in a server or a location, nginx -t, and reload nginx"""
    parser.add_argument(
        "--part",
        choices=("http", "server"),
        default="http",
        help="what to print: the file for http {} (default), or the lines of a server",
    )
    parser.add_argument(
        "--central",
        action="append",
        type=_central,
        default=[],
        metavar="HOST[:PORT]",
        help="a central (default port: 7411), or its ws:// or wss:// URL; repeatable",
    )
    parser.add_argument(
        "--service",
        action="append",
        type=_name(50),
        metavar="NAME",
        help="name of the service in the limits (default: front); repeatable for http {}",
    )
    parser.add_argument(
        "--user-from",
        required=True,
        type=_user_from,
        metavar="HOW",
        help="what names the user: header:NAME, jwt:CLAIM (of a bearer token that something in "
        "front has verified), certificate (subject of the client certificate) or address; a "
        "request without it counts for the client's address",
    )
    parser.add_argument(
        "--node-id",
        type=_name(200),
        metavar="ID",
        help="name of this node at the centrals (default: the host name)",
    )
    parser.add_argument(
        "--token-file",
        type=_path,
        metavar="F",
        help="file with the centrals' node token and no more, on the machine of nginx",
    )
    parser.add_argument(
        "--tls", action="store_true", help="connect with TLS to centrals given as HOST[:PORT]"
    )
    parser.add_argument(
        "--server-name",
        type=_server_name,
        metavar="NAME",
        help="name in the certificates of centrals with TLS; required for one given by its address",
    )
    parser.add_argument(
        "--ca",
        type=_path,
        metavar="F",
        help=f"CA certificates for centrals with TLS (PEM; default: {_SYSTEM_CA})",
    )
    parser.add_argument(
        "--resolver",
        action="append",
        type=_address,
        default=[],
        metavar="ADDRESS",
        help="name server for centrals given by name, which nginx needs; repeatable",
    )
    parser.add_argument(
        "--lua-path",
        type=_lua_path,
        metavar="FOLDER",
        help="folder with throttle/*.lua (default: that of this installation)",
    )
    parser.add_argument(
        "--dict-size",
        type=_dict_size,
        default="16m",
        metavar="SIZE",
        help="size of the shared dictionary that shows what is counted (default: 16m)",
    )
    parser.add_argument("--out", metavar="FILE", help="write to a file instead of stdout")
    parser.set_defaults(run=_run, parser=parser)


def _run(arguments: argparse.Namespace, clock: Clock) -> int:
    services: list[str] = list(dict.fromkeys(arguments.service or ["front"]))
    server = ServerPart(services[0], arguments.user_from)
    if arguments.part == "server":
        if len(services) > 1:
            arguments.parser.error(f"--part server is for one --service, got {len(services)}")
        text = server.text()
    else:
        lua_path = arguments.lua_path or _installed_lua()
        if lua_path is None:
            return _failed(f"no Lua files that nginx can load in {LUA}: use --lua-path FOLDER")
        text = _http_part(arguments, services, server, lua_path).text()
    if arguments.out is None:
        sys.stdout.write(text)
        return 0
    try:
        Path(arguments.out).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        return _failed(f"cannot write the configuration: {error}")
    tell_written(arguments.out)
    return 0


def _failed(message: str) -> int:
    sys.stderr.write(f"sluicegate nginx-conf: {message}\n")
    return 1


def _http_part(
    arguments: argparse.Namespace, services: list[str], server: ServerPart, lua_path: str
) -> HttpPart:
    error: Callable[[str], object] = arguments.parser.error  # does not return
    centrals: list[_Central] = arguments.central
    if not centrals:
        error("--central is required for --part http")
    for central in centrals:
        if arguments.tls and central.scheme == "ws":
            error(f"--tls, but {central.url(True)} is a URL without TLS: expected wss://")
        if not _is_address(central.host) and not arguments.resolver:
            error(
                f"the central {central.host!r} is a name: expected --resolver ADDRESS, since nginx "
                "looks up names at a server that it is told, or the central's address"
            )
    urls = list(dict.fromkeys(central.url(arguments.tls) for central in centrals))
    uses_tls = any(url.startswith("wss:") for url in urls)
    if arguments.ca is not None and not uses_tls:
        error("--ca is for centrals with --tls or a wss:// URL")
    if arguments.server_name is not None and not uses_tls:
        error("--server-name is for centrals with --tls or a wss:// URL")
    for central in centrals:
        url = central.url(arguments.tls)
        if url.startswith("wss:") and _is_address(central.host) and arguments.server_name is None:
            error(
                f"the central {url} is given by its address, and nginx compares the certificate "
                "with a name: expected --server-name NAME, a DNS name of the certificate"
            )
    return HttpPart(
        command=printable(shlex.join(["sluicegate", *arguments.words])),
        services=services,
        centrals=urls,
        node_id=arguments.node_id or socket.gethostname(),
        lua_path=lua_path,
        dict_size=arguments.dict_size,
        token_file=arguments.token_file,
        ca_file=(arguments.ca or _SYSTEM_CA) if uses_tls else None,
        server_name=arguments.server_name,
        resolvers=arguments.resolver,
        example=server,
    )


def _installed_lua() -> str | None:
    """The folder of the Lua files; None if they are missing, or nginx cannot be told their path."""
    if not (LUA / "throttle").is_dir():
        return None
    try:
        return _lua_path(str(LUA))
    except argparse.ArgumentTypeError:
        return None


def _name(most: int) -> Callable[[str], str]:
    """A name as the centrals take it, of up to `most` bytes, in one printed line."""

    def name(text: str) -> str:
        if not text.isprintable() or not 1 <= len(text.encode()) <= most:
            raise argparse.ArgumentTypeError(
                f"expected 1 to {most} bytes of printable text, got {text!r}"
            )
        return text

    return name


def _user_from(text: str) -> UserFrom:
    kind, colon, name = text.partition(":")
    if kind == "header" and _HEADER.fullmatch(name):
        return UserFrom("header", name)
    if kind == "header" and name:
        raise argparse.ArgumentTypeError(
            f"expected a header of letters, digits and -, as nginx takes them, got {name!r}"
        )
    if kind == "jwt" and name:
        return UserFrom("jwt", _name(200)(name))
    if kind == "certificate" and not colon:
        return UserFrom("certificate")
    if kind == "address" and not colon:
        return UserFrom("address")
    raise argparse.ArgumentTypeError(
        f"expected header:NAME, jwt:CLAIM, certificate or address, got {text!r}"
    )


def _central(text: str) -> _Central:
    expected = "expected HOST, HOST:PORT or a URL like ws://10.0.0.1:7411"
    try:
        parts = urlsplit(text if "://" in text else f"//{text}")
        port = parts.port
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(f"{expected}, got {text!r} ({wrong})") from None
    host = parts.hostname or ""
    is_host = _is_address(host) or _HOST_NAME.fullmatch(host)
    is_bare = parts.username is None and parts.path in ("", "/") and not parts.query
    if not is_host or not is_bare or parts.fragment or port == 0 or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{expected}, got {text!r}")
    if parts.scheme and parts.scheme not in _SCHEMES:
        raise argparse.ArgumentTypeError(f"{expected}, got {text!r}")
    return _Central(_SCHEMES.get(parts.scheme), host, port)


def _server_name(text: str) -> str:
    if not _HOST_NAME.fullmatch(text) or _is_address(text):
        raise argparse.ArgumentTypeError(f"expected a DNS name, got {text!r}")
    return text


def _is_address(host: str) -> bool:
    try:
        return "%" not in host and bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def _address(text: str) -> str:
    if not _is_address(text):
        raise argparse.ArgumentTypeError(f"expected an IP address, got {text!r}")
    return f"[{text}]" if ":" in text else text


def _path(text: str) -> str:
    """An absolute path: nginx takes others as relative to a folder of its own."""
    try:
        nginx_string(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(f"expected a path, as nginx takes it: {wrong}") from None
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got ''")
    return os.path.abspath(text)


def _lua_path(text: str) -> str:
    if ";" in text or "?" in text:
        raise argparse.ArgumentTypeError(
            f"expected a path without ; and ?, which separate paths in Lua, got {text!r}"
        )
    return _path(text)


def _dict_size(text: str) -> str:
    size = _SIZE.fullmatch(text)
    unit = 1 << 10 if text[-1:] in "kK" else 1 << 20
    if size is None or int(size[1]) * unit < _MIN_DICT_BYTES:
        raise argparse.ArgumentTypeError(f"expected a size like 16m, at least 64k, got {text!r}")
    return text
