# cython: language_level=3, binding=False, cdivision=True
"""`ScoreWindow`: noting a score is one store; the cut is found at a sync, off the hot path.

A ring of the last 4,096 scores, of which those of the last ten syncs count (all, if these are few):
so the cut follows a distribution that drifts, however busy the node is. The cut is an order
statistic of them; with n scores the part above it is right to about 1/sqrt(n) of itself. A sketch
would remember more scores in less memory, and cost more at each request.
"""

from collections import deque

from libc.math cimport INFINITY, ceil
from libc.stdlib cimport free, malloc, qsort

from sluicegate._minmax cimport fast_min

__all__ = ["ScoreWindow"]

_SYNCS = 10
cdef size_t _FEW = 500


cdef int _compare(const void *a, const void *b) noexcept nogil:
    cdef double x = (<const double *>a)[0], y = (<const double *>b)[0]
    return (x > y) - (x < y)


cdef class ScoreWindow:
    def __cinit__(self, size_t size=4096):
        if size == 0 or size & (size - 1):
            raise ValueError(f"size must be a power of two, got {size!r}")
        self._size = size
        self._mask = size - 1
        self._marks = deque(maxlen=_SYNCS)
        self._scores = <double *>malloc(size * sizeof(double))
        if self._scores == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self._scores)

    def __len__(self):
        """How many scores are remembered."""
        return min(self._seen, self._size)

    def note_score(self, double score):
        """Note the score of a request. (The limiter does it without a call.)"""
        self.note(score)

    def mark(self):
        """A sync has ended."""
        self._marks.append(self._seen)

    def cut(self, double part):
        """The score that `part` of the recent requests reach; infinite when none should pass."""
        cdef size_t count = self._recent()
        cdef size_t i, rank
        cdef double found
        cdef double *copy
        if part <= 0.0:
            return INFINITY
        if part >= 1.0 or count == 0:
            return -INFINITY
        copy = <double *>malloc(count * sizeof(double))
        if copy == NULL:
            raise MemoryError
        for i in range(count):
            copy[i] = self._scores[(self._seen - 1 - i) & self._mask]
        with nogil:
            qsort(copy, count, sizeof(double), &_compare)
        rank = <size_t>fast_min(ceil(part * count), count)
        found = copy[count - rank]
        free(copy)
        return found

    cdef size_t _recent(self):
        cdef size_t known = min(self._seen, self._size)
        if len(self._marks) < _SYNCS:
            return known
        return min(known, max(self._seen - <size_t>self._marks[0], min(known, _FEW)))
