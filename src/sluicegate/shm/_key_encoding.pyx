# cython: language_level=3, binding=False
"""Encodes keys as bytes that mean the same to every process.

A str is its UTF-8, bytes are themselves, an int is its bytes in two's complement, and a
tuple its parts one by one, each after its kind and size. The kind of a key is kept beside
its bytes, so "1", b"1", 1 and ("1",) are four keys.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_CheckExact

from sluicegate._key_normalize cimport normalize_key
from sluicegate.shm._lockfree_table cimport BYTES, Key, MAX_KEY_BYTES, PACKED, TEXT

__all__ = []

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text) noexcept
    const char* PyUnicode_DATA(object text) noexcept
    Py_ssize_t PyUnicode_GET_LENGTH(object text) noexcept


cdef object key_of(object given, Key* key):
    """Make `key` of a given one. What is returned holds the bytes: keep it as long as the key."""
    cdef Py_ssize_t size
    kept = bytes_of(given, &key.data, &size, &key.kind)
    if size > MAX_KEY_BYTES:
        raise ValueError(f"key must have at most {MAX_KEY_BYTES} bytes, got {size}: {beginning(given)}")
    key.namespace = 0
    key.size = <unsigned int>size
    return kept


cdef object bytes_of(object given, const char** data, Py_ssize_t* size, unsigned char* kind):
    """The bytes of a key, however many, and its kind. What is returned holds the bytes."""
    if PyUnicode_CheckExact(given) and PyUnicode_IS_COMPACT_ASCII(given):
        kind[0] = TEXT
        data[0] = PyUnicode_DATA(given)
        size[0] = PyUnicode_GET_LENGTH(given)
        return given
    kept = encoded(normalize_key(given), kind)
    data[0] = PyBytes_AS_STRING(kept)
    size[0] = PyBytes_GET_SIZE(kept)
    return kept


cdef str beginning(object given):
    """Enough of a long key to know it by."""
    if isinstance(given, str | bytes):
        return f"{given[:40]!r}..."
    return f"a key of type {type(given).__name__}"


cdef bytes encoded(object given, unsigned char* kind):
    cdef unsigned char part_kind
    if PyUnicode_CheckExact(given):
        kind[0] = TEXT
        return given.encode("utf-8", "surrogatepass")
    if PyBytes_CheckExact(given):
        kind[0] = BYTES
        return given
    kind[0] = PACKED
    if isinstance(given, int):  # a bool, which equals an int, is written as one
        return b"i" + int(given).to_bytes(given.bit_length() // 8 + 1, "little", signed=True)
    parts = [b"("]
    for one in given:
        part = encoded(one, &part_kind)
        parts.append(b"%c%d:" % (part_kind, len(part)))
        parts.append(part)
    return b"".join(parts)
