# cython: language_level=3, binding=False
"""What a caller says that a request costs: a dict of amounts by resource, checked and read.

All of it is read before anything is counted, so that a wrong amount changes nothing.
"""

from collections.abc import Mapping

from cpython.dict cimport PyDict_CheckExact, PyDict_Next, PyDict_Size
from cpython.exc cimport PyErr_Clear
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject
from libc.math cimport INFINITY
from libc.stdint cimport uint8_t

from sluicegate.quota.node.core._shared_header cimport resource_number

__all__ = []

cdef extern from "Python.h":
    double PyLong_AsDouble(object number) noexcept

cdef enum:
    MOST = 64  # as many as a `Costs` has room for


cdef int read_costs(Head head, str what, object amounts, Costs *costs) except -1:
    cdef double amount
    cdef Py_ssize_t place = 0
    cdef PyObject *resource
    cdef PyObject *given
    cdef int count = 0
    if not PyDict_CheckExact(amounts):
        amounts = amounts_of(what, amounts)
    if PyDict_Size(amounts) > MOST:
        raise ValueError(f"{what} must have at most {MOST} resources, got {len(amounts)}")
    while PyDict_Next(amounts, &place, &resource, &given):
        if PyFloat_CheckExact(<object> given):
            amount = PyFloat_AS_DOUBLE(<object> given)
        elif PyLong_CheckExact(<object> given):
            amount = PyLong_AsDouble(<object> given)  # -1 of one that is too large, and an error
        else:
            amounts_of(what, amounts)  # tells what is wrong with it
            amount = float(<object> given)
        if not 0.0 <= amount < INFINITY:
            PyErr_Clear()
            raise bad_amount(what, <object> given, <object> resource)
        costs.resource[count] = <uint8_t> resource_number(head, <object> resource, count)
        costs.amount[count] = amount
        count += 1
    costs.count = count
    return 0


cdef dict amounts_of(str what, object amounts):
    """A mapping of names and amounts as a dict, checked as far as it can be without a table."""
    if not isinstance(amounts, Mapping):
        raise TypeError(f"{what} must be a dict of amounts by resource, got {amounts!r}")
    checked = dict(amounts)
    for resource, amount in checked.items():
        if not isinstance(resource, str):
            raise TypeError(f"a resource of {what} must be a str, got {resource!r}")
        if not resource:
            raise ValueError(f"a resource of {what} must not be empty, got {resource!r}")
        if not isinstance(amount, int | float) or not 0.0 <= amount < INFINITY:
            raise bad_amount(what, amount, resource)
    return checked


cdef object bad_amount(str what, object amount, object resource):
    return ValueError(f"{what} must be finite amounts from 0 up, got {amount!r} for {resource!r}")
