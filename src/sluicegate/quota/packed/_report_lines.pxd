cdef struct PackedLine:  # a row of a report
    double consumed, settled, held
    double granted, returned
    unsigned int rejected, requests
    int entry  # in the string table

cdef struct BucketRef:  # the bucket of an entry, cached by the service ledger that looked it up
    unsigned int generation  # 0: not looked up yet
    int number
    int position  # the last known index of the node's cell in the bucket
    int service

cdef class StringTable:
    cdef list services  # their names
    cdef list bucket_ids_by_service  # the BucketIds that the refs of each service refer to
    cdef dict service_numbers  # service -> its index in `services`
    cdef list names  # entry -> (user, resource)
    cdef BucketRef *refs
    cdef Py_ssize_t count, room
    cdef readonly Py_ssize_t user_count
    cdef int add(self, str service, str user, str resource) except -1

cdef class PackedLines:
    cdef StringTable string_table
    cdef PackedLine *lines
    cdef Py_ssize_t count
    cdef readonly list ranges  # (service, from, to)
    cdef dict lines_dict
    cdef int allocate(self, Py_ssize_t count) except -1
    cdef int group_by_service(self) except -1
    cdef dict as_dict(self)
