"""The two secrets of a central: one for nodes, one for those who change limits.

    node = "..."       # TOML; nodes present it when they connect
    admin = "..."      # the HTTP API and the monitor ask for it

A file of one bare line is both. The file must be its owner's alone: who can read it can lift every
limit, and a file that is open to all is more often a slip than a wish, so it is refused.

A token that is not set is not asked for. That is for a machine of one's own: a central that other
machines can reach starts only with both.
"""

import hmac
import ipaddress
import os
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from sluicegate.errors import ConfigError

__all__ = ["Tokens", "is_loopback", "is_this_machine", "read_tokens"]

_EXPECTED = 'node = "..." and admin = "..."'
_SHORTEST = 8
_LONGEST = 500
_MOST_BYTES = 10_000


@dataclass(frozen=True, slots=True)
class Tokens:
    """What nodes and what administrators must present. None: nothing."""

    node: str | None = field(default=None, repr=False)
    admin: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for what, token in (("node", self.node), ("admin", self.admin)):
            if token is not None:
                _check(what, token)

    @property
    def are_set(self) -> bool:
        return self.node is not None and self.admin is not None

    def allows(self, role: Literal["admin", "node"], authorization: str | None) -> bool:
        """Whether a header `Authorization: Bearer TOKEN` will do. An administrator may do all."""
        wanted = [self.admin] if role == "admin" else [self.node, self.admin]
        if wanted[0] is None:
            return True
        scheme, _, shown = (authorization or "").partition(" ")
        given = shown.strip().encode("utf-8", "replace")
        # All are compared, so that the time tells nothing of which one was nearer.
        matches = [
            hmac.compare_digest(given, token.encode()) for token in wanted if token is not None
        ]
        return scheme.lower() == "bearer" and any(matches)


def is_this_machine(host: str | None) -> bool:
    """Whether a header `Host` names this machine by a name that nobody else can give it.

    A page of evil.example whose name has come to mean 127.0.0.1 sends `Host: evil.example`. What
    sends none is no browser.
    """
    if host is None:
        return True
    name = urlsplit(f"//{host}").hostname or ""
    return is_loopback(name) or name.endswith(".localhost")


def read_tokens(path: str | Path) -> Tokens:
    """The tokens of a file, or a ConfigError that says what to do."""
    try:
        text, status = _read(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the token file {path} cannot be read: {error}") from None
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"the token file {path} has mode {mode:03o}: others may read it; expected 600: "
            f"chmod 600 {path}"
        )
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise ConfigError(f"the token file {path} is empty; expected {_EXPECTED}")
    if len(lines) == 1 and "=" not in lines[0].rstrip("="):  # base64 may end with it
        return _tokens(path, lines[0], lines[0])
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError):
        # Without what the parser says: it would show a part of the secret.
        raise ConfigError(
            f"the token file {path} is neither one line nor TOML; expected {_EXPECTED}"
        ) from None
    others = sorted(document.keys() - {"node", "admin"})
    if others:
        raise ConfigError(f"the token file {path} must have {_EXPECTED}, got {others}")
    return _tokens(path, document.get("node"), document.get("admin"))


def _read(path: str | Path) -> tuple[str, os.stat_result]:
    """A plain file: a pipe that nobody writes to would be waited for without end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("expected a plain file")
        return os.read(descriptor, _MOST_BYTES).decode(), status
    finally:
        os.close(descriptor)


def _tokens(path: str | Path, node: object, admin: object) -> Tokens:
    for what, token in (("node", node), ("admin", admin)):
        if token is not None and not isinstance(token, str):
            raise ConfigError(
                f"the token file {path}: {what} must be text, got {type(token).__name__}"
            )
    try:
        return Tokens(node, admin)  # type: ignore[arg-type]
    except ValueError as error:
        raise ConfigError(f"the token file {path}: {error}") from None


def _check(what: str, token: str) -> None:
    if not isinstance(token, str):
        raise TypeError(f"the {what} token must be text, got {type(token).__name__}")
    if not _SHORTEST <= len(token) <= _LONGEST:
        raise ValueError(
            f"the {what} token must have {_SHORTEST} to {_LONGEST} characters, got {len(token)}"
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f"the {what} token must be printable ASCII without spaces")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address to listen on."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name may mean anything
