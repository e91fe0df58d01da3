"""Test that device code, kernels, parameters and macros are read from the text of CUDA programs."""

import re
from pathlib import Path

import pytest

from kernrec.compile.nvrtc import compile_source
from kernrec.errors import UsageError
from kernrec.kernel.cuda_program import device_code, has_host_code
from kernrec.kernel.cuda_signature import element_type, is_only_assigned, macros, signatures
from kernrec.kernel.source_files import read_source, whole_source
from tests.helpers.needs import needs
from tests.helpers.paths import beside

PROGRAM = beside(__file__, "cuda_program.cu")


@needs("tree_sitter_cuda")
def test_host_code_is_removed_and_device_code_compiles():
    code = device_code(PROGRAM)
    assert code.headers == ("stdio.h", "vector")
    assert code.functions == ("print", "main")
    assert "main" in code.note
    assert "<<<" not in code.text
    assert "host_values" not in code.text
    assert "scale" in compile_source(code.text, 80).ptx


@needs("tree_sitter_cuda")
@pytest.mark.parametrize("start", ["", "#ifdef _WIN32\n#if 1\n#include <windows.h>\n#endif\n#endif\nuint8_t first;\n"])
def test_messages_state_the_line_numbers_of_the_file(start):
    from kernrec.compile.compiled import CompileError

    wrong = start + PROGRAM.replace("half_of(p[i].norm())", "missing(p[i].norm())")
    line = wrong[: wrong.index("missing(p[i]")].count("\n") + 1
    with pytest.raises(CompileError, match=f":{line}: .*missing"):
        compile_source(device_code(wrong).text, 80)


@needs("tree_sitter_cuda")
def test_device_code_keeps_a_source_without_host_code():
    source = '#include <cuda_fp16.h>\nextern "C" __global__ void f(half *x) { x[0] = 1; }\n'
    assert not has_host_code(source)
    assert device_code(source).text == source


@needs("tree_sitter_cuda")
def test_only_the_launched_template_instance_is_compiled():
    source = (
        "template <typename T, int N> __global__ void f(T *x) { x[0] = N; }\n"
        "template __global__ void f<float, 4>(float *);\ntemplate __global__ void f<int, 2>(int *);\n"
    )
    ptx = compile_source(device_code(source, "f<float, SIZE>").text, 80, {"SIZE": 8}).ptx
    assert set(re.findall(r"\.entry (\w+)", ptx)) == {"_Z1fIfLi8EEvPT_"}


def test_cuda_program_is_read_with_headers_of_its_project(tmp_path):
    (tmp_path / ".git").mkdir()
    for name in ("a/app", "a/common", "a/other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a/common/sizes.h").write_text("#define SIZE 7\n")
    (tmp_path / "sizes.h").write_text("#define SIZE 9\n")
    (tmp_path / "a/other/twice.h").write_text("1")
    (tmp_path / "a/common/twice.h").write_text("2")
    program = tmp_path / "a/app/main.cu"
    text = '#include <sizes.h>\n#include "twice.h"\n#include "absent.h"\n// \u00e9\nint main() { f<< <1, 2>> >(); }\n'
    program.write_bytes(b"\xef\xbb\xbf" + text.encode("latin-1"))
    whole = whole_source(program)
    assert whole.startswith("#define SIZE 7")
    assert "f<<<1, 2>>>()" in whole
    assert '#include "twice.h"\n#include "absent.h"' in whole


@needs("tree_sitter_cuda")
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


@needs("tree_sitter_cuda")
def test_headers_outside_the_source_folder_are_read_only_within_the_project(tmp_path):  # type: ignore[no-untyped-def]
    (source := tmp_path / "project/apps/one/main.cu").parent.mkdir(parents=True)
    source.write_text('#include "a.h"\n')
    (header := tmp_path / "project/shared/include/a.h").parent.mkdir(parents=True)
    header.write_text("__device__ int a;\n")
    with pytest.raises(UsageError, match="name its folder with --include"):
        read_source(source)
    (tmp_path / "project/.git").mkdir()
    assert "int a;" in read_source(source)
    (secret := tmp_path / "secret.h").write_text("__device__ int secret;\n")
    header.unlink()
    header.symlink_to(secret)
    with pytest.raises(UsageError, match="name its folder with --include"):
        read_source(source)


