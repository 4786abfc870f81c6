"""`Tokens`: the secrets of a central, one for nodes, one for administrators, one for its peers.

    node = "..."       # TOML; nodes present it when they connect
    admin = "..."      # required by the HTTP API and the monitor
    peer = "..."       # other centrals present it; only where there are several

A file of one bare line sets the first two. The file must be readable by its owner only: anybody who
can read it can lift every limit, and a file that is open to all is usually a mistake, so it is
rejected.

A token that is not set is not required. That is for a single machine: a central that other
machines can reach starts only with those of nodes and administrators, and with that of peers if it
has any. The admin token does not open the connection of a peer: whoever can cast the vote of a
central can stop the whole fleet's election, and administrators need no vote.
"""

import hmac
import ipaddress
import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from sluicegate.errors import ConfigError, reason_of

__all__ = ["Tokens", "is_loopback", "is_this_machine", "read_tokens"]

_EXPECTED = 'node = "..." and admin = "..." (and peer = "..." for several centrals)'
_ROLES = ("node", "admin", "peer")
_MIN_LENGTH = 8
_MAX_LENGTH = 500
_MAX_BYTES = 10_000


@dataclass(frozen=True, slots=True)
class Tokens:
    """What nodes, administrators and peers must present. None: nothing."""

    node: str | None = field(default=None, repr=False)
    admin: str | None = field(default=None, repr=False)
    peer: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for what, token in (("node", self.node), ("admin", self.admin), ("peer", self.peer)):
            if token is not None:
                _check_token(what, token)

    @property
    def are_set(self) -> bool:
        return self.node is not None and self.admin is not None

    def allows(self, role: Literal["admin", "node", "peer"], authorization: str | None) -> bool:
        """Whether an `Authorization: Bearer TOKEN` header suffices.

        Administrators may do all that nodes may.
        """
        wanted = {"admin": [self.admin], "node": [self.node, self.admin], "peer": [self.peer]}[role]
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
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:  # a bracket without its other half
        return False
    return is_loopback(name) or name.endswith(".localhost")


def read_tokens(path: str | Path) -> Tokens:
    """Read a token file; raises a ConfigError that says what to do."""
    try:
        text, status = _read(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read token file {path}: {reason_of(error)}") from None
    mode = stat.S_IMODE(status.st_mode)
    if mode & (0o037 if _is_credential(path) else 0o077):
        raise ConfigError(
            f"token file {path} has mode {mode:03o}, readable by others; expected 600: "
            f"chmod 600 {path}"
        )
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise ConfigError(f"token file {path} is empty; expected {_EXPECTED}")
    if len(lines) == 1 and "=" not in lines[0].rstrip("="):  # base64 may end with it
        return _tokens(path, {"node": lines[0], "admin": lines[0]})
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError):
        # Without the parser's message: it would show a part of the secret.
        raise ConfigError(
            f"token file {path} is neither one line nor TOML; expected {_EXPECTED}"
        ) from None
    others = sorted(document.keys() - set(_ROLES))
    if others:
        raise ConfigError(f"token file {path} must have {_EXPECTED}, got unknown keys {others}")
    return _tokens(path, document)


def _is_credential(path: str | Path) -> bool:
    """Whether systemd has put the file there for this service alone (`LoadCredential=`).

    Since systemd 254 such a file belongs to root, and an access control list lets the service read
    it. The mode of a file with such a list shows it as a right of the group: 440.
    """
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    return bool(folder) and Path(path).absolute().parent == Path(folder or "").absolute()


def _read(path: str | Path) -> tuple[str, os.stat_result]:
    """Read a regular file only: a pipe without a writer would block forever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("expected a regular file")
        return os.read(descriptor, _MAX_BYTES).decode(), status
    finally:
        os.close(descriptor)


def _tokens(path: str | Path, tokens: Mapping[str, Any]) -> Tokens:
    for what, token in tokens.items():
        if not isinstance(token, str):
            raise ConfigError(f"token file {path}: {what} must be text, got {type(token).__name__}")
    try:
        return Tokens(**tokens)
    except ValueError as error:
        raise ConfigError(f"token file {path}: {error}") from None


def _check_token(what: str, token: str) -> None:
    if not isinstance(token, str):
        raise TypeError(f"the {what} token must be text, got {type(token).__name__}")
    if not _MIN_LENGTH <= len(token) <= _MAX_LENGTH:
        raise ValueError(
            f"the {what} token must have {_MIN_LENGTH} to {_MAX_LENGTH} characters, "
            f"got {len(token)}"
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
