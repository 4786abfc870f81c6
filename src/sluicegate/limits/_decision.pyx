# cython: language_level=3, binding=False, embedsignature=True, embedsignature.format=clinic
"""`Decision`: an answer that knows which limit gave it, what is left, and until when."""

cimport cython

__all__ = ["Decision"]


@cython.freelist(64)
cdef class Decision:
    """The answer to `check`. True when allowed.

    - `limit`: the one that decided: of several, the one that makes you wait the
      longest, or that has the least left. None for limits of concurrency.
    - `remaining`: units that could still be taken now, after this call.
    - `retry_after`: seconds until the same call could succeed; 0 when allowed.
    - `reset_after`: seconds until nothing is in use any more.
    """

    def __init__(self, allowed, limit=None, remaining=0.0, retry_after=0.0, reset_after=0.0):
        self.allowed = allowed
        self.limit = limit
        self.remaining = remaining
        self.retry_after = retry_after
        self.reset_after = reset_after

    def __bool__(self):
        return self.allowed

    def __eq__(self, other):
        if not isinstance(other, Decision):
            return NotImplemented
        return self._fields() == (<Decision>other)._fields()

    def __hash__(self):
        return hash(self._fields())

    def __reduce__(self):
        return Decision, self._fields()

    def __repr__(self):
        limit = None if self.limit is None else str(self.limit)
        return (
            f"Decision(allowed={self.allowed}, limit={limit!r}, remaining={self.remaining:g}, "
            f"retry_after={self.retry_after:g}, reset_after={self.reset_after:g})"
        )

    cdef tuple _fields(self):
        return (self.allowed, self.limit, self.remaining, self.retry_after, self.reset_after)
