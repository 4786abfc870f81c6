"""`encode_key`: a key as bytes for Redis, different for any two keys.

A str stands as it is, in UTF-8. What is not a plain str starts with a NUL and a letter:

    \\0b bytes   \\0i an int   \\0t a tuple, each part after its length
    \\0s a str that is empty, or starts with a NUL or the brace that would end the hash tag
    \\0h the BLAKE2b hash (256 bits) of a key longer than 512 bytes

Equal keys are one key, as in `Keyed`: 1 and True, a StrEnum and its string.
"""

from hashlib import blake2b

from sluicegate.limits.limit import Key

__all__ = ["ESCAPED", "MAX_KEY_BYTES", "encode_key"]

MAX_KEY_BYTES = 512  # bytes
ESCAPED = (b"", b"\0", b"}")  # what a str may not start with, to stand as it is
MAX_DEPTH = 8  # tuples within tuples, as in `Keyed`


def encode_key(key: Key) -> bytes:
    """The key as bytes; TypeError if it is not a valid key."""
    text = _encode(key, MAX_DEPTH)
    return (
        text
        if len(text) <= MAX_KEY_BYTES
        else b"\0h" + blake2b(text, digest_size=32).hexdigest().encode()
    )


def _encode(key: Key, depth: int) -> bytes:
    if isinstance(key, str):
        text = str.encode(key, "utf-8", "surrogatepass")
        return b"\0s" + text if text[:1] in ESCAPED else text
    if isinstance(key, bytes):
        return b"\0b" + key
    if isinstance(key, int):
        return b"\0i%x" % key  # in hex, which takes any int
    if isinstance(key, tuple):
        if depth == 0:
            raise TypeError(f"key must be nested at most {MAX_DEPTH} tuples deep, got a deeper one")
        parts = [_encode(part, depth - 1) for part in key]
        return b"\0t" + b"".join(b"%d:%b" % (len(part), part) for part in parts)
    raise TypeError(f"key must be a str, bytes, int or a tuple of these, got {key!r}")
