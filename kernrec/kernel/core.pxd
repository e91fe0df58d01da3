# cython: language_level=3
# The types that `core.py` has where it is compiled (`hatch_build.py`).
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

cdef Py_ssize_t FIELDS
cdef int64_t MULTIPLY, CEIL_DIV, GATHER, ADD, SUBTRACT, FLOOR_DIVIDE, MODULO, EQUAL, LESS, LESS_EQUAL, BOTH, EITHER
cdef int64_t NEGATION, CHOOSE, MINIMUM, MAXIMUM, TRUTH, AS_INTEGER, POWER, ABSOLUTE, LOG2, POWER_OF_TWO, MAGIC_MUL
cdef int64_t MAGIC_SHIFT, FLOOR_SUM

@cython.locals(
    number=Py_ssize_t, place=Py_ssize_t, operation=int64_t, out=Py_ssize_t, count=Py_ssize_t, index=Py_ssize_t,
    i=Py_ssize_t, a=Py_ssize_t, a_step=Py_ssize_t, b=Py_ssize_t, b_step=Py_ssize_t, c=Py_ssize_t, c_step=Py_ssize_t,
    d=Py_ssize_t, d_step=Py_ssize_t,
)
cpdef run(
    const int64_t[::1] code, Py_ssize_t first, Py_ssize_t last, int64_t[::1] values, const int32_t[::1] indexes,
)

@cython.locals(i=Py_ssize_t, number=Py_ssize_t, all_hold=int64_t)
cpdef conjunction(
    const int64_t[::1] truths, const int64_t[::1] values, const int32_t[::1] indexes, uint8_t[::1] holds,
)
