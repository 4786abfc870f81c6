# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic
"""Sending commands and receiving replies on a socket, in C.

After each wait for Redis the processor's caches have been used by others, so every line of
Python on this path costs several times what it costs in a loop.

The time-out is the socket's own (SO_RCVTIMEO, SO_SNDTIMEO), set by `Connection`. A signal
ends a wait, and the next would begin its whole time anew; so after a signal we wait in
`poll` for what is left until the deadline, in seconds of `time.monotonic()`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from libc.errno cimport EINTR, errno
from libc.string cimport memcmp

from sluicegate._clock cimport monotonic

__all__ = ["send_and_receive", "receive", "send"]

cdef extern from "<sys/socket.h>" nogil:
    enum: MSG_NOSIGNAL
    ssize_t send_some "send"(int fd, const void* buffer, size_t length, int flags)
    ssize_t receive_some "recv"(int fd, void* buffer, size_t length, int flags)

cdef extern from "<poll.h>" nogil:
    enum: POLLIN, POLLOUT
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd* fds, unsigned long count, int milliseconds)

cdef enum:
    READ_AT_ONCE = 16384


def send_and_receive(int fd, bytes payload, double deadline):
    """Send a command; the reply 0 or 1 as an int, all else as the bytes that came first.

    Raises OSError, BlockingIOError or TimeoutError where the time is up. b"" is the end of
    the connection.
    """
    cdef char[READ_AT_ONCE] buffer
    cdef Py_ssize_t size
    send_all(fd, payload, deadline)
    size = receive_into(fd, buffer, deadline)
    # The yes and no of a limiter, known by their looks.
    if size == 4 and memcmp(buffer, ":1\r\n", 4) == 0:
        return 1
    if size == 4 and memcmp(buffer, ":0\r\n", 4) == 0:
        return 0
    return PyBytes_FromStringAndSize(buffer, size)


def send(int fd, bytes payload, double deadline):
    """Send all of it."""
    send_all(fd, payload, deadline)


def receive(int fd, double deadline):
    """What comes next; b"" is the end of the connection."""
    cdef char[READ_AT_ONCE] buffer
    cdef Py_ssize_t size = receive_into(fd, buffer, deadline)
    return PyBytes_FromStringAndSize(buffer, size)


cdef int send_all(int fd, bytes payload, double deadline) except -1:
    cdef const char* out = PyBytes_AS_STRING(payload)
    cdef Py_ssize_t left = PyBytes_GET_SIZE(payload)
    cdef Py_ssize_t done
    while left > 0:
        with nogil:
            done = send_some(fd, out, left, MSG_NOSIGNAL)
        if done < 0:
            go_on_waiting(fd, POLLOUT, deadline)
            continue
        out += done
        left -= done
        if left > 0 and monotonic() > deadline:
            raise TimeoutError
    return 0


cdef Py_ssize_t receive_into(int fd, char* buffer, double deadline) except -1:
    cdef Py_ssize_t done
    while True:
        with nogil:
            done = receive_some(fd, buffer, READ_AT_ONCE, 0)
        if done >= 0:
            return done
        go_on_waiting(fd, POLLIN, deadline)


cdef int go_on_waiting(int fd, short events, double deadline) except -1:
    """After a call that failed: raise, or, if it was a signal, wait for the rest of the time."""
    cdef pollfd one
    cdef double left
    cdef int ready = -1
    if errno != EINTR:
        PyErr_SetFromErrno(OSError)
    one.fd = fd
    one.events = events
    while ready < 0:
        PyErr_CheckSignals()
        left = deadline - monotonic()
        if left <= 0.0:
            raise TimeoutError
        with nogil:
            ready = poll(&one, 1, <int>(left * 1000.0) + 1)
        if ready < 0 and errno != EINTR:
            PyErr_SetFromErrno(OSError)
        if ready == 0:
            raise TimeoutError
    return 0
