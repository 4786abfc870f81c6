# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic, cdivision=True
"""`WeightedRandom`: at random, each server with the probability that its weight says."""

from cpython.mem cimport PyMem_Free

from sluicegate.balance._alias_table cimport AliasTable, alias_build, alias_choice
from sluicegate.balance._balancer cimport Balancer, Member

__all__ = ["WeightedRandom"]


cdef class WeightedRandom(Balancer):
    """At random, by weight. Needs no state that many clients would have to share."""

    cdef AliasTable _table

    def __dealloc__(self):
        PyMem_Free(self._table.columns)

    cdef Member _choose(self, object key):
        return self._at(alias_choice(&self._table, &self._random))

    cdef int _usable_changed(self) except -1:
        return alias_build(&self._table, self)
