from headgate.quota._register cimport Register

cdef struct Given:
    int bucket
    float amount, safe

cdef class GivenShares:
    cdef Register register
    cdef unsigned int last  # the register's newest serial when this was given
    cdef Given *given
    cdef Py_ssize_t count
    cdef dict users
    cdef dict as_dict(self)

cdef GivenShares given_shares(Register register, const Given *given, Py_ssize_t count)
