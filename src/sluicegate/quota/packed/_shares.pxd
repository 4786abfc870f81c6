from libc.string cimport memcpy

from sluicegate.quota.packed._bucket_ids cimport BucketIds

cdef packed struct PackedShare:  # 10 bytes, so that a node cell and its share take less than 100
    int bucket
    float amount
    unsigned short upper_half  # of the safe share as a float: rounded down, by less than a hundredth


cdef inline PackedShare pack_share(int bucket, float amount, float safe) noexcept nogil:
    cdef PackedShare share
    cdef unsigned int bits
    memcpy(&bits, &safe, 4)
    share.bucket = bucket
    share.amount = amount
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
