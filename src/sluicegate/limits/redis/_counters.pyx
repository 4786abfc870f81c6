# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic
"""`DecisionCounters`: counters that several threads add to; in C, each addition is atomic."""

cimport cython

__all__ = ["DecisionCounters"]


@cython.final
cdef class DecisionCounters:
    """Calls by their answer; `decided_locally` are those of them that Redis was not asked for."""

    def count(self, bint allowed, bint locally):
        if allowed:
            self.allowed += 1
        else:
            self.denied += 1
        if locally:
            self.decided_locally += 1
