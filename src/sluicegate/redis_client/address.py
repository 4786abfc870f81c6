"""`parse_address`: the address of Redis, read from a URL.

    redis://[[user]:password@]host[:port][/db]      rediss:// the same over TLS
    unix://[[user]:password@]/path/to.sock[?db=0]
    redis+sentinel://host[:port],host.../service[/db]       the master of a service
    redis+cluster://host[:port],host...                     the masters of a cluster

`rediss+sentinel` and `rediss+cluster` are over TLS. redis-py reads the URL, so what it
understands behind `?` (ssl_ca_certs, ssl_cert_reqs, ...) holds here; its time-outs and
pool sizes do not, for each call brings its own deadline. Passwords are in no `repr`.
"""

import re
import ssl
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sluicegate.redis_client.resp import load, pack

__all__ = ["Address", "Endpoint", "parse_address"]

_URL = re.compile(
    r"(?P<scheme>rediss?|unix)(?:\+(?P<kind>sentinel|cluster))?"
    r"://(?P<login>[^@/]*@)?(?P<hosts>[^/?]*)(?P<rest>.*)",
    re.DOTALL,
)
_PORTS = {"": 6379, "cluster": 6379, "sentinel": 26379}


class Endpoint(NamedTuple):
    """Where a socket goes: a host and port, or the path of a unix socket (port 0)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


@dataclass(frozen=True, slots=True)
class Address:
    """One Redis (`kind` is ""), a service behind sentinels, or a cluster."""

    kind: str
    endpoints: tuple[Endpoint, ...]
    service: str
    login: bytes = field(repr=False)  # packed commands that open a connection
    login_count: int = field(repr=False)
    tls: ssl.SSLContext | None = field(repr=False)
    options: dict[str, Any] = field(repr=False, compare=False)  # for redis-py's own discovery

    def __str__(self) -> str:
        where = ",".join(map(str, self.endpoints))
        return f"{where}/{self.service}" if self.service else where


def parse_address(url: str) -> Address:
    """Read a URL; ValueError says what is wrong with it, without the password."""
    if not isinstance(url, str):
        raise TypeError(f"url must be a string like 'redis://localhost:6379', got {url!r}")
    match = _URL.fullmatch(url)
    if match is None or (match["kind"] and match["scheme"] == "unix"):
        scheme = url.partition("://")[0] if "://" in url else ""
        raise ValueError(
            "url must start with redis://, rediss://, unix://, redis+sentinel:// or "
            f"redis+cluster://, got {scheme + '://...' if scheme else 'no scheme'}"
        )
    kind = match["kind"] or ""
    service, rest = "", match["rest"]
    hosts = match["hosts"].split(",") if kind else [match["hosts"]]
    if kind == "sentinel":
        service, slash, rest = rest.removeprefix("/").partition("/")
        service, question, query = service.partition("?")
        rest = slash + rest + question + query
        if not service:
            raise ValueError("sentinel URL must name a service: redis+sentinel://host/service")
    parsed = [
        _parse_one(f"{match['scheme']}://{match['login'] or ''}{host}{rest}") for host in hosts
    ]
    if match["scheme"] != "unix":
        _check_database(rest)
    port = _PORTS[kind]
    endpoints = tuple(
        Endpoint(one.path, 0)
        if match["scheme"] == "unix"
        else Endpoint(one.host, one.port if _has_port(host) else port)
        for one, host in zip(parsed, hosts, strict=True)
    )
    if kind == "cluster" and parsed[0].db:
        raise ValueError(f"database must be 0 for a Redis cluster, got {parsed[0].db}")
    login = _login(parsed[0])
    options = {"username": parsed[0].username, "password": parsed[0].password}
    tls = _tls_context(parsed[0]) if match["scheme"] == "rediss" else None
    if tls is not None:
        options |= {"ssl": True} | _tls_options(parsed[0])
    return Address(kind, endpoints, service, b"".join(login), len(login), tls, options)


def _parse_one(url: str) -> Any:
    """redis-py's idea of the URL: a connection of its own that is never opened."""
    redis = load("redis")
    try:
        pool = redis.ConnectionPool.from_url(url)
    except ValueError:  # its message may have a piece of the password in it
        raise ValueError(
            "invalid Redis URL: the port must be a number, and / ? # in the password must be "
            "written as %2F %3F %23"
        ) from None
    options = pool.connection_kwargs
    try:
        one = pool.connection_class(**options)
        if hasattr(one, "check_hostname"):
            # Before its version 6, redis-py did not look at the name unless told to.
            wanted = str(options.get("ssl_check_hostname", True)).lower()
            is_checked = wanted not in ("false", "f", "no", "n", "0")
            one.check_hostname = is_checked and one.cert_reqs != ssl.CERT_NONE
        return one
    except (TypeError, redis.RedisError) as error:
        raise ValueError(f"invalid query in the Redis URL: {error}") from None


def _check_database(rest: str) -> None:
    """Raise if the path is no number: redis-py would take database 0."""
    path = re.split("[?#]", rest, maxsplit=1)[0].strip("/")
    if path and not (path.isascii() and path.isdigit()):
        # With an @ it may be a piece of the password.
        found = "another text" if "@" in rest else repr(path)
        raise ValueError(
            f"database in the Redis URL must be a number, as in redis://host/0, got {found}; / in "
            "the password must be written as %2F"
        )


def _has_port(host: str) -> bool:
    return re.search(r":\d+$", host) is not None


def _login(one: Any) -> list[bytes]:
    commands = []
    if one.password or one.username:
        words = [one.username] if one.username else []
        commands.append(pack("AUTH", *words, one.password or ""))
    if one.db:
        commands.append(pack("SELECT", one.db))
    return commands


_TLS_OPTIONS = {
    "keyfile": "ssl_keyfile",
    "certfile": "ssl_certfile",
    "cert_reqs": "ssl_cert_reqs",
    "ca_certs": "ssl_ca_certs",
    "ca_data": "ssl_ca_data",
    "ca_path": "ssl_ca_path",
    "check_hostname": "ssl_check_hostname",
    "certificate_password": "ssl_password",
}


def _tls_options(one: Any) -> dict[str, Any]:
    return {option: getattr(one, name) for name, option in _TLS_OPTIONS.items()}


def _tls_context(one: Any) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = one.check_hostname
    context.verify_mode = one.cert_reqs
    if one.certfile or one.keyfile:
        context.load_cert_chain(one.certfile, one.keyfile, one.certificate_password)
    if one.ca_certs or one.ca_path or one.ca_data:
        context.load_verify_locations(one.ca_certs, one.ca_path, one.ca_data)
    return context
