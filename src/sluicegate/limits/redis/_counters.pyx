# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic
"""Counts that several threads add to: in C, a step that no other thread can split."""

cimport cython

__all__ = ["Tally"]


@cython.final
cdef class Tally:
    """Calls by their answer; `decided_locally` are those of them that Redis was not asked for."""

    def count(self, bint allowed, bint locally):
        if allowed:
            self.allowed += 1
        else:
            self.denied += 1
        if locally:
            self.decided_locally += 1
