from headgate.limits._cells cimport Rule
from headgate.limits._timing cimport Timing

cdef Rule make_rule(int algorithm, object limit, Timing timing) except *
