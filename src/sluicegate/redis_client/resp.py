"""RESP, the protocol of Redis: packs commands, and reads bounded replies with hiredis.

`Replies` is fed what comes from one socket and gives whole replies. A reply that Redis
sends as an error is a value, an `ErrorReply`, for in a pipeline it concerns its own
command alone. Bytes that are no RESP, and replies of more than `max_bytes`, raise
`ProtocolError`; nothing of that connection can be trusted afterwards.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from sluicegate.errors import ProtocolError, Unavailable

__all__ = ["MAX_REPLY_BYTES", "ErrorReply", "Replies", "load", "pack"]

MAX_REPLY_BYTES = 16 * 1024 * 1024

_packer: Callable[[tuple[object, ...]], bytes] | None = None  # set when hiredis is first needed


class ErrorReply(Unavailable):
    """Redis answered with an error; `code` is its first word, such as LOADING or MOVED."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.code = message.partition(" ")[0]
        # A long command is refused for its length, before Redis looks at what it is.
        is_locked = self.code == "NOAUTH" or "unauthenticated" in message
        what = "Redis needs a password (NOAUTH)" if is_locked else "Redis error"
        super().__init__(f"{what}: {message}")

    @property
    def is_of_moving_slot(self) -> bool:
        """Of a cluster: the command was not carried out, for its keys are moving elsewhere."""
        return self.code in ("MOVED", "ASK", "TRYAGAIN")

    @property
    def is_of_replica(self) -> bool:
        """A failover made this server a replica. Before Redis 7, a script's error hides it."""
        return self.code == "READONLY" or "-READONLY" in self.message


def load(name: str) -> ModuleType:
    """Import redis or hiredis, or say in one sentence what to install."""
    try:
        return __import__(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Redis support needs the packages redis and hiredis, but {error.name!r} is missing: "
            "pip install redis hiredis"
        ) from None


def pack(*words: bytes | str | int | float) -> bytes:
    """One command as it goes over the wire."""
    try:
        return _compiled_pack(words)
    except TypeError:  # it takes no subclasses, such as bool
        return _pack_any(words)


def _compiled_pack(words: tuple[object, ...]) -> bytes:
    global _packer
    if _packer is None:
        _packer = load("hiredis").pack_command
    return _packer(words)


def _pack_any(words: Sequence[object]) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        if not isinstance(word, bytes):
            word = (repr(word) if isinstance(word, float) else str(word)).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(word), word))
    return b"".join(parts)


class Replies:
    """The replies of one connection, in their order."""

    __slots__ = ("_fed", "_nothing", "_reader", "max_bytes")

    def __init__(self) -> None:
        self.max_bytes = MAX_REPLY_BYTES
        self._nothing = object()
        reader = load("hiredis").Reader(
            protocolError=ProtocolError, replyError=ErrorReply, notEnoughData=self._nothing
        )
        self._reader = reader
        self._fed = 0  # since the last whole reply

    def feed(self, data: bytes) -> None:
        self._fed += len(data)
        self._reader.feed(data)

    def take(self, most: int) -> list[Any]:
        """The whole replies that are there, at most so many."""
        replies: list[Any] = []
        while len(replies) < most:
            try:
                reply = self._reader.gets()
            except MemoryError:  # a list that is announced to be longer than could ever come
                raise ProtocolError(
                    "invalid reply from Redis: it announces more than fits in memory"
                ) from None
            except (TypeError, ValueError, OverflowError) as error:  # a list as a key, say
                raise ProtocolError(f"invalid reply from Redis: {error}") from None
            if reply is self._nothing:
                break
            replies.append(reply)
            self._fed = 0
        if self._fed > self.max_bytes:
            raise ProtocolError(f"invalid reply from Redis: larger than {self.max_bytes} bytes")
        return replies

    def has_more(self) -> bool:
        """Whether something is there that nobody has taken yet."""
        return bool(self._reader.has_data())
