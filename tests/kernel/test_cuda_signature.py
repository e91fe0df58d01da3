"""Test that kernels, parameters and macros are read from CUDA source text."""

import pytest

from kernrec.kernel.cuda_signature import element_type, is_only_assigned, macros, signatures

SOURCE = """
// __global__ void no_kernel(int) is a comment
typedef float real;
using Index = std::int64_t;
#define WIDE double
#ifndef TILE
#define TILE (16u)  // threads
#endif
#define ROWS 7
template <int N>
__global__ void copies(float* x) {}
extern "C" __global__ void __launch_bounds__(TILE * (TILE), 2)
first(const float4* __restrict__ a, real b[], Index n, WIDE* const c, __half2* h, std::pair<int, int> p = f(1, 2))
{ b[0] = "__global__ void in_a_string()"[0]; }
static __global__ void last(void);
__global__ void last() {}
"""


def test_kernels_and_their_parameters_are_read():
    copies, first, last = signatures(SOURCE)
    assert (copies.name, copies.template) == ("copies", ("N",))
    assert (first.name, first.template, last.name, last.parameters) == ("first", (), "last", ())
    assert [(p.name, p.dtype, p.lanes, p.pointer, p.written) for p in first.parameters] == [
        ("a", "f32", 4, True, False), ("b", "f32", 1, True, True), ("n", "i64", 1, False, False),
        ("c", "f64", 1, True, True), ("h", "f16", 2, True, True), ("p", None, 1, False, False),
    ]  # fmt: skip


def test_macro_guard_decides_whether_a_value_can_be_set():
    assert [tuple(macro) for macro in macros(SOURCE)] == [("TILE", 16, True), ("ROWS", 7, False)]


@pytest.mark.parametrize(("ctype", "element"), [
    ("const unsigned long long", ("u64", 1)), ("uchar4", ("u8", 4)), ("__nv_bfloat16", ("bf16", 1)),
    ("nv_bfloat162", ("bf16", 2)), ("volatile int", ("i32", 1)), ("cudaTextureObject_t", (None, 1)),
    ("float5", (None, 1)),
])  # fmt: skip
def test_types_have_kernrec_names(ctype, element):
    assert element_type(ctype) == element


@pytest.mark.parametrize(("body", "output"), [
    ("y[i * (n + 1)] = x[i]; y[x[0]] = 2;", True), ("y[i] += x[i];", False), ("if (y[i] == 1) y[i] = 2;", False),
    ("float* z = y; z[i] = 1;", False), ("x[i];", False),
])  # fmt: skip
def test_pointer_that_is_only_written_is_an_output(body, output):
    source = f"__global__ void k(const int* x, int* y, int n) {{ int i = 0; {{ {body} }} }} void f(int* y) {{ y = y; }}"
    assert is_only_assigned(source, "k", "y") == output
