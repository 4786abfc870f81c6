# cython: language_level=3
"""Keys of users in the shared memory. See `_user_keys.pyx`."""

from libc.stdint cimport uint32_t, uint64_t

from sluicegate.shm._lockfree_table cimport TEXT, Key
from sluicegate.quota.node.core._shared_header cimport MAX_USER_BYTES

cdef extern from "Python.h":
    bint PyUnicode_CheckExact(object text) noexcept
    bint PyUnicode_IS_COMPACT_ASCII(object text) noexcept
    const char *PyUnicode_DATA(object text) noexcept
    Py_ssize_t PyUnicode_GET_LENGTH(object text) noexcept

cdef enum:
    OVERFLOW_RECORDS = 256  # records that users beyond the cap share, for each service

cdef object encode_key(object user, Key *key)
cdef object overflow_key(Key *key)
cdef bint is_overflow_name(str user)
cdef str name_in_key(Key *key)


cdef inline object make_user_key(object user, uint64_t service, Key *key):
    """Make the key of a user. The returned object owns its bytes: keep it as long as the key."""
    cdef Py_ssize_t size
    key.namespace = service
    key.kind = TEXT
    if PyUnicode_CheckExact(user) and PyUnicode_IS_COMPACT_ASCII(user):
        size = PyUnicode_GET_LENGTH(user)
        if 0 < size <= MAX_USER_BYTES:
            key.data = PyUnicode_DATA(user)
            key.size = <uint32_t> size
            return user
    return encode_key(user, key)
