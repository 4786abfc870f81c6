from libc.string cimport memcpy

from sluicegate.quota.packed._bucket_ids cimport Register

cdef packed struct Given:  # one for each cell: ten bytes, so that a cell and its share take less than a hundred
    int bucket
    float amount
    unsigned short upper_half  # of the safe share as a float: rounded down, by less than a hundredth


cdef inline Given given_of(int bucket, float amount, float safe) noexcept nogil:
    cdef Given given
    cdef unsigned int bits
    memcpy(&bits, &safe, 4)
    given.bucket = bucket
    given.amount = amount
    given.upper_half = <unsigned short> (bits >> 16)
    return given


cdef inline float safe_of(const Given *given) noexcept nogil:
    cdef unsigned int bits = <unsigned int> given.upper_half << 16
    cdef float safe
    memcpy(&safe, &bits, 4)
    return safe


cdef class GivenShares:
    cdef Register register
    cdef unsigned int last  # the register's newest serial when this was given
    cdef Given *given
    cdef readonly Py_ssize_t count  # of shares
    cdef dict users
    cdef dict as_dict(self)

cdef GivenShares given_shares(Register register, const Given *given, Py_ssize_t count)
