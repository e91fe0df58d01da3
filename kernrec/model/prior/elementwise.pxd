# cython: language_level=3
from libc.math cimport ceil, floor, sqrt


cdef inline double minimum(double a, double b) noexcept nogil:
    return a if a <= b or a != a else b


cdef inline double maximum(double a, double b) noexcept nogil:
    return a if a >= b or a != a else b


cdef inline double select(bint condition, double a, double b) noexcept nogil:
    return a if condition else b


cdef inline bint some(bint condition) noexcept nogil:
    return condition
