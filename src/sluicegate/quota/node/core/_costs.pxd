# cython: language_level=3
"""See `_costs.pyx`."""

from sluicegate.quota.node.core._shared_header cimport Head
from sluicegate.quota.node.core._admission cimport Costs

cdef int read_costs(Head head, str what, object amounts, Costs *costs) except -1
cdef dict amounts_of(str what, object amounts)
