"""New NamedTuples, made as `tuple.__new__` makes them.

To call the class of one runs its own `__new__`, which is Python, and takes as long as all else that is
done to read a row of an ask.
"""

from cpython.object cimport PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM

cdef extern from "Python.h":
    object PyType_GenericAlloc(PyTypeObject *kind, Py_ssize_t count)


cdef inline void set_item(object made, Py_ssize_t at, object item) noexcept:
    Py_INCREF(item)  # PyTuple_SET_ITEM takes it
    PyTuple_SET_ITEM(made, at, item)


cdef inline object new_pair(object kind, object first, object second):
    """A NamedTuple of class `kind`, which has two fields."""
    made = PyType_GenericAlloc(<PyTypeObject *> kind, 2)
    set_item(made, 0, first)
    set_item(made, 1, second)
    return made


cdef inline object new_triple(object kind, object first, object second, object third):
    """A NamedTuple of class `kind`, which has three fields."""
    made = PyType_GenericAlloc(<PyTypeObject *> kind, 3)
    set_item(made, 0, first)
    set_item(made, 1, second)
    set_item(made, 2, third)
    return made


cdef inline object new_quad(object kind, object first, object second, object third, object fourth):
    """A NamedTuple of class `kind`, which has four fields."""
    made = PyType_GenericAlloc(<PyTypeObject *> kind, 4)
    set_item(made, 0, first)
    set_item(made, 1, second)
    set_item(made, 2, third)
    set_item(made, 3, fourth)
    return made
