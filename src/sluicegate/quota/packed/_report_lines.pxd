cdef struct Packed:  # a line
    double consumed, settled, held
    unsigned int rejected, requests
    int entry

cdef struct Found:  # the bucket of an entry, as far as it was looked up
    unsigned int serial  # 0: not yet
    int number
    int position  # where the node's cell stood in it last
    int service

cdef class Dictionary:
    cdef list services  # their names
    cdef list registers  # for each of them, whose numbers were found
    cdef dict service_numbers
    cdef list names  # entry -> (user, resource)
    cdef Found *found
    cdef Py_ssize_t count, room
    cdef readonly Py_ssize_t users
    cdef int add(self, str service, str user, str resource) except -1

cdef class PackedLines:
    cdef Dictionary dictionary
    cdef Packed *lines
    cdef Py_ssize_t count
    cdef readonly list parts  # (service, from, to)
    cdef dict lines_dict
    cdef int reserve(self, Py_ssize_t count) except -1
    cdef int arrange(self) except -1
    cdef dict as_dict(self)
