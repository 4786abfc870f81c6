"""A request as rules see it, the same under every framework.

Key, cost, limit and exempt functions are given one of these two, with the same face:

    method    upper case; a websocket's handshake is a GET
    path      decoded, and without the prefix that the application is mounted under:
              what the framework itself routes by
    client    the peer's address as text; None over a Unix socket
    user      who is logged in, if the framework knows: its id as text, else None
    header(name)   all lines of that name joined by commas, or None
    native    the framework's own: an ASGI scope, a WSGI environ, Flask's or Django's
              request
    state     where the gates of a request share what they charged: its scope or environ

A header that came twice is joined and not cut down to its first line: the first may be
the client's, the last is the proxy's.
"""

from collections.abc import MutableMapping
from typing import Any, Protocol

__all__ = ["EnvironRequest", "Request", "ScopeRequest"]


class Request(Protocol):
    """What the functions of a rule are given."""

    @property
    def native(self) -> Any: ...
    @property
    def state(self) -> MutableMapping[str, Any]: ...
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def client(self) -> str | None: ...
    @property
    def user(self) -> str | None: ...
    def header(self, name: str, /) -> str | None: ...


class ScopeRequest:
    """A request of an ASGI server: http or websocket."""

    __slots__ = ("client", "method", "native", "path", "state")

    def __init__(self, scope: MutableMapping[str, Any]) -> None:
        self.native = self.state = scope
        self.method: str = scope["method"].upper() if "method" in scope else "GET"
        path: str = scope["path"]
        # Servers differ in whether the path has the prefix in it; Starlette takes it off
        # where it is there, and so do we.
        prefix = scope.get("root_path")
        if prefix and path.startswith(prefix) and path[len(prefix) :][:1] in ("", "/"):
            path = path[len(prefix) :]
        self.path = path
        client = scope.get("client")
        self.client: str | None = client[0] or None if client else None

    @property
    def user(self) -> str | None:
        return _identity(self.native.get("user"))

    def header(self, name: str, /) -> str | None:
        wanted = name.lower().encode("latin-1")
        found: bytes | None = None
        for field, value in self.native["headers"]:
            if field == wanted:
                found = value if found is None else found + b", " + value
        return None if found is None else found.decode("latin-1")


class EnvironRequest:
    """A request of a WSGI server, or anything that has such an environ (Django's META)."""

    __slots__ = ("_path", "native", "state")

    def __init__(
        self, environ: MutableMapping[str, Any], native: Any = None, path: str | None = None
    ) -> None:
        self.state = environ
        self._path = path
        self.native = environ if native is None else native

    @property
    def method(self) -> str:
        return self.state["REQUEST_METHOD"].upper()  # type: ignore[no-any-return]

    @property
    def path(self) -> str:
        if self._path is None:
            # WSGI hands over bytes in the clothes of latin-1 characters.
            raw: str = self.state.get("PATH_INFO", "")
            self._path = raw.encode("latin-1").decode("utf-8", "replace")
        return self._path

    @property
    def client(self) -> str | None:
        return self.state.get("REMOTE_ADDR") or None

    @property
    def user(self) -> str | None:
        known = _identity(getattr(self.native, "user", None))
        return known or self.state.get("REMOTE_USER") or None

    def header(self, name: str, /) -> str | None:
        field = name.upper().replace("-", "_")
        if field not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            field = f"HTTP_{field}"
        return self.state.get(field)


def _identity(user: Any) -> str | None:
    """The id of a user object as Django and Starlette have it; None for one who is nobody."""
    if user is None or not getattr(user, "is_authenticated", False):
        return None
    for name in ("pk", "identity", "id", "username", "display_name"):
        try:
            identity = getattr(user, name, None)
        except NotImplementedError:  # Starlette's BaseUser, where a subclass has no identity
            continue
        if identity is not None and identity != "":
            return str(identity)
    return None
