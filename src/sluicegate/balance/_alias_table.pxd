# cython: language_level=3
"""`AliasTable`: a random choice among the usable servers of a balancer, by weight.

Walker's alias method, as Vose builds it: each server has one column of equal height. A column that
its server does not fill is filled up by one other server, its alias. A choice takes a column and a
height at random, so it is O(1) whatever the weights are. Heights are integers, in units of which a
column has the sum of the weights, so the probabilities are exact.
"""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint64_t

from sluicegate.balance._balancer cimport Balancer, Member
from sluicegate.balance._random cimport random_below


cdef struct Column:
    uint64_t height    # of its own server; the rest, up to the sum of the weights, is the alias's
    Py_ssize_t alias


cdef struct AliasTable:
    Column* columns
    Py_ssize_t count
    uint64_t sum       # of the weights


cdef inline Py_ssize_t alias_choice(const AliasTable* table, uint64_t* random) noexcept:
    cdef Py_ssize_t place = random_below(random, table.count)
    if random_below(random, table.sum) >= table.columns[place].height:
        return table.columns[place].alias
    return place


cdef inline int alias_build(AliasTable* table, Balancer balancer) except -1:
    """Make the table anew. It is as it was if there is no memory."""
    cdef Py_ssize_t count = balancer._count, i, low, high, lows = 0, highs = 0
    cdef uint64_t sum = 0
    cdef Column* columns = <Column*>PyMem_Malloc((count + 1) * sizeof(Column))
    # Columns that are too low and too high grow towards each other in one array.
    cdef Py_ssize_t* waiting = <Py_ssize_t*>PyMem_Malloc((count + 1) * sizeof(Py_ssize_t))
    if columns == NULL or waiting == NULL:
        PyMem_Free(columns)
        PyMem_Free(waiting)
        raise MemoryError
    for i in range(count):
        sum += (<Member>balancer._usable[i]).weight
    for i in range(count):
        columns[i].height = <uint64_t>(<Member>balancer._usable[i]).weight * count
        columns[i].alias = i
        if columns[i].height < sum:
            waiting[lows] = i
            lows += 1
        else:
            highs += 1
            waiting[count - highs] = i
    while lows > 0 and highs > 0:
        lows -= 1
        low, high = waiting[lows], waiting[count - highs]
        columns[low].alias = high
        columns[high].height -= sum - columns[low].height
        if columns[high].height < sum:
            highs -= 1
            waiting[lows] = high
            lows += 1
    PyMem_Free(waiting)
    PyMem_Free(table.columns)
    table.columns, table.count, table.sum = columns, count, sum
    return 0
