"""A growable byte buffer for writing a frame. Numbers are little-endian, names are length-prefixed."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef extern from *:
    """
    #if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "frames are little-endian: a little-endian machine is required"
    #endif
    """

cdef struct Buffer:
    char *data
    Py_ssize_t size, room


cdef inline char *room_for(Buffer *buffer, Py_ssize_t more) except NULL:
    """Where the next bytes go; `buffer.size` is for the caller to move on."""
    cdef Py_ssize_t room
    cdef char *grown
    if buffer.size + more > buffer.room:
        room = max(buffer.size + more, 2 * buffer.room, 256)
        grown = <char *> realloc(buffer.data, room)
        if grown == NULL:
            raise MemoryError
        buffer.data = grown
        buffer.room = room
    return buffer.data + buffer.size


cdef inline int put(Buffer *buffer, const void *data, Py_ssize_t size) except -1:
    memcpy(room_for(buffer, size), data, size)
    buffer.size += size
    return 0


cdef inline int put_name(Buffer *buffer, str name) except -1:
    cdef Py_ssize_t size
    cdef const char *text = PyUnicode_AsUTF8AndSize(name, &size)
    cdef unsigned char length = <unsigned char> size
    if not 0 < size < 256:
        raise ValueError(f"a name must have 1 to 200 bytes of UTF-8, got {name!r}")
    put(buffer, &length, 1)
    return put(buffer, text, size)


cdef inline bytes as_bytes(Buffer *buffer):
    return PyBytes_FromStringAndSize(buffer.data, buffer.size)


cdef inline void dispose(Buffer *buffer) noexcept:
    free(buffer.data)
    buffer.data = NULL
    buffer.size = buffer.room = 0
