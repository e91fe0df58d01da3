# cython: language_level=3
# The types that `core.py` has where it is compiled (`hatch_build.py`).
cimport cython

cdef Py_ssize_t BATCH, M, N, K, SIZES, FLOPS_S, DRAM_S, L2_S, MEMORY_S, MOVED, WEIGHTS, RESULT, TILES_S
cdef Py_ssize_t ROWS, COLUMNS, SPLIT, RATE, READ_BYTES, TILE_FLOPS, JOINED, FEW, SHARE
cdef Py_ssize_t WAVES, FIRST_SQUARE, SECOND_SQUARE, TIMED
cdef Py_ssize_t SHARES, FIRST_SIZE, TOTAL, BYTES, TILES, AREAS, FIRST_WAVES, FIRST_TIME, FULL, FILLED, REST
cdef double LEAST_SPLIT, INFINITY, LEAST_SHARE, LEAST_SIZE, WARPS, REREAD

@cython.locals(i=Py_ssize_t)
cpdef work_of_products(
    const double[:, ::1] sizes, double a_bytes, double b_bytes, double c_bytes, double peak_flops, double bandwidth,
    double dram, double l2, double l2_bytes, double working_sets, double[:, ::1] work,
)

@cython.locals(i=Py_ssize_t, t=Py_ssize_t)
cpdef tensor_tiles(
    const double[:, ::1] sizes, const double[:, ::1] tiles, Py_ssize_t count, double sms, double read_rate,
    double fill_s, double l2, double[:, ::1] seconds, double[:, ::1] work,
)

@cython.locals(i=Py_ssize_t, t=Py_ssize_t)
cpdef simt_waves(
    const double[:, ::1] sizes, const double[:, ::1] tiles, double sms, double[:, ::1] per_sm,
    double[:, ::1] resident, double[:, ::1] busy,
)

@cython.locals(i=Py_ssize_t, t=Py_ssize_t, again=double)
cpdef simt_parts(
    const double[:, ::1] sizes, const double[:, ::1] tiles, const double[:, ::1] per_sm,
    const double[:, ::1] resident, const double[:, ::1] reached, const double[::1] strided, double element,
    double sms, double peak_flops, double fill_s, double l2, double l2_bytes, double dram, bint reread,
    double[:, :, ::1] parts,
)

@cython.locals(i=Py_ssize_t, t=Py_ssize_t)
cpdef simt_tiles(
    const double[:, ::1] sizes, const double[:, ::1] tiles, Py_ssize_t timed, Py_ssize_t batched, Py_ssize_t end,
    double fill_s, double l2, double[:, ::1] seconds, double[:, ::1] work,
)

@cython.locals(i=Py_ssize_t, size=Py_ssize_t, wave=Py_ssize_t, square=Py_ssize_t, tile=Py_ssize_t)
cpdef figures_of_products(
    const double[:, ::1] sizes, const double[:, ::1] work, const double[:, :] seconds, const double[::1] total_s,
    const double[:, ::1] tiles, double sms, double l2_bytes, double[:, ::1] figures,
)
