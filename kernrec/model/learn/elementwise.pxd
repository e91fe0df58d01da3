# cython: language_level=3
from libc.math cimport ceil, log1p, log2, sqrt
from libc.stdint cimport uint16_t


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


cdef inline double leaves(
    const float[::1] flat, Py_ssize_t own, Py_ssize_t tree, Py_ssize_t trees, Py_ssize_t levels,
    const uint16_t[::1] column, const float[::1] value,
) noexcept nogil:
    cdef Py_ssize_t a = tree, b = tree + 1, c = tree + 2, d = tree + 3
    cdef Py_ssize_t e = tree + 4, f = tree + 5, g = tree + 6, h = tree + 7, level
    for level in range(levels):
        a = 2 * a + trees + (flat[own + column[a]] >= value[a])
        b = 2 * b + trees + (flat[own + column[b]] >= value[b])
        c = 2 * c + trees + (flat[own + column[c]] >= value[c])
        d = 2 * d + trees + (flat[own + column[d]] >= value[d])
        e = 2 * e + trees + (flat[own + column[e]] >= value[e])
        f = 2 * f + trees + (flat[own + column[f]] >= value[f])
        g = 2 * g + trees + (flat[own + column[g]] >= value[g])
        h = 2 * h + trees + (flat[own + column[h]] >= value[h])
    return (
        (<double> value[a] + value[b]) + (<double> value[c] + value[d])
        + ((<double> value[e] + value[f]) + (<double> value[g] + value[h]))
    )
