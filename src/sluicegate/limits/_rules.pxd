from sluicegate.limits._algorithms cimport Rule
from sluicegate.limits._limiter_clock cimport Timing

cdef Rule make_rule(int algorithm, object limit, Timing timing) except *
cdef Rule rule_of(int algorithm, double amount, double per, double burst, Timing timing) except *
cdef object limit_of(double amount, double per, double burst)
