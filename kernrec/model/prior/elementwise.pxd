# cython: language_level=3
from libc.math cimport ceil, floor, sqrt
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcpy


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


cdef inline uint64_t bits(double value) noexcept nogil:
    cdef uint64_t result
    memcpy(&result, &value, sizeof(result))
    return result


cdef inline Py_ssize_t twin(
    int64_t[::1] seen, const int64_t[::1] variants, const double[:, ::1] work, Py_ssize_t i,
) noexcept nogil:
    cdef Py_ssize_t figure
    cdef uint64_t digest = <uint64_t>variants[i], factor = 1
    for figure in range(work.shape[0]):
        factor += <uint64_t>0x9E3779B97F4A7C16
        digest += bits(work[figure, i]) * factor
    digest ^= digest >> 32
    digest *= <uint64_t>0x9E3779B97F4A7C15
    cdef Py_ssize_t place = <Py_ssize_t>((digest >> 32) & <uint64_t>(seen.shape[0] - 1))
    # Another call may have left any number there: it counts only where the launch of that number is the same.
    cdef Py_ssize_t other = seen[place]
    seen[place] = i
    if other >= i or variants[other] != variants[i]:
        return -1
    for figure in range(work.shape[0]):
        if bits(work[figure, other]) != bits(work[figure, i]):
            return -1
    return other
