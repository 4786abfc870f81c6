# cython: language_level=3
"""How long compiled loops over many users go on before other threads of the process have a turn.

A thread that has waited for its turn for 5 ms (`sys.setswitchinterval`) gets it when the one that
runs lets go. Python code does so by itself; compiled code only where it is told to. Without it a
request would wait until its node's reporter is through with all users. What a loop is about must
belong to its own thread: others may do anything meanwhile.
"""

cdef enum:
    USERS_AT_ONCE = 256  # some tenth of a millisecond


cdef inline void let_others_run() noexcept:
    with nogil:
        pass


cdef inline void take_turns(Py_ssize_t done) noexcept:
    """So many users are done, one more than the time before."""
    if done % USERS_AT_ONCE == 0:
        let_others_run()
