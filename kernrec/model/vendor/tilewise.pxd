# cython: language_level=3
from libc.math cimport ceil, exp, floor, log2, pow as power, sqrt
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy


cdef inline double minimum(double a, double b) noexcept nogil:
    return a if a <= b or a != a else b


cdef inline double maximum(double a, double b) noexcept nogil:
    return a if a >= b or a != a else b


cdef inline double select(bint condition, double a, double b) noexcept nogil:
    return a if condition else b


cdef inline double aligned(double size, int64_t most) noexcept nogil:
    cdef int64_t whole = <int64_t>size
    while whole % most:
        most //= 2
    return most


ctypedef fused number:
    double
    Py_ssize_t


cdef inline number per_tile(number of_problem) noexcept nogil:
    return of_problem


cdef inline double of_tile(const double[:, ::1] of_tiles, Py_ssize_t problem, Py_ssize_t tile) noexcept nogil:
    return of_tiles[problem, tile]


cdef inline double least(
    const double[:, ::1] of_tiles, Py_ssize_t problem, Py_ssize_t first, Py_ssize_t end,
) noexcept nogil:
    cdef double smallest = of_tiles[problem, first]
    cdef Py_ssize_t tile
    for tile in range(first + 1, end):
        smallest = minimum(smallest, of_tiles[problem, tile])
    return smallest


cdef inline int32_t ordered(double value) noexcept nogil:
    cdef float single = <float>value + <float>0.0
    cdef int32_t bits
    memcpy(&bits, &single, sizeof(bits))
    return bits if bits >= 0 else bits ^ 0x7fffffff


cdef inline Py_ssize_t row_of(Py_ssize_t first, Py_ssize_t count) noexcept nogil:
    return first


cdef inline double over_trees(double of_trees) noexcept nogil:
    return of_trees
