# cython: language_level=3, binding=False
"""Keys made plain at the door: exactly str, bytes, int, or tuples of them.

A subclass may have code of its own in `__hash__` and `__eq__`; a plain key has none, so
the table can be searched and changed in one step for all other threads.
"""

from cpython.bytes cimport PyBytes_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.tuple cimport PyTuple_CheckExact
from cpython.unicode cimport PyUnicode_CheckExact

__all__ = []

cdef enum:
    DEEPEST = 8  # tuples within tuples; the interpreter's own hash has no guard


cdef bint is_plain(object key, int depth) noexcept:
    if PyUnicode_CheckExact(key) or PyLong_CheckExact(key) or PyBytes_CheckExact(key):
        return True
    if depth == 0 or not PyTuple_CheckExact(key):
        return False
    for part in <tuple>key:
        if not is_plain(part, depth - 1):
            return False
    return True


cdef object plain(object key, int depth=DEEPEST):
    """The key as a plain str, bytes, int or tuple of these; TypeError for any other."""
    if is_plain(key, depth):
        return key
    if isinstance(key, tuple) and depth > 0:
        return tuple([plain(part, depth - 1) for part in tuple.__iter__(key)])
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, int):
        return int.__int__(key)
    if isinstance(key, bytes):
        return bytes(memoryview(key))
    if isinstance(key, tuple):
        raise TypeError(f"a key is a tuple of at most {DEEPEST} levels, got a deeper one")
    raise TypeError(f"a key is a str, bytes, an int or a tuple of these, got {key!r}")
