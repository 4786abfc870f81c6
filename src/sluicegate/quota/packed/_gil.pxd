# cython: language_level=3
"""Yielding the GIL in compiled loops over many users.

A thread that has waited for 5 ms (`sys.setswitchinterval`) gets the GIL when the running thread
releases it. Python code does so by itself, compiled code only on request. Without it a request
would wait until its node's reporter is done with all users. A loop that yields must own the data
it works on: other threads may change anything else meanwhile.
"""

cdef enum:
    USERS_PER_YIELD = 256  # about 0.1 ms of work


cdef inline void yield_gil() noexcept:
    with nogil:
        pass


cdef inline void yield_gil_periodically(Py_ssize_t done) noexcept:
    """Yield the GIL at every USERS_PER_YIELD-th user; `done` grows by 1 with each call."""
    if done % USERS_PER_YIELD == 0:
        yield_gil()
