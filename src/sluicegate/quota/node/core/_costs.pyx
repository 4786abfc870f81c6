# cython: language_level=3, binding=False
"""Parses the amounts of a request, a dict by resource that the caller gave.

All of it is parsed before anything is counted, so that a wrong amount changes nothing.
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
    MAX_COSTS = 64  # as many as a `Costs` has room for


cdef int parse_costs(SharedHeader header, str what, object amounts, Costs *costs) except -1:
    cdef double amount
    cdef Py_ssize_t place = 0
    cdef PyObject *resource
    cdef PyObject *given
    cdef int count = 0
    if not PyDict_CheckExact(amounts):
        amounts = check_amounts(what, amounts)
    if PyDict_Size(amounts) > MAX_COSTS:
        raise ValueError(f"{what} must have at most {MAX_COSTS} resources, got {len(amounts)}")
    while PyDict_Next(amounts, &place, &resource, &given):
        if PyFloat_CheckExact(<object> given):
            amount = PyFloat_AS_DOUBLE(<object> given)
        elif PyLong_CheckExact(<object> given):
            amount = PyLong_AsDouble(<object> given)  # -1 of one that is too large, and an error
        else:
            check_amounts(what, amounts)  # raises if it is invalid
            amount = float(<object> given)
        if not 0.0 <= amount < INFINITY:
            PyErr_Clear()
            raise invalid_amount(what, <object> given, <object> resource)
        costs.resource[count] = <uint8_t> resource_number(header, <object> resource, count)
        costs.amount[count] = amount
        count += 1
    costs.count = count
    return 0


cdef dict check_amounts(str what, object amounts):
    """A mapping of amounts by resource as a dict; ValueError or TypeError if one is invalid."""
    if not isinstance(amounts, Mapping):
        raise TypeError(f"{what} must be a dict of amounts by resource, got {amounts!r}")
    checked = dict(amounts)
    for resource, amount in checked.items():
        if not isinstance(resource, str):
            raise TypeError(f"{what}: a resource must be a str, got {resource!r}")
        if not resource:
            raise ValueError(f"{what}: a resource must not be empty, got {resource!r}")
        if not isinstance(amount, int | float) or not 0.0 <= amount < INFINITY:
            raise invalid_amount(what, amount, resource)
    return checked


cdef object invalid_amount(str what, object amount, object resource):
    return ValueError(f"{what} must be finite numbers >= 0, got {amount!r} for {resource!r}")
