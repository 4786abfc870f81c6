# cython: language_level=3, boundscheck=False, wraparound=False
"""What a node was given of one service, as it came out of an assignment.

It reads as a dict of user -> resource -> Share, which is made when somebody looks into it. A wire
does not: it writes the numbers as they are.
"""

from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from sluicegate.quota.packed._bucket_ids cimport Register
from sluicegate.quota.messages import Share

__all__ = ["GivenShares"]


cdef class GivenShares:
    def __cinit__(self):
        self.given = NULL
        self.count = 0

    def __dealloc__(self):
        free(self.given)

    cdef dict as_dict(self):
        cdef Py_ssize_t i
        cdef Given *given
        cdef Register register = self.register
        if self.users is None:
            self.users = {}
            for i in range(self.count):
                given = &self.given[i]
                # A number that has another owner since says nothing any more.
                if register.serials[given.bucket] and <int> (register.serials[given.bucket] - self.last) <= 0:
                    user, resource = register.names[given.bucket]
                    shares = self.users.get(user)
                    if shares is None:
                        shares = self.users[user] = {}
                    shares[resource] = Share(given.amount, safe_of(given))
        return self.users

    def __getitem__(self, user):
        return self.as_dict()[user]

    def __iter__(self):
        return iter(self.as_dict())

    def __len__(self):
        return len(self.as_dict())

    def __contains__(self, user):
        return user in self.as_dict()

    def __eq__(self, other):
        if isinstance(other, GivenShares):
            other = (<GivenShares> other).as_dict()
        return self.as_dict() == other

    __hash__ = None

    def __repr__(self):
        return repr(self.as_dict())

    def keys(self):
        return self.as_dict().keys()

    def values(self):
        return self.as_dict().values()

    def items(self):
        return self.as_dict().items()

    def get(self, user, default=None):
        return self.as_dict().get(user, default)


cdef GivenShares given_shares(Register register, const Given *given, Py_ssize_t count):
    """A copy: the next assignment writes over the original."""
    cdef GivenShares shares = GivenShares()
    shares.register = register
    shares.last = register.last
    if count:
        shares.given = <Given *> malloc(count * sizeof(Given))
        if shares.given == NULL:
            raise MemoryError
        memcpy(shares.given, given, count * sizeof(Given))
        shares.count = count
    return shares
