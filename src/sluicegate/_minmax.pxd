# cython: language_level=3
"""The larger and the smaller of two numbers.

Not fmax and fmin: for the sake of NaN these are calls into libm, 2 ns each, and a
decision takes 10.
"""


cdef inline double larger(double a, double b) noexcept nogil:
    return a if a > b else b


cdef inline double smaller(double a, double b) noexcept nogil:
    return a if a < b else b
