# cython: language_level=3
"""`ScoreWindow`: the scores of the last requests, in a ring."""

cdef class ScoreWindow:
    cdef double *_scores
    cdef size_t _size, _mask
    cdef size_t _seen            # since the start; its low bits are the place of the next one
    cdef object _marks           # `_seen` at the last syncs

    cdef size_t _recent(self)

    cdef inline void note(self, double score) noexcept nogil:
        self._scores[self._seen & self._mask] = score
        self._seen += 1
