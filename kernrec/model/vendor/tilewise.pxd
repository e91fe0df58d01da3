# cython: language_level=3
from libc.math cimport ceil, floor


cdef inline double minimum(double a, double b) noexcept nogil:
    return a if a <= b or a != a else b


cdef inline double maximum(double a, double b) noexcept nogil:
    return a if a >= b or a != a else b


cdef inline double select(bint condition, double a, double b) noexcept nogil:
    return a if condition else b


cdef inline double per_tile(double of_problem) noexcept nogil:
    return of_problem


cdef inline double least(const double[:] of_tiles, Py_ssize_t first, Py_ssize_t end) noexcept nogil:
    cdef double smallest = of_tiles[first]
    cdef Py_ssize_t tile
    for tile in range(first + 1, end):
        smallest = minimum(smallest, of_tiles[tile])
    return smallest
