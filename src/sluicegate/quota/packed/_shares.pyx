# cython: language_level=3, boundscheck=False, wraparound=False
"""The shares of one service on one node as a C array, as an assignment produces them.

`PackedShares` reads as a dict of user -> resource -> Share, which is built on first access. The
wire does not need the dict: it encodes the array directly.
"""

from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from sluicegate.quota.packed._bucket_ids cimport BucketIds
from sluicegate.quota.messages import Share

__all__ = ["PackedShares"]


cdef class PackedShares:
    def __cinit__(self):
        self.packed = NULL
        self.count = 0

    def __dealloc__(self):
        free(self.packed)

    cdef dict as_dict(self):
        cdef Py_ssize_t i
        cdef PackedShare *share
        cdef unsigned int generation
        cdef BucketIds bucket_ids = self.bucket_ids
        if self.users is None:
            self.users = {}
            for i in range(self.count):
                share = &self.packed[i]
                generation = bucket_ids.generations[share.bucket]
                # Skip an id that was released, or reused by another bucket, after the shares were copied.
                if generation and <int> (generation - self.last_generation) <= 0:
                    user, resource = bucket_ids.names[share.bucket]
                    shares = self.users.get(user)
                    if shares is None:
                        shares = self.users[user] = {}
                    shares[resource] = Share(share.granted, safe_of(share))
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
        if isinstance(other, PackedShares):
            other = (<PackedShares> other).as_dict()
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


cdef PackedShares copy_shares(BucketIds bucket_ids, const PackedShare *packed, Py_ssize_t count):
    """Copy the shares: the next assignment overwrites the original."""
    cdef PackedShares shares = PackedShares()
    shares.bucket_ids = bucket_ids
    shares.last_generation = bucket_ids.last_generation
    if count:
        shares.packed = <PackedShare *> malloc(count * sizeof(PackedShare))
        if shares.packed == NULL:
            raise MemoryError
        memcpy(shares.packed, packed, count * sizeof(PackedShare))
        shares.count = count
    return shares
