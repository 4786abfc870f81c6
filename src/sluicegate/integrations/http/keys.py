"""Key functions: whose limit a request counts against.

A key function takes a `Request` and returns a str (or what else `Keyed` takes). Of your
own, any function will do; these are the ones that are easy to get wrong:

    by_address()    the client's address, and nobody else's idea of it
    by_header(name) what a header says: an API key, a token
    by_user()       who is logged in

Rules they keep:

- What a client can write does not change its key in its favour. A forwarded-for header
  counts only if the peer that sent it is listed as a proxy; then it is walked from the
  right, and the first address that is no listed proxy is the client. Whatever stands to
  the left of it was written by the client, and is not looked at. What cannot be read ends the
  walk: the key is the last address that was sure.
- One client is one key: an IPv6 client owns a whole /64, so a /64 is a key; IPv4 written
  as IPv6 is IPv4; ports and zones are no part of it.
- A key is bounded: one of more than 200 bytes is replaced by a digest of it.
"""

import hashlib
import ipaddress
from collections.abc import Callable, Iterable
from functools import lru_cache

from sluicegate.integrations.http.request import Request
from sluicegate.limits.limit import Key

__all__ = ["KeyFunction", "bounded", "by_address", "by_header", "by_user", "header_name"]

KeyFunction = Callable[[Request], Key]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_KEY_BYTES = 200  # bytes
UNIX = "unix"
ADDRESSES_REMEMBERED = 4096


def by_address(
    trusted: Iterable[str] = (), *, header: str = "x-forwarded-for", ipv6_prefix: int = 64
) -> KeyFunction:
    """The address of the client.

    `trusted` are the networks of your own proxies ("10.0.0.0/8", "192.0.2.1"), and "unix"
    for a proxy that comes through a Unix socket. Only what such a peer forwards is
    believed: in X-Forwarded-For, or in Forwarded (RFC 7239) with `header="forwarded"`.
    IPv6 addresses are one key per network of `ipv6_prefix` bits. Without a proxy that is
    listed, all that come through a Unix socket are one key, "unix".
    """
    if isinstance(trusted, str):
        raise TypeError(f"trusted must be a list of networks, like [{trusted!r}], got {trusted!r}")
    listed = list(trusted)
    networks = [_network(text) for text in listed if text != UNIX]
    trusts_unix = UNIX in listed
    if not isinstance(ipv6_prefix, int) or not 1 <= ipv6_prefix <= 128:
        raise ValueError(f"ipv6_prefix must be from 1 to 128 bits, got {ipv6_prefix!r}")
    header = header_name(header)
    read = _forwarded_for if header == "forwarded" else str.strip

    @lru_cache(ADDRESSES_REMEMBERED)
    def look_up(text: str) -> tuple[str | None, bool]:
        """The key of an address as it is written, and whether it is one of our proxies."""
        address = _address(text)
        if address is None:
            return None, False
        is_trusted = any(address in network for network in networks)
        if address.version == 6:
            return str(ipaddress.ip_network((address, ipv6_prefix), strict=False)), is_trusted
        return str(address), is_trusted

    def key_of(request: Request) -> str:
        peer = request.client
        if peer is None:
            key, is_trusted = UNIX, trusts_unix
        elif not networks and ":" not in peer:
            return peer  # the server's own word: nothing to trust, group or clean
        else:
            found, is_trusted = look_up(peer)
            key = peer if found is None else found
        if not is_trusted:
            return key
        rest = request.header(header) or ""
        while is_trusted and rest:
            # From the right, so that no quote or comma of the client's is ever read.
            rest, _, last = rest.rpartition(",")
            text = read(last)
            if len(text) > MAX_KEY_BYTES:
                break
            found, is_trusted = look_up(text)
            key = key if found is None else found
        return key

    return key_of


def by_header(name: str, *, otherwise: KeyFunction | None = None) -> KeyFunction:
    """What the header `name` says; of a request without it, `otherwise` (the address).

    A header is the client's own word. Who sends another value with each request has a new
    key each time, so values must be checked by somebody, or a rule by address stand beside.
    """
    name = header_name(name)
    fall_back = by_address() if otherwise is None else otherwise

    def key_of(request: Request) -> Key:
        value = request.header(name)
        return fall_back(request) if not value else _labelled(name, value)

    return key_of


def by_user(
    find: Callable[[Request], str | None] | None = None, *, otherwise: KeyFunction | None = None
) -> KeyFunction:
    """Who is logged in, as the framework knows or as `find` says; else `otherwise` (the address).

    The framework must know it before the limit is asked: put the middleware inside the one
    that authenticates.
    """
    fall_back = by_address() if otherwise is None else otherwise

    def key_of(request: Request) -> Key:
        user = request.user if find is None else find(request)
        return fall_back(request) if user is None or user == "" else _labelled("user", str(user))

    return key_of


def bounded(key: Key) -> Key:
    """The key; if it takes more than 200 bytes, a digest of it."""
    if isinstance(key, tuple):
        parts = tuple([bounded(part) for part in key])
        raw = repr(parts).encode("utf-8", "surrogatepass")
        return parts if len(raw) <= MAX_KEY_BYTES else ("blake2b", _digest(raw))
    if isinstance(key, int) and key.bit_length() > MAX_KEY_BYTES * 8:
        return f"blake2b:{_digest(hex(key).encode())}"
    if isinstance(key, str) and len(key) * 4 > MAX_KEY_BYTES:
        raw = key.encode("utf-8", "surrogatepass")
        return key if len(raw) <= MAX_KEY_BYTES else f"blake2b:{_digest(raw)}"
    if isinstance(key, bytes) and len(key) > MAX_KEY_BYTES:
        return b"blake2b:" + _digest(key).encode()
    return key


def _labelled(label: str, value: str) -> str:
    """Marked with where it is from: no header can pass for an address, nor for a digest."""
    if len(label) + len(value) < MAX_KEY_BYTES // 4:
        return f"{label}={value}"
    raw = value.encode("utf-8", "surrogatepass")
    return (
        f"{label}={value}" if len(label) + len(raw) < MAX_KEY_BYTES else f"{label}#{_digest(raw)}"
    )


def _digest(raw: bytes) -> str:
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


def header_name(name: str) -> str:
    """The name in lower case; ValueError if it is none."""
    if not name.isascii() or not name or any(mark in name for mark in " :,\r\n"):
        raise ValueError(f"expected a header name like 'x-api-key', got {name!r}")
    return name.lower()


def _network(text: str) -> Network:
    try:
        network = ipaddress.ip_network(text)
    except ValueError as wrong:
        raise ValueError(
            f"expected a network like '10.0.0.0/8', an address or 'unix', got {text!r}: {wrong}"
        ) from None
    return network


def _address(text: str) -> Address | None:
    """An address, with or without brackets, port and zone; None if it is none."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _forwarded_for(element: str) -> str:
    """The address in one element of a Forwarded field; "" if there is none, or two.

    Or if the element is half of a quoted text, in which the client may have put a comma.
    """
    if element.count('"') % 2:
        return ""
    pairs = [pair.partition("=") for pair in element.split(";")]
    values = [value for name, _, value in pairs if name.strip().lower() == "for"]
    return values[0].strip().strip('"') if len(values) == 1 else ""
