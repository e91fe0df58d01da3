# cython: language_level=3
from libc.math cimport ceil, log1p, log2, sqrt


cdef inline double minimum(double a, double b) noexcept nogil:
    return a if a <= b or a != a else b


cdef inline double maximum(double a, double b) noexcept nogil:
    return a if a >= b or a != a else b


cdef inline double select(bint condition, double a, double b) noexcept nogil:
    return a if condition else b


cdef inline double largest(const double[:, :] rows, Py_ssize_t place) noexcept nogil:
    cdef Py_ssize_t row
    cdef double most = rows[0, place]
    for row in range(1, rows.shape[0]):
        most = maximum(most, rows[row, place])
    return most


cdef inline double largest_mean(
    const double[:, ::1] squares, Py_ssize_t i, const double[:, ::1] means, double[::1] room,
) noexcept nogil:
    cdef Py_ssize_t f, group
    cdef double most = 0.0
    for group in range(room.shape[0]):
        room[group] = 0.0
    for f in range(means.shape[0]):
        if squares[i, f] > 0.0:
            for group in range(room.shape[0]):
                room[group] += squares[i, f] * means[f, group]
    for group in range(room.shape[0]):
        most = maximum(most, room[group])
    return most


cdef inline double over_trees(double value) noexcept nogil:
    return value
