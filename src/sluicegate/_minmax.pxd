# cython: language_level=3
"""`fast_max` and `fast_min`: the larger and the smaller of two doubles.

Not fmax and fmin: for the sake of NaN these are calls into libm, 2 ns each, and a
decision takes 10.
"""


cdef inline double fast_max(double a, double b) noexcept nogil:
    return a if a > b else b


cdef inline double fast_min(double a, double b) noexcept nogil:
    return a if a < b else b