def test_headers_are_not_searched_in_a_home_folder_under_git(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for name in (".git", "notes", "code/app"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "notes/secret.h").write_text("__device__ int secret;\n")
    (source := tmp_path / "code/app/main.cu").write_text('#include "secret.h"\n')
    with pytest.raises(UsageError, match="name its folder with --include"):
        whole_source(source)


SOURCE = beside(__file__, "torch_extension.cu")


def test_kernels_and_their_parameters_are_read():
    copies, first, last = signatures(SOURCE)
    assert (copies.name, copies.template) == ("copies", ("N",))
    assert (first.name, first.template, last.name, last.parameters) == ("first", (), "last", ())
    assert [(p.name, p.dtype, p.lanes, p.pointer, p.written) for p in first.parameters] == [
        ("a", "f32", 4, True, False), ("b", "f32", 1, True, True), ("n", "i64", 1, False, False),
        ("c", "f64", 1, True, True), ("h", "f16", 2, True, True), ("p", None, 1, False, False),
    ]  # fmt: skip


@needs("tree_sitter_cuda")
def test_python_binding_macros_are_removed_as_host_code():
    text = beside(__file__, "bindings_of_another_package_are_host_code.cu")
    code = device_code(text).text
    assert "*x = 1" in code
    assert "\nBIND" not in code
    assert "PYBIND11" not in code


def test_declaration_without_a_body_is_not_a_kernel():
    declared = "__global__ void f(int *);\n__global__ void g(float *x);\n__global__ void f(int *counts) {}\n"
    assert [(each.name, each.parameters[0].name) for each in signatures(declared)] == [("f", "counts")]


@needs("tree_sitter_cuda")
def test_device_code_keeps_types_and_specializations_that_the_kernel_uses():
    text = """template <typename T> struct Shared { __device__ T *get(); };
template <> struct Shared<float> { __device__ float *get(); };
struct Reader { __device__ float operator()(int i); };
struct Unused { __device__ void f(); };
template <typename R> __global__ void f(float *x) { x[0] = Shared<float>().get()[0] + R()(0); }
int main() { f<Reader><<<1, 1>>>(nullptr); }"""
    code = device_code(text, "f<Reader>").text
    assert "struct Shared<float>" in code
    assert "struct Reader" in code
    assert "Unused" not in code


def test_kernel_signature_is_read_despite_preprocessor_lines():
    source = "__global__\n#if most > 0\n__launch_bounds__(size * 2, most)\n#endif\nvoid f(float *x) { }"
    assert [each.name for each in signatures(source)] == ["f"]


def test_only_macros_with_an_ifndef_guard_can_be_set():
    assert [tuple(macro) for macro in macros(SOURCE)] == [("TILE", 16, True), ("ROWS", 7, False)]


@pytest.mark.parametrize(("ctype", "element"), [
    ("const unsigned long long", ("u64", 1)), ("uchar4", ("u8", 4)), ("__nv_bfloat16", ("bf16", 1)),
    ("nv_bfloat162", ("bf16", 2)), ("volatile int", ("i32", 1)), ("cudaTextureObject_t", (None, 1)),
    ("float5", (None, 1)),
])  # fmt: skip
def test_c_types_are_mapped_to_kernrec_dtypes(ctype, element):
    assert element_type(ctype) == element


@pytest.mark.parametrize(("body", "output"), [
    ("y[i * (n + 1)] = x[i]; y[x[0]] = 2;", True), ("y[i] += x[i];", False), ("if (y[i] == 1) y[i] = 2;", False),
    ("float* z = y; z[i] = 1;", False), ("x[i];", False),
])  # fmt: skip
def test_pointer_that_is_only_written_is_an_output(body, output):
    source = f"__global__ void k(const int* x, int* y, int n) {{ int i = 0; {{ {body} }} }} void f(int* y) {{ y = y; }}"
    assert is_only_assigned(source, "k", "y") == output


@pytest.mark.parametrize(("source", "names"), [
    ("", ["x", "z"]), ("// #define MORE\n", ["x", "z"]), ("#define MORE\n", ["x", "y"]),
])  # fmt: skip
def test_parameter_under_an_undefined_macro_is_ignored(source, names):
    source += "__global__ void k(int *x\n#ifdef MORE\n, int *y\n#else\n, int z\n#endif\n) { *x = 1; }"
    (signature,) = signatures(source)
    assert [parameter.name for parameter in signature.parameters] == names


@needs("tree_sitter_cuda")
def test_multiline_bindings_and_the_register_keyword_are_removed():
    text = """#define BIND(name, type) \\
    void name(torch::Tensor a) { f<<<1, 2>>>(a.data_ptr()); }
__global__ void f(int *x) { register int i = 1; *x = i; }
BIND(first, torch::kFloat32)
BIND(second, torch::kHalf);
int main() {}
"""
    code = device_code(text).text
    assert "*x = i" in code
    assert "register" not in code
    assert "kFloat32" not in code


@needs("tree_sitter_cuda")
def test_quoted_header_of_cuda_gets_angle_brackets():
    code = device_code('#include "curand_kernel.h"\n__global__ void f() {}\nint main() {}\n').text
    assert code.splitlines()[0] == "#include <curand_kernel.h>"
