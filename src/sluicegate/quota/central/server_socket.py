"""What a server needs to listen: its address, and its certificate."""

import ssl

from sluicegate.errors import ConfigError, reason_of

__all__ = ["parse_address", "tls_context"]


def parse_address(listen: str) -> tuple[str, int]:
    """The host and the port of HOST:PORT."""
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(
            f"invalid listen address: expected HOST:PORT (port 0 to 65535), got {listen!r}"
        )
    return host, int(port)


def tls_context(cert: str, key: str | None) -> ssl.SSLContext:
    """The TLS settings of a server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"invalid TLS certificate {cert} or key {key}: {reason_of(error)}"
        ) from None
    return context
