"""Checks the central URLs of a `Node` and converts them to websocket URLs."""

from collections.abc import Iterable
from urllib.parse import urlsplit

__all__ = ["central_urls"]

_EXAMPLE = "ws://127.0.0.1:7411"
_SCHEMES = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}


def central_urls(centrals: str | Iterable[str]) -> tuple[str, ...]:
    """Check one or more URLs and convert http to ws. They are the centrals' names, too."""
    if not isinstance(centrals, Iterable):
        raise TypeError(f"centrals must be one or more URLs, got {centrals!r}")
    listed = [centrals] if isinstance(centrals, str) else list(centrals)
    urls = tuple(dict.fromkeys(_url(text) for text in listed))
    if not urls:
        raise ValueError(f"centrals must be one or more URLs, got {centrals!r}")
    return urls


def _url(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"invalid central URL: expected one like {_EXAMPLE!r}, got {text!r}")
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError as wrong:
        raise ValueError(
            f"invalid central URL: expected one like {_EXAMPLE!r}, got {text!r} ({wrong})"
        ) from None
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise ValueError(f"invalid central URL: expected one like {_EXAMPLE!r}, got {text!r}")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(
            f"invalid central URL: expected a host, a port and a path, got more for "
            f"{parts.hostname!r}; pass a token as token="
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    where = host if port is None else f"{host}:{port}"
    return f"{_SCHEMES[parts.scheme]}://{where}{parts.path or '/'}"
