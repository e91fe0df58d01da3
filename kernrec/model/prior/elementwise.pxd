# cython: language_level=3
from libc.math cimport ceil, floor, sqrt
from libc.stdint cimport int32_t, int64_t


cdef inline double minimum(double a, double b) noexcept nogil:
    return a if a <= b or a != a else b


cdef inline double maximum(double a, double b) noexcept nogil:
    return a if a >= b or a != a else b


cdef inline double select(bint condition, double a, double b) noexcept nogil:
    return a if condition else b


cdef inline bint some(bint condition) noexcept nogil:
    return condition


cdef inline double gathered(
    const int64_t[::1] values, Py_ssize_t register, const int32_t[::1] indexes, Py_ssize_t index, Py_ssize_t row,
) noexcept nogil:
    if index < 0:
        return values[register] if index == -1 else values[register + row]
    return values[register + indexes[index + row]]
