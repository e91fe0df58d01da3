# cython: language_level=3
# The types that `core.py` has where it is compiled (`hatch_build.py`).
cimport cython
from libc.stdint cimport int64_t, uint16_t

cdef Py_ssize_t CLOCK_HZ, FIXED_S, THREADS, RESIDENT, SHARED_BYTES, FLOPS, BYTES, BLOCKS, BUSY_S, WAIT_S, L2_S, PIPES_S
cdef Py_ssize_t ONE, SMS, CONSTANTS, PEAK_FLOPS, BANDWIDTH
cdef Py_ssize_t SOME_FLOPS, COMPUTE_S, TRAFFIC_S, ROOFLINE_S, WARPS, LANES, ALL_THREADS
cdef Py_ssize_t SOME_RESIDENT, RESIDENT_WARPS, RESIDENT_BYTES, WAVES, ROUNDS, SOME_BUSY_S
cdef Py_ssize_t TIMES_BUSY, TIMES_WAIT, TIMES_L2
cdef double LEAST, LEAST_RATIO, MOST_RATIO, MOST_DEVIATIONS, INFINITY

cdef class Ratios:
    cdef const int64_t[::1] above, below, places
    cdef bint bounded, logarithmic

cdef class FeaturePlan:
    cdef const double[::1] gpu
    cdef Ratios bounded, logarithmic, plain

@cython.locals(k=Py_ssize_t, i=Py_ssize_t, place=Py_ssize_t, p=Py_ssize_t, pipe=Py_ssize_t)
cpdef add_times(
    const int64_t[:] who, const int64_t[:] places, const int64_t[:] pipes, const double[:, :] pipe_clk,
    const double[:, :] times, double[:, ::1] quantities,
)

cpdef features(FeaturePlan plan, double[:, ::1] quantities, float[:, :] columns)

@cython.locals(i=Py_ssize_t, constant=Py_ssize_t)
cdef derive(const double[::1] gpu, double[:, ::1] quantities)

@cython.locals(
    f=Py_ssize_t, i=Py_ssize_t, value=double, under=double, above="const int64_t[::1]", below="const int64_t[::1]",
    places="const int64_t[::1]",
)
cdef divide(Ratios ratios, double[:, ::1] quantities, float[:, :] columns)

@cython.locals(i=Py_ssize_t, f=Py_ssize_t, value=double, beyond=double, deviations=double)
cpdef distances(
    const double[:, ::1] matrix, const double[::1] low, const double[::1] high, const double[::1] spread,
    const double[:, ::1] means, double[:, ::1] squares, double[::1] of_groups, double[::1] distance,
)

cdef double if_known(double value, double otherwise) noexcept nogil

@cython.locals(i=Py_ssize_t)
cpdef least_seconds(
    const double[:, ::1] quantities, double bandwidth, double boost_hz, Py_ssize_t first_pipe, Py_ssize_t second_pipe,
    Py_ssize_t third_pipe, double[::1] seconds,
)

@cython.locals(i=Py_ssize_t, f=Py_ssize_t, value=float)
cpdef both_ways(const float[:, :] matrix, float[:, :] left, float[:, :] right)

@cython.locals(eight=Py_ssize_t, i=Py_ssize_t)
cpdef add_leaves(
    const float[::1] flat, const int64_t[:] row, const int64_t[:] first, Py_ssize_t trees, Py_ssize_t levels,
    const uint16_t[::1] column, const float[::1] value, double[:] sums,
)
