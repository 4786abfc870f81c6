# cython: language_level=3, binding=False
"""`normalize_key`: a key as exactly a str, bytes, int, or a tuple of these.

A subclass may have code of its own in `__hash__` and `__eq__`; a normalized key has none, so
the table can be searched and changed in one step for all other threads.
"""

from cpython.bytes cimport PyBytes_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.tuple cimport PyTuple_CheckExact
from cpython.unicode cimport PyUnicode_CheckExact

__all__ = []

cdef enum:
    MAX_DEPTH = 8  # tuples within tuples; the interpreter's own hash has no guard


cdef bint is_normalized(object key, int depth) noexcept:
    if PyUnicode_CheckExact(key) or PyLong_CheckExact(key) or PyBytes_CheckExact(key):
        return True
    if depth == 0 or not PyTuple_CheckExact(key):
        return False
    for part in <tuple>key:
        if not is_normalized(part, depth - 1):
            return False
    return True


cdef object normalize_key(object key, int depth=MAX_DEPTH):
    """The key as a plain str, bytes, int or tuple of these; TypeError for any other."""
    if is_normalized(key, depth):
        return key
    if isinstance(key, tuple) and depth > 0:
        return tuple([normalize_key(part, depth - 1) for part in tuple.__iter__(key)])
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, int):
        return int.__int__(key)
    if isinstance(key, bytes):
        return bytes(memoryview(key))
    if isinstance(key, tuple):
        raise TypeError(f"key must be nested at most {MAX_DEPTH} tuples deep, got a deeper one")
    raise TypeError(f"key must be a str, bytes, int or a tuple of these, got {key!r}")
