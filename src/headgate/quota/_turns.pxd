# cython: language_level=3
"""How long compiled loops of the reporter go on before other threads of the process have a turn.

A thread that has waited for its turn for 5 ms (`sys.setswitchinterval`) gets it when the one that
runs lets go. Python code does so by itself; compiled code only where it is told to. Without it a
request would wait until the reporter is through with all users.
"""

cdef enum:
    USERS_AT_ONCE = 256  # some tenth of a millisecond


cdef inline void let_others_run() noexcept:
    with nogil:
        pass
