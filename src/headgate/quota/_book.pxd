from headgate.quota._nodes cimport Nodes
from headgate.quota._split cimport Wish

cdef struct Cell:
    double consumed  # the node's total, as far as it is booked
    unsigned int rejected, requests  # likewise
    float promised[4]  # for the slots the node has not reported yet, at slot % 4
    float demand  # per slot, smoothed; infinite: not known yet
    float held  # what running requests are expected to consume
    float carry  # the fraction, in requests, that shares have fallen short of
    float safe  # the share of a slot in which the node is on its own
    float last_consumed, last_rejected  # in the last report that had any
    int node
    int listed  # the slot of the last report with a line of it (from 1 on); 0: none yet
    int until  # the last slot of which something is promised (from 1 on)
    float lapsed  # what it may have taken while we were away, until it reports
    int asked  # the slot in which the node asked for it (from 1 on)

cdef struct Bucket:
    double level  # what may be spent, after all that is booked; below 0: debt
    double rate  # refill per slot; below 0: no limit
    double capacity
    double held  # by running requests, at the last assignment
    double spilled  # refill that found the bucket full while some node was still to report
    double recorded  # all that was ever booked
    double cost  # the mean cost of a request; 0: not known
    long long slot  # up to which it is refilled
    Cell *cells  # by node number, rising
    int count, room

cdef struct Given:
    int bucket
    float amount, safe

cdef struct Out:
    Given *given
    Py_ssize_t count, room
    long long slot

cdef class Sums:
    cdef double *consumed
    cdef double *rejected
    cdef Py_ssize_t room

cdef struct Used:
    int bucket
    double consumed
    unsigned int rejected, requests

cdef class Usage:
    cdef readonly str node
    cdef readonly int slots
    cdef Book book
    cdef Used *used
    cdef Py_ssize_t count, room
    cdef int push(self, int bucket, double consumed, unsigned int rejected, unsigned int requests) except -1

cdef class Book:
    cdef Nodes nodes
    cdef readonly object rule
    cdef int kind
    cdef Bucket *buckets
    cdef Py_ssize_t count, room
    cdef readonly Py_ssize_t cells
    cdef readonly long long first, assigned
    cdef dict users  # user -> {resource: bucket}
    cdef list names  # bucket -> (user, resource), or None
    cdef object free  # (slot, bucket): forgotten, since when
    cdef object terms  # user, resource -> (rate, capacity, the slot it began in), or None: no limit
    cdef Wish *wishes
    cdef Py_ssize_t wishes_room
    cdef Out *outs  # two for each node: at 2 * node + target slot % 2
    cdef Py_ssize_t outs_room
    cdef readonly int nr_slot
    cdef dict sums  # slot -> Sums
    cdef dict past  # slot -> node -> what was given, as packed `Given`s
    cdef Py_ssize_t _number_of(self, str user, str resource, long long slot) except -1
    cdef Cell *_cell(self, Bucket *bucket, int node) except NULL
    cdef Sums _sums(self, long long slot)
    cdef int _day(self, long long slot) noexcept
    cdef double _outstanding(self, Bucket *bucket)
    cdef int _enter(
        self,
        Usage usage,
        int number,
        Cell *cell,
        long long slot,
        double new,
        unsigned int refused,
        unsigned int served,
        double held,
    ) except -1
    cdef int _assign(self, int number, long long slot) except -1
    cdef int _tidy(self, int number, long long slot) except -1
