"""`ServerUrl`: the base URL of a server, and requests that are addressed to it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import httpx

__all__ = ["ServerUrl", "parse_server_url"]


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """`prefix` is the path in front of those of requests, without a slash at its end."""

    scheme: str
    host: str
    port: int | None
    prefix: bytes
    host_header: str

    def address(self, request: httpx.Request, keep_host: bool) -> httpx.Request:
        """The same request to this server.

        `Host` is the server's, unless `keep_host`, or the caller has set one of its own.
        """
        url = httpx.URL(
            scheme=self.scheme,
            host=self.host,
            port=self.port,
            raw_path=self.prefix + request.url.raw_path,
        )
        headers = httpx.Headers(request.headers)
        of_url = request.url.netloc.decode("ascii")
        if headers.setdefault("Host", of_url).lower() == of_url.lower() and not keep_host:
            headers["Host"] = self.host_header
        return httpx.Request(
            request.method,
            url,
            headers=headers,
            stream=request.stream,
            extensions=request.extensions,
        )


def parse_server_url(address: str) -> ServerUrl:
    """Read the base URL that is the address of a server: http or https, a host, port and path."""
    return _known(address)


def _parse(address: str) -> ServerUrl:
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL as error:
        raise ValueError(f"{_expected(address)}: {error}") from None
    if url.scheme not in ("http", "https") or not url.raw_host or b"%" in url.raw_host:
        raise ValueError(_expected(address))
    if url.port is not None and not 1 <= url.port <= 65535:
        raise ValueError(f"{_expected(address)}: the port must be from 1 to 65535")
    if "@" in address.partition("://")[2].partition("/")[0]:
        raise ValueError(f"{_expected(address)}: user and password belong into the request")
    if "?" in address or "#" in address:
        raise ValueError(f"{_expected(address)}: a query or fragment belongs into the request")
    return ServerUrl(
        scheme=url.scheme,
        host=url.raw_host.decode("ascii"),
        port=url.port,
        prefix=url.raw_path.rstrip(b"/"),
        host_header=url.netloc.decode("ascii"),
    )


_known: Callable[[str], ServerUrl] = lru_cache(maxsize=4096)(_parse)


def _expected(address: str) -> str:
    return (
        "the address of a server must be a base URL like 'http://10.0.0.1:8000' or "
        f"'https://host/prefix', got {address!r}"
    )
