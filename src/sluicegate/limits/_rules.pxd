from sluicegate.limits._cells cimport Rule
from sluicegate.limits._timing cimport Timing

cdef Rule make_rule(int algorithm, object limit, Timing timing) except *
cdef Rule rule_of(int algorithm, double amount, double per, double burst, Timing timing) except *
cdef object limit_of(double amount, double per, double burst)
