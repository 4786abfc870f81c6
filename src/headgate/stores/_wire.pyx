# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic
"""One command out, one reply in, in C: what a limiter does to a socket, and nothing else.

After each wait for Redis the processor's caches have been used by others, so every line of
Python on this path costs several times what it costs in a loop. The time-out is the
socket's own (SO_RCVTIMEO, SO_SNDTIMEO), set by `Connection`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from libc.errno cimport EINTR, errno
from libc.string cimport memcmp

__all__ = ["ask"]

cdef extern from "<sys/socket.h>" nogil:
    enum: MSG_NOSIGNAL
    ssize_t send(int fd, const void* buffer, size_t length, int flags)
    ssize_t recv(int fd, void* buffer, size_t length, int flags)

cdef enum:
    READ_AT_ONCE = 16384


def ask(int fd, bytes payload):
    """Send a command; the reply 0 or 1 as an int, all else as the bytes that came first.

    Raises OSError, BlockingIOError where the time is up. b"" is the end of the connection.
    """
    cdef const char* out = PyBytes_AS_STRING(payload)
    cdef Py_ssize_t left = PyBytes_GET_SIZE(payload)
    cdef Py_ssize_t done
    cdef char[READ_AT_ONCE] buffer
    while left > 0:
        with nogil:
            done = send(fd, out, left, MSG_NOSIGNAL)
        if done < 0:
            if errno != EINTR:
                PyErr_SetFromErrno(OSError)
            PyErr_CheckSignals()
            continue
        out += done
        left -= done
    while True:
        with nogil:
            done = recv(fd, buffer, READ_AT_ONCE, 0)
        if done >= 0:
            break
        if errno != EINTR:
            PyErr_SetFromErrno(OSError)
        PyErr_CheckSignals()
    # The yes and no of a limiter, known by their looks.
    if done == 4 and memcmp(buffer, ":1\r\n", 4) == 0:
        return 1
    if done == 4 and memcmp(buffer, ":0\r\n", 4) == 0:
        return 0
    return PyBytes_FromStringAndSize(buffer, done)
