# cython: language_level=3
# The types that `core.py` has where it is compiled (`hatch_build.py`).
cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

cdef Py_ssize_t PIPES, F64, SHARED, PORT, SECTORS, BARRIERS, CORE_J, BETWEEN, BETWEEN_GROUPS, ALONE, IN_TURN
cdef Py_ssize_t BLOCKS, CONCURRENT, WARPS, PREFETCH, DRAM_BYTES, DRAM_SLOWDOWN, SERIAL_CLK, WAIT_ROUNDS, OVERLAPPED
cdef Py_ssize_t LONE_WAITS, LOOPS, TIMES, RESOURCE, TWINS
cdef Py_ssize_t SQUARINGS, PARTS, ROUNDS, CLOCKS
cdef double LEAST_SPARE_W, RESTING, NONE, CAPPED, GROUPS_SHARE, BARRIER_CLK, BARRIER_WARP_CLK, SCHEDULERS, BLOCK_CLK, START_CLK
cdef double LAUNCH_S, START_S

cdef class Card:
    cdef double clock_hz, sms, l2_bytes, dram_byte_s, memory_clk, l2_clk_per_sector, l2_latency_clk
    cdef double core_time, dram_time
    cdef bint few_f64

cdef class Rates:
    cdef const double[:, :, ::1] rates
    cdef double[::1] total
    cdef int64_t[::1] seen
    cdef bint grouped, stretched

cdef class LaunchPlan:
    cdef const int64_t[::1] registers
    cdef Py_ssize_t loops, steps
    cdef const int64_t[:] variant
    cdef const int64_t[::1] reads
    cdef const uint8_t[:, ::1] axes
    cdef const int64_t[::1] writes
    cdef const uint8_t[::1] scratch
    cdef double[::1] room

@cython.locals(
    i=Py_ssize_t, q=Py_ssize_t, loop=Py_ssize_t, variant=Py_ssize_t, none_ahead=bint, quantities=Py_ssize_t,
    by_scheduler=double, shared_f64=double, trips=double, longer=double, longer_clk=double, first_clk=double,
    in_turn_s=double, rates="const double[:, :, ::1]", total="double[::1]", stretched=bint,
    grouped=bint, earlier=Py_ssize_t, row=Py_ssize_t, most=double, resource=double,
)
cpdef launch_times(
    Rates demand, Card card, Py_ssize_t loops, const int64_t[::1] variants, const double[:, ::1] work,
    double[:, ::1] pipe_clk, double[:, ::1] times,
)

cdef double eighth_power(double value) noexcept nogil
cdef double eighth_root(double value) noexcept nogil
cdef double occupied(
    double blocks, double block_clk, double by_scheduler, double shared_f64, double warps,
) noexcept nogil
cdef double round_clk(double own, double wait, double busy) noexcept nogil
cdef double exposed_clk(double alone, double waited, double dram_clk) noexcept nogil
cdef double smooth_maximum(double a, double b) noexcept nogil

@cython.locals(i=Py_ssize_t, tensor=Py_ssize_t, step=Py_ssize_t, steps=Py_ssize_t)
cpdef dram_traffic(
    const double[:] blocks, const double[:] concurrent, const double[:, :] extents, const double[:, :] sizes,
    const int64_t[::1] reads, const uint8_t[:, ::1] axes, const int64_t[::1] writes, const uint8_t[::1] scratch,
    double l2_bytes, double[::1] room, double[:] moved,
)

@cython.locals(
    tensor=Py_ssize_t, step=Py_ssize_t, number=Py_ssize_t, last=Py_ssize_t, first_size=Py_ssize_t, working_set=double,
    total=double,
)
cdef double moved_bytes(
    double blocks, double concurrent, Py_ssize_t steps, double[::1] room, const int64_t[::1] reads,
    const uint8_t[:, ::1] axes, const int64_t[::1] writes, const uint8_t[::1] scratch, double l2_bytes,
) noexcept

cdef double rest_of_wave(double wave, double extent) noexcept nogil

cpdef launch_costs(
    LaunchPlan plan, Rates demand, Card card, const int64_t[::1] values, const int32_t[::1] indexes,
    const int64_t[:] rows, const double[:, ::1] geometry, const double[::1] sizes, Py_ssize_t first,
    Py_ssize_t last, int64_t[::1] variants, double[:, ::1] work, const int64_t[:] places, double byte_j,
    double[:, ::1] pipe_clk, double[:, ::1] times, double[:, :] nominal, double[:, :] longest,
)

@cython.locals(
    i=Py_ssize_t, row=Py_ssize_t, place=Py_ssize_t, loop=Py_ssize_t, step=Py_ssize_t, steps=Py_ssize_t,
    tensor=Py_ssize_t, total=double, registers="const int64_t[::1]", room="double[::1]",
)
cpdef launch_work(
    LaunchPlan plan, Card card, const int64_t[::1] values, const int32_t[::1] indexes, const int64_t[:] rows,
    const double[:, ::1] geometry, const double[::1] sizes, Py_ssize_t first, Py_ssize_t last, int64_t[::1] variants,
    double[:, ::1] work,
)

@cython.locals(i=Py_ssize_t, place=Py_ssize_t, part_s=double)
cpdef add_launch(
    const int64_t[:] places, const double[:, ::1] times, const double[:, ::1] work, double byte_j,
    double[:, :] nominal, double[:, :] longest,
)

@cython.locals(
    i=Py_ssize_t, row=Py_ssize_t, place=Py_ssize_t, register=Py_ssize_t, loop=Py_ssize_t, trips=double,
    registers="const int64_t[::1]",
)
cpdef quick_costs(
    LaunchPlan plan, Card card, const int64_t[::1] values, const int32_t[::1] indexes, const int64_t[:] rows,
    const double[:, ::1] geometry, const double[:, :, ::1] rates, double start_clk, Py_ssize_t first,
    Py_ssize_t last, const int64_t[:] places, double[:] clocks, double[:] joules,
)

@cython.locals(
    p=Py_ssize_t, i=Py_ssize_t, place=Py_ssize_t, clock=Py_ssize_t, step=Py_ssize_t, within=Py_ssize_t,
    trial=Py_ssize_t, tried=Py_ssize_t, over=bint, fits=bint, pausing=bint, spare_w=double, enough_s=double,
    divisor_w=double, limit_w=double, resting_w=double, paused_s=double,
)
cpdef limited_costs(
    const double[:, :] launches, const int64_t[:] places, const double[:, :] limits_w, Py_ssize_t each,
    const double[:, :] highest, const double[:] highest_hz, const int64_t[:] first, const double[:, ::1] table,
    const double[::1] table_hz, const double[:, ::1] search, double[:, :, :] costs,
)

cdef double regime(double core_s, double dram_s, double fixed_s, bint capped) noexcept nogil
cdef double overlap_power(double value) noexcept nogil
cdef double overlap_root(double value) noexcept nogil
