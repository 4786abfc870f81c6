# cython: language_level=3
"""Parses the amounts of a request. See `_costs.pyx`."""

from sluicegate.quota.node.core._shared_header cimport SharedHeader
from sluicegate.quota.node.core._admission cimport Costs

cdef int parse_costs(SharedHeader header, str what, object amounts, Costs *costs) except -1
cdef dict check_amounts(str what, object amounts)
