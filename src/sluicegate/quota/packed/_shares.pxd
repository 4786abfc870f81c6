from libc.string cimport memcpy

from sluicegate.quota.packed._bucket_ids cimport BucketIds

cdef packed struct PackedShare:  # 14 bytes: there is one for each cell of each node
    int bucket
    double granted  # a total: as a float it would lose the small grants on top of large ones
    unsigned short upper_half  # of the safe share as a float: rounded down, by less than a hundredth


cdef inline PackedShare pack_share(int bucket, double granted, float safe) noexcept nogil:
    cdef PackedShare share
    cdef unsigned int bits
    memcpy(&bits, &safe, 4)
    share.bucket = bucket
    share.granted = granted
    share.upper_half = <unsigned short> (bits >> 16)
    return share


cdef inline float safe_of(const PackedShare *share) noexcept nogil:
    cdef unsigned int bits = <unsigned int> share.upper_half << 16
    cdef float safe
    memcpy(&safe, &bits, 4)
    return safe


cdef class PackedShares:
    cdef BucketIds bucket_ids
    cdef unsigned int last_generation  # the newest one of `bucket_ids` when the shares were copied
    cdef PackedShare *packed
    cdef readonly Py_ssize_t count  # of shares
    cdef dict users
    cdef dict as_dict(self)

cdef PackedShares copy_shares(BucketIds bucket_ids, const PackedShare *packed, Py_ssize_t count)
