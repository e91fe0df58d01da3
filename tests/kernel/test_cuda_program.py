"""Test that the device code of CUDA programs is separated from the host code."""

import re

import pytest

from kernrec.compile.nvrtc import compile_source
from kernrec.kernel.cuda_program import device_code, has_host_code
from kernrec.kernel.source_files import read_source
from tests.helpers.needs import needs

pytestmark = needs("tree_sitter_cuda")

PROGRAM = """#include <stdio.h>
#include <vector>
#include <cuda_fp16.h>
#define GPU __device__ __forceinline__
using namespace std;
struct Point { float x, y; float norm() const { return x * x + y * y; } };
struct Owner { std::vector<float> values; };  // a type of the host
typedef struct { glob_t files; Owner *owner; } Loader;
#define TIMED() Timer timer(__FUNCTION__)
class Timer { public: Timer(const std::string &name) {} };
const int width = 32;
float *host_values;
template <class T> __host__ __device__ T ceil_div(T a, T b) { return (a + b - 1) / b; }
constexpr int twice(int x) { return 2 * x; }
GPU float half_of(float x) { return x / 2; }
void print(const float *values);
namespace inner {
template <class T> __global__ void scale(float *y, const Point *p, uint32_t n) {
    for (uint32_t i = threadIdx.x; i < n; i += ceil_div(twice(width), 2))
        y[i] = fminf(half_of(p[i].norm()), std::is_same<T, int>::value ? FLT_MAX : 1);
}
template __global__ void scale<int>(float *, const Point *, uint32_t);
}
void print(const float *values) { TIMED(); for (auto v : vector<float>(1)) printf("%f", v); }
int main() {
    inner::scale<int><<<1, 32>>>(host_values, 0, 4);
    return 0;
}
"""


def test_host_code_is_removed_and_device_code_compiles():
    code = device_code(PROGRAM)
    assert code.headers == ("stdio.h", "vector")
    assert code.functions == ("print", "main")
    assert "main" in code.note
    assert "<<<" not in code.text
    assert "host_values" not in code.text
    assert "scale" in compile_source(code.text, 80).ptx


def test_messages_state_the_line_numbers_of_the_file():
    from kernrec.compile.compiled import CompileError

    wrong = PROGRAM.replace("half_of(p[i].norm())", "missing(p[i].norm())")
    line = PROGRAM[: PROGRAM.index("half_of(p[i]")].count("\n") + 1
    with pytest.raises(CompileError, match=f":{line}: .*missing"):
        compile_source(device_code(wrong).text, 80)


def test_source_without_host_code_is_unchanged():
    source = '#include <cuda_fp16.h>\nextern "C" __global__ void f(half *x) { x[0] = 1; }\n'
    assert not has_host_code(source)
    assert device_code(source).text == source


def test_only_the_launched_template_instance_is_compiled():
    source = (
        "template <typename T, int N> __global__ void f(T *x) { x[0] = N; }\n"
        "template __global__ void f<float, 4>(float *);\ntemplate __global__ void f<int, 2>(int *);\n"
    )
    ptx = compile_source(device_code(source, "f<float, SIZE>").text, 80, {"SIZE": 8}).ptx
    assert set(re.findall(r"\.entry (\w+)", ptx)) == {"_Z1fIfLi8EEvPT_"}


def test_headers_are_found_beside_the_file_and_in_named_folders(tmp_path):  # type: ignore[no-untyped-def]
    for name, text in (
        ("app/main.cu", '#include "../common/a.h"\n#include <b.cuh>\n#include "cublas_v2.h"\n'),
        ("common/a.h", "__device__ int a;\n"),
        ("headers/b.cuh", '#include "c.h"\n'),
        ("headers/c.h", "__device__ int c;\n"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    text = read_source(tmp_path / "app/main.cu", ["../headers"])
    assert "int a;" in text
    assert "int c;" in text
    assert "cublas" not in text
