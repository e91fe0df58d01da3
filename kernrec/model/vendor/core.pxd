# cython: language_level=3
# The types that `core.py` has where it is compiled (`hatch_build.py`).
cimport cython
from libc.stdint cimport int32_t, int64_t

cdef Py_ssize_t BATCH, M, N, K, SIZES
cdef Py_ssize_t FLOPS_S, DRAM_S, L2_S, LAUNCH_S, TOTAL_S, WORK_S, MEMORY_S, TILES_S, MOVED, WEIGHTS, RESULT
cdef Py_ssize_t ROWS, COLUMNS, SPLIT, RATE, READ_BYTES, TILE_FLOPS, JOINED, FEW, SHARE
cdef Py_ssize_t WAVES, FIRST_SQUARE, SECOND_SQUARE, TIMED
cdef Py_ssize_t SHARES, FIRST_SIZE, TOTAL, BYTES, TILES, AREAS, FIRST_WAVES, FIRST_TIME, ALIGNED, FULL, FILLED, REST
cdef int64_t MOST_ALIGNED, MOST_ALIGNED_ROWS
cdef double LEAST_SPLIT, INFINITY, LEAST_SHARE, LEAST_SIZE, WARPS, FEW_WARPS, REREAD, OVERLAP, STRIDED, STRIDED_POWER
cdef double THERMAL_S, THERMAL_POWER, MOST_RATIO
cdef Py_ssize_t GROUP

cdef class Products:
    cdef double a_bytes, b_bytes, c_bytes, peak_flops, bandwidth, dram, l2, l2_bytes, sms, launch_s, working_sets
    cdef const double[:, ::1] wave_tiles

cdef class TensorTiles:
    cdef const double[:, ::1] tiles
    cdef Py_ssize_t count
    cdef double read_rate, fill_s

cdef class SimtTiles:
    cdef const double[:, ::1] tiles
    cdef Py_ssize_t batched, count
    cdef double fill_s, element_bytes, dram, strided_k, slower
    cdef bint reread, alone

cdef class Trees:
    cdef const int64_t[:] start
    cdef const int32_t[::1] nodes
    cdef const float[::1] leaf
    cdef double base
    cdef Py_ssize_t levels

cdef class Reading:
    cdef Trees trees
    cdef Py_ssize_t features
    cdef const int64_t[::1] columns, places, own_columns

cpdef tensor_products(
    Products products, TensorTiles tiles, const double[:, :] sizes, double[:, ::1] seconds, double[:, ::1] work,
    double[:, ::1] figures,
)

cpdef simt_products(
    Products products, SimtTiles tiles, const double[:, :] sizes, double[:, ::1] seconds, double[:, ::1] work,
    double[:, ::1] figures,
)

@cython.locals(i=Py_ssize_t)
cdef work_of_products(Products products, const double[:, :] sizes, double[:, ::1] work)

@cython.locals(i=Py_ssize_t, t=Py_ssize_t, tiles="const double[:, ::1]", fill_s=double)
cdef tensor_tiles(
    Products products, TensorTiles of_card, const double[:, :] sizes, double[:, ::1] seconds, double[:, ::1] work,
)

cdef double fourth_power(double value) noexcept nogil

@cython.locals(
    i=Py_ssize_t, t=Py_ssize_t, tiles="const double[:, ::1]", fill_s=double, element=double, sms=double, l2=double,
    l2_bytes=double, strided=double, again=double, held=double,
)
cdef simt_tiles(
    Products products, SimtTiles of_card, const double[:, :] sizes, double[:, ::1] seconds, double[:, ::1] work,
)

@cython.locals(
    i=Py_ssize_t, size=Py_ssize_t, wave=Py_ssize_t, square=Py_ssize_t, tile=Py_ssize_t, figure=Py_ssize_t,
    tiles="const double[:, ::1]", sms=double, l2_bytes=double,
)
cdef figures_of_products(
    Products products, const double[:, :] sizes, double[:, ::1] seconds, double[:, ::1] work,
    double[:, ::1] figures,
)

@cython.locals(
    s=Py_ssize_t, i=Py_ssize_t, c=Py_ssize_t, first=Py_ssize_t, columns="const int64_t[::1]",
    places="const int64_t[::1]", own_columns="const int64_t[::1]",
)
cpdef corrected(
    Reading reading, const double[:, :] table, const double[:, :, :] own, const double[:, :] base, Py_ssize_t each,
    const double[:] least_value, double most, Py_ssize_t count, int32_t[::1] flat, int32_t[::1] reached,
    double[::1] sums, double[:, ::1] values,
)

@cython.locals(
    r=Py_ssize_t, rows=Py_ssize_t, group=Py_ssize_t, together=Py_ssize_t, tree=Py_ssize_t, node=Py_ssize_t,
    first=Py_ssize_t, link=Py_ssize_t, start="const int64_t[:]", nodes="const int32_t[::1]",
    leaf="const float[::1]",
)
cpdef sums_of_leaves(
    Trees trees, Py_ssize_t features, Py_ssize_t count, const int32_t[::1] flat, int32_t[::1] reached,
    double[::1] sums,
)
