# cython: language_level=3
# The operations of `arithmetic.py` on single 64-bit integers; they wrap, as NumPy's do.
cimport cython
from libc.stdint cimport int32_t, int64_t


cdef inline int64_t add(int64_t a, int64_t b) noexcept nogil:
    return a + b


cdef inline int64_t subtract(int64_t a, int64_t b) noexcept nogil:
    return a - b


cdef inline int64_t multiply(int64_t a, int64_t b) noexcept nogil:
    return a * b


@cython.cdivision(True)
cdef inline int64_t floor_divide(int64_t a, int64_t b) noexcept nogil:
    if b == 0:
        return 0
    if b == -1:  # the least integer has no opposite
        return 0 - a
    cdef int64_t quotient = a // b
    return quotient - (quotient * b != a and (a < 0) != (b < 0))


@cython.cdivision(True)
cdef inline int64_t modulo(int64_t a, int64_t b) noexcept nogil:
    if b == 0 or b == -1:
        return 0
    cdef int64_t rest = a % b
    return rest + b if rest != 0 and (rest < 0) != (b < 0) else rest


cdef inline int64_t ceil_div(int64_t a, int64_t b) noexcept nogil:
    return 0 - floor_divide(0 - a, b)


cdef inline int64_t power(int64_t a, int64_t b) noexcept nogil:
    if b < 0:
        return 0
    cdef int64_t result = 1
    while b > 0:
        if b & 1:
            result = result * a
        a = a * a
        b = b >> 1
    return result


cdef inline int64_t equal(int64_t a, int64_t b) noexcept nogil:
    return a == b


cdef inline int64_t less(int64_t a, int64_t b) noexcept nogil:
    return a < b


cdef inline int64_t less_equal(int64_t a, int64_t b) noexcept nogil:
    return a <= b


cdef inline int64_t both(int64_t a, int64_t b) noexcept nogil:
    return a & b


cdef inline int64_t either(int64_t a, int64_t b) noexcept nogil:
    return a | b


cdef inline int64_t negation(int64_t a) noexcept nogil:
    return a == 0


cdef inline int64_t truth(int64_t a) noexcept nogil:
    return a != 0


cdef inline int64_t as_integer(int64_t a) noexcept nogil:
    return a


cdef inline int64_t choose(int64_t condition, int64_t a, int64_t b) noexcept nogil:
    return a if condition else b


cdef inline int64_t minimum(int64_t a, int64_t b) noexcept nogil:
    return a if a < b else b


cdef inline int64_t maximum(int64_t a, int64_t b) noexcept nogil:
    return a if a > b else b


cdef inline int64_t absolute(int64_t a) noexcept nogil:
    return 0 - a if a < 0 else a


cdef inline int64_t log2(int64_t a) noexcept nogil:
    cdef int64_t exponent = 0
    while a > 1:
        a = a >> 1
        exponent = exponent + 1
    return exponent


cdef inline int64_t power_of_two(int64_t a) noexcept nogil:
    return a > 0 and a & (a - 1) == 0


cdef inline int64_t magic_shift(int64_t d) noexcept nogil:
    return log2(d - 1) if 2 <= d <= <int64_t>1 << 31 else 0


cdef inline int64_t magic_mul(int64_t d) noexcept nogil:
    return ceil_div(<int64_t>1 << (log2(d - 1) + 32), d) if 2 <= d <= <int64_t>1 << 31 else 0


cdef inline int64_t floor_sum(int64_t n, int64_t step, int64_t start, int64_t divisor) noexcept nogil:
    cdef int64_t total = 0, beyond, limit = <int64_t>1 << 31
    if n <= 0 or step < 0 or divisor <= 0 or start <= 0 - limit:
        return 0
    if n >= limit or step >= limit or divisor >= limit or start >= limit:
        return 0
    while True:
        total = total + (n * (n - 1) // 2 * floor_divide(step, divisor) + n * floor_divide(start, divisor))
        step, start = modulo(step, divisor), modulo(start, divisor)
        beyond = step * n + start
        n = floor_divide(beyond, divisor)
        if n == 0:
            return total
        start, step, divisor = modulo(beyond, divisor), divisor, step


cdef inline int64_t gather(
    const int64_t[::1] values, Py_ssize_t register, const int32_t[::1] indexes, Py_ssize_t index, Py_ssize_t i,
) noexcept nogil:
    if index < 0:
        return values[register] if index == -1 else values[register + i]
    return values[register + indexes[index + i]]
