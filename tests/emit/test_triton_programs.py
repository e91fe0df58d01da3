"""Kernels in Triton as PTX, machine code and programs: launched as Triton launches them, with neither it nor Python."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from kernrec.compile import Compiled, Resources
from kernrec.compile.triton_compile import with_dynamic_shared
from kernrec.compile.triton_version import has_triton
from kernrec.emit import emit
from kernrec.emit.program import Program, harness, kernel_source, launcher
from kernrec.errors import UsageError
from kernrec.recommender import Objective, Query, Recommendation, Recommender, Request
from tests.helpers.nvcc import complaints, toolkit

QUERY = Query(Objective.LATENCY, top=1)
CODE = bytes(range(1, 14))  # no multiple of eight
ENTRY = {"matmul_triton": "matmul_triton_3"}

STAND_IN = """
#include <cstdio>
extern "C" {
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**, unsigned int,
                                cudaLibraryOption*, void**, unsigned int) {
    for (int i = 0; i < 16; ++i) std::printf("%d ", static_cast<const unsigned char*>(code)[i]);
    std::printf("\\n");
    *library = reinterpret_cast<cudaLibrary_t>(7);
    return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
    std::printf("%s of %ld\\n", name, reinterpret_cast<long>(library));
    *kernel = reinterpret_cast<cudaKernel_t>(9);
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int bytes) {
    std::printf("%ld may have %d\\n", reinterpret_cast<long>(kernel), bytes);
    return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t) {
    std::printf("%ld<<<%u, %u, %zu>>>", reinterpret_cast<long>(kernel), grid.x, block.x, shared);
    for (int i = 0; i < 3; ++i) std::printf(" %ld", *static_cast<long*>(arguments[i]));
    for (int i = 3; i < 9; ++i) std::printf(" %d", *static_cast<int*>(arguments[i]));
    for (int i = 9; i < 11; ++i) std::printf(" %ld", *static_cast<long*>(arguments[i]));
    std::printf("\\n");
    return cudaSuccess;
}
}
int main() {
    void* const tensors[] = {reinterpret_cast<void*>(1), reinterpret_cast<void*>(2), reinterpret_cast<void*>(3)};
    return launch(tensors, nullptr, nullptr) || launch(tensors, nullptr, nullptr);
}
"""
"""A CUDA runtime that prints what it is asked for."""


def answer() -> Recommendation:
    """About the library's product in Triton, whose profiles ship."""
    return Recommender([]).answer(Request("a100", None, "matmul_triton", "m=40,n=512,k=64", "f16", "nn", QUERY))


def test_a_program_loads_the_code_once_and_launches_it_as_triton_does(tmp_path: Path) -> None:
    best = answer().best
    compiled = Compiled("", CODE, {"matmul_triton": Resources(40, 0, 0, 0, 61440)}, "triton 3.9.0", "")
    written = Program(best, compiled)
    loading = harness("loaded_kernel.h").replace("#pragma once", "")
    parts = ["#include <cstdint>", loading, kernel_source(written, ENTRY)]
    source = tmp_path / "program.cpp"
    source.write_text("\n".join([*parts, launcher(written, "static cudaError_t launch", ENTRY), STAND_IN]))
    include = toolkit() / "include"
    if not (include / "cuda_runtime.h").is_file():
        pytest.skip("the toolkit has no headers beside nvcc")
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", f"-I{include}"]
    subprocess.run([*command, str(source), "-o", str(tmp_path / "program")], check=True)
    printed = subprocess.run([str(tmp_path / "program")], capture_output=True, text=True, check=True).stdout
    (bound,) = best.launches
    sizes = "1 2 3 40 512 64 64 512 512 0 0"  # tensors, m, n, k, rows of a, b and c, no scratch memory
    launched = f"9<<<{bound.grid[0]}, {32 * best.config['num_warps']}, 61440>>> {sizes}"
    assert printed.splitlines() == [
        " ".join(map(str, [*CODE, 0, 0, 0])) + " ",
        "matmul_triton of 7",
        *["9 may have 61440", launched] * 2,
    ]


def test_shared_memory_is_given_at_the_launch_again() -> None:
    fixed = ".visible .entry f()\n{\n\t.shared .align 16 .b8 global_smem[98304];\n}\n.shared .align 4 .b8 own[64];"
    assert with_dynamic_shared(fixed) == fixed.replace(".shared .align 16", ".extern .shared .align 16").replace(
        "[98304]", "[]"
    )


def test_no_other_kernel_takes_the_place_of_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Recommender([]).answer(Request("a100", None, "matmul_mma", "m=40,n=512,k=64", "f16", "nn", QUERY))
    recommended = replace(own, choices=(*answer().choices, *own.choices))
    assert recommended.best.kernel.name == "matmul_triton"
    with pytest.raises(UsageError, match="is in Triton: --emit triton writes it, --cuda-only chooses"):
        emit([recommended], "cuda")
    with pytest.raises(UsageError, match="is of matmul_mma, which is in CUDA C"):
        emit([own], "triton")
    ((name, content),) = emit([recommended], "triton").items()
    assert name == "matmul_triton.py"
    compile(content, name, "exec")
    monkeypatch.setattr("kernrec.compile.triton_version.has_triton", lambda: False)
    for form in ("host", "ptx", "cmake"):
        with pytest.raises(UsageError, match="Triton, which compiles it, is not installed"):
            emit([recommended], form)


@pytest.mark.slow
@pytest.mark.skipif(not has_triton(), reason="needs the extra `triton`")
def test_programs_with_tritons_code_compile_and_its_ptx_assembles(tmp_path: Path) -> None:
    recommended = answer()
    for form, name in (("host", "matmul_triton.cu"), ("cmake", "variant_0.cu")):
        for file, content in emit([recommended], form).items():
            (tmp_path / file).write_bytes(content)
        assert complaints(tmp_path / name, [80]) == ""
    (cubin,) = emit([recommended], "cubin").values()
    assert cubin[:4] == b"\x7fELF"
    (ptx,) = emit([recommended], "ptx").values()
    assert b".extern .shared .align 16 .b8 global_smem[]" in ptx
    (tmp_path / "k.ptx").write_bytes(ptx)
    import triton

    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
    subprocess.run([assembler, "-arch=sm_80", tmp_path / "k.ptx", "-o", tmp_path / "k.cubin"], check=True)
