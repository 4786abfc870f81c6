"""The format of a ledger snapshot: a head and a dump of each service ledger, with a check sum.

    8 bytes   "sgledger"
    4 bytes   the version of this layout, and 4 bytes the size of a cell
    4 bytes   CRC-32 of everything after it
    sections  8 bytes of length, then so many bytes: the head as JSON, and for each service its
              name, its bucket names as JSON, its numbers and its cells as they lie in memory

A snapshot is read by the program that wrote it or by one of the same version on the same kind of
machine; for any other it is refused, and the central begins cold.
"""

import json
import struct
import zlib
from typing import Any, TypeAlias

from sluicegate.errors import ConfigError
from sluicegate.quota.ledger._service_ledger import CELL_SIZE

__all__ = [
    "MAGIC",
    "VERSION",
    "ServiceLedgerDump",
    "SlotLengthMismatch",
    "newest_report",
    "pack",
    "unpack",
]

ServiceLedgerDump: TypeAlias = tuple[list[tuple[str, str]], bytes, bytes]

MAGIC = b"sgledger"
VERSION = 3
_HEAD = {"slot_seconds", "first", "assigned", "nodes", "since"}
_START = struct.Struct("=8sIII")
_LENGTH = struct.Struct("=Q")


class SlotLengthMismatch(ConfigError):
    """The snapshot is intact, but has a different slot length."""


def pack(head: dict[str, Any], dumps: dict[str, ServiceLedgerDump]) -> bytes:
    sections = [json.dumps(head).encode()]
    for name, (names, numbers, cells) in dumps.items():
        sections += [name.encode(), json.dumps(names).encode(), numbers, cells]
    parts = [part for section in sections for part in (_LENGTH.pack(len(section)), section)]
    crc = 0
    for part in parts:  # the sections may be large, and are copied once only
        crc = zlib.crc32(part, crc)
    return b"".join([_START.pack(MAGIC, VERSION, CELL_SIZE, crc), *parts])


def unpack(packed: bytes) -> tuple[dict[str, Any], dict[str, ServiceLedgerDump]]:
    """The head and the dumps of a snapshot, or a ConfigError that says what is wrong with it."""
    if len(packed) < _START.size:
        raise ConfigError(
            f"truncated snapshot: got {len(packed)} bytes, expected at least {_START.size}"
        )
    magic, version, cell_size, crc = _START.unpack_from(packed)
    if magic != MAGIC:
        raise ConfigError(
            f"not a ledger snapshot: expected it to begin with {MAGIC!r}, got {magic!r}"
        )
    if (version, cell_size) != (VERSION, CELL_SIZE):
        raise ConfigError(
            f"unsupported snapshot layout: got version {version} with cells of {cell_size} bytes, "
            f"expected {VERSION} and {CELL_SIZE}"
        )
    body = packed[_START.size :]
    if zlib.crc32(body) != crc:
        raise ConfigError("snapshot checksum mismatch: the snapshot is truncated or was changed")
    try:
        return _sections(body)
    except (ValueError, IndexError, TypeError, struct.error) as error:
        raise ConfigError(f"invalid snapshot: {error}") from error


def newest_report(packed: bytes) -> int:
    """The slot of the newest report that is booked in a snapshot: how new it is; -1: none is.

    Not that of the last assignment: a central that hears no node assigns all the same.
    """
    head, _ = unpack(packed)
    try:
        return max((int(reported) for _, _, reported, *_ in head["nodes"]), default=-1)
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError(f"invalid snapshot: {error!r}") from error


def _sections(body: bytes) -> tuple[dict[str, Any], dict[str, ServiceLedgerDump]]:
    sections = []
    at = 0
    while at < len(body):
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        sections.append(body[at : at + length])
        at += length
    head = json.loads(sections[0])
    if not isinstance(head, dict) or not head.keys() >= _HEAD:
        raise ValueError(f"the head must have the keys {sorted(_HEAD)}, got {head!r}")
    dumps = {}
    for i in range(1, len(sections), 4):
        name, names, numbers, cells = sections[i : i + 4]
        dumps[name.decode()] = [tuple(pair) for pair in json.loads(names)], numbers, cells
    return head, dumps
