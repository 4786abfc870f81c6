"""`hash_fraction`: a number in [0, 1) from names, the same in every process and language.
`report_delay`: when in a slot a node reports.

It spreads what many nodes would else do at the same moment: when they report, and when a share
of less than one request adds up to one. It is the first four bytes, big-endian, of the MD5 of
the names joined by a zero byte, over 2^32. MD5 because nginx's Lua has it; a CRC was turned
down: names that differ in one digit get numbers in regular steps.
"""

import hashlib

__all__ = ["hash_fraction", "report_delay"]

# The reports of many nodes are spread over this part of a slot.
_SPREAD = 0.2


def hash_fraction(*names: str) -> float:
    """A number in [0, 1) that depends on these names and their order only."""
    text = "\0".join(names).encode("utf-8", "surrogatepass")
    digest = hashlib.md5(text, usedforsecurity=False).digest()
    return int.from_bytes(digest[:4]) / 2**32


def report_delay(node: str, slot_seconds: float) -> float:
    """Seconds from the beginning of a slot to the report of a node on the slot before."""
    return hash_fraction(node) * _SPREAD * slot_seconds
