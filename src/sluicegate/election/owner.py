"""`Owner`: one incarnation of a candidate, as the value of its key in a store.

The incarnation is random. A candidate that was restarted, or a second one that was given the same
name by mistake, is never taken for the holder of the lease.

    5f0c9d3a1b7e4c62:central-1
"""

import secrets
from dataclasses import dataclass
from typing import Self

from sluicegate._validate import encode_utf8

__all__ = ["Owner", "check_name"]

MAX_NAME_BYTES = 255
_INCARNATION_BYTES = 8


def check_name(what: str, name: str) -> str:
    """Return the name of a candidate or a group; it must be text of at most 255 bytes."""
    if len(encode_utf8(what, name)) > MAX_NAME_BYTES:
        raise ValueError(f"{what} must have at most {MAX_NAME_BYTES} bytes, got {name!r}")
    return name


@dataclass(frozen=True, slots=True)
class Owner:
    value: bytes

    @classmethod
    def new(cls, name: str) -> Self:
        """A new incarnation of a candidate."""
        return cls(f"{secrets.token_hex(_INCARNATION_BYTES)}:{name}".encode())

    @property
    def name(self) -> str:
        """The candidate. A value that somebody has written by hand is taken as a whole."""
        incarnation, colon, name = self.value.partition(b":")
        is_ours = colon and len(incarnation) == 2 * _INCARNATION_BYTES
        return (name if is_ours else self.value)[:MAX_NAME_BYTES].decode(errors="replace")
