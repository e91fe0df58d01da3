# cython: language_level=3
# The types that `core.py` has where it is compiled (`hatch_build.py`).
cimport cython
from libc.stdint cimport int64_t

@cython.locals(i=Py_ssize_t, tree=Py_ssize_t, node=Py_ssize_t)
cpdef next_level(
    const float[::1] flat, const int64_t[:] row, const int64_t[::1] column, const float[::1] threshold,
    int64_t[:, ::1] nodes,
)
