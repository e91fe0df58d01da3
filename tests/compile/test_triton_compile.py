"""Test that Triton functions compile unchanged, and that kernrec stops early if the GPU cannot run a config."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernrec.compile.compiled import CompileError, CompileJob
from kernrec.profile.kernel_code import compile_job_for
from kernrec.profile.triton_call import kernel_of_triton
from kernrec.profile.triton_call_file import TritonCall
from tests.helpers.paths import ROOT
from tests.helpers.triton_kernels import configs_of

pytest.importorskip("triton", reason="needs the extra `triton`")

from kernrec.compile.triton_cache import ResultFiles
from kernrec.compile.triton_compile import _set_up, compile_triton
from kernrec.compile.triton_load import load_module

KERNELS = ROOT / "tests" / "triton" / "tuned_kernels.py"


def job_of(function: str, arguments: dict[str, Any], config: dict[str, int], sm: int) -> CompileJob:
    kernel, _ = kernel_of_triton(TritonCall(KERNELS, function, arguments, [1], [config]))
    return compile_job_for(kernel, configs_of(kernel)[0], kernel.definition.problem(), sm, KERNELS.parent)


@pytest.mark.every(3)
def test_assembler_is_skipped_if_shared_memory_does_not_suffice(monkeypatch):
    from triton.backends.nvidia import compiler

    matrix = {"dtype": "f16", "shape": [4, 128, 128]}
    job = job_of("square", {"a": matrix, "b": matrix, "c": matrix}, {"BLOCK": 128, "num_stages": 3}, 86)
    ran = []
    assemble = compiler.CUDABackend.make_cubin

    def make_cubin(*arguments: Any) -> Any:
        ran.append(1)
        return assemble(*arguments)

    monkeypatch.setattr(compiler.CUDABackend, "make_cubin", make_cubin)
    with pytest.raises(CompileError, match=r"needs \d+ bytes of shared memory a block; sm_86 has 101376"):
        compile_triton(job)
    assert not ran
    compile_triton(replace(job, sm=80))
    assert ran


def test_assembler_gets_the_tunables_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=2")
    with _set_up(str(tmp_path)):
        assert os.environ["GLIBC_TUNABLES"].startswith("glibc.malloc.arena_max=2:glibc.malloc.")


def test_triton_stores_intermediate_code_only_in_dumps(monkeypatch, tmp_path):
    rows = {"dtype": "f32", "shape": [64]}
    job = job_of("add_rows", {"x": rows, "y": rows, "n": 64, "WIDTH": 1}, {"BLOCK": 64}, 80)
    monkeypatch.setenv("TRITON_KERNEL_DUMP", "1")
    monkeypatch.setenv("TRITON_DUMP_DIR", str(tmp_path / "dump"))
    stored: dict[str, bytes] = {}
    put = ResultFiles.put

    def recorded(files: ResultFiles, data: Any, filename: str, binary: bool = True) -> str:
        path = put(files, data, filename, binary)
        stored[path] = Path(path).read_bytes()
        return path

    monkeypatch.setattr(ResultFiles, "put", recorded)
    compiled = compile_triton(job)
    for is_dump in (False, True):
        files = {Path(p).suffix: content for p, content in stored.items() if p.startswith(str(tmp_path)) == is_dump}
        assert files[".cubin"] == compiled.cubin
        assert (b"tt.load" in files[".ttir"]) == is_dump
    with _set_up(str(tmp_path)):
        module = ResultFiles("driver").put(b"ELF", "cuda_utils.so")
    assert Path(module).read_bytes() == b"ELF", "Triton compiles modules of its driver if a source uses the GPU"


def test_compile_error_names_the_line_in_its_function():
    arguments = {"x": {"dtype": "f32", "shape": [64]}, "y": {"dtype": "f32", "shape": [64]}, "n": 64, "WIDTH": 1}
    lines = KERNELS.read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if text.startswith("def add_rows")) + 2
    with pytest.raises(
        CompileError, match=rf"tuned_kernels\.py:{line}: arange's range must be a power of 2 \(in `place"
    ):
        compile_triton(job_of("add_rows", arguments, {"BLOCK": 48}, 80))


def test_module_of_a_package_imports_its_neighbors(tmp_path):
    folder = tmp_path / "outer_of_test" / "inner"
    folder.mkdir(parents=True)
    for place in (folder.parent, folder):
        (place / "__init__.py").touch()
    (folder / "beside.py").write_text("VALUE = 3\n")
    source = "from .beside import VALUE\nfrom outer_of_test.inner import beside\n"
    assert load_module(source, "kernels.py", folder).VALUE == 3
