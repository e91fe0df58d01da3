"""Test that kernrec finds nvcc, and that nvcc compiles programs without reading other files."""

import stat
import sys
import time

import pytest

from kernrec.compile import nvcc
from kernrec.compile.compiled import CompileError, CompileJob, FileRefusedError, NoCompilerError

PROGRAM = """#include <cstdio>
#include <vector>
#include <cuda_runtime.h>
template <class T> __global__ void scale(int n, T a, T *x)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= a;
}
int main() { std::vector<float> h(4); scale<float><<<4, 128>>>(512, 2.f, h.data()); std::printf("done\\n"); }
"""


@pytest.mark.parametrize("variable", ["PATH", "CUDA_HOME", "CUDA_PATH"])
def test_nvcc_is_found_in_each_location(variable, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    for name in ("nvcc", "g++"):
        program = tmp_path / "bin" / name
        program.write_text("#!/bin/sh\n", encoding="utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    other = tmp_path / "other"
    other.mkdir()
    (other / "g++").symlink_to(tmp_path / "bin" / "g++")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(other))
    monkeypatch.setenv(variable, str(tmp_path / "bin" if variable == "PATH" else tmp_path))
    assert nvcc.find_nvcc.__wrapped__() == tmp_path / "bin" / "nvcc"


def test_missing_nvcc_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: None)
    with pytest.raises(NoCompilerError, match=r"pip install '\.\[cuda-programs\]'"):
        nvcc.compile_program(CompileJob(PROGRAM, 80))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no process groups to kill")
def test_timeout_stops_the_compilers_that_nvcc_started(tmp_path, monkeypatch):
    monkeypatch.setattr(nvcc, "_LIMIT_S", 0.2)
    with pytest.raises(CompileError, match=r"took longer than 0\.2 s"):
        nvcc._run(["/bin/sh", "-c", f"(sleep 0.6; echo > '{tmp_path}/late') & wait"], tmp_path, ())
    time.sleep(0.8)
    assert not (tmp_path / "late").exists()


def test_program_compiles_unmodified():
    if nvcc.find_nvcc() is None:
        pytest.skip("there is no nvcc")
    compiled = nvcc.compile_program(CompileJob(PROGRAM, 80, name="scale.cu"))
    assert "\t.loc\t1 7 " in compiled.ptx
    assert '.file\t1 "scale.cu"' in compiled.ptx
    assert [name for name in compiled.resources if "scale" in name]


@pytest.mark.parametrize("include", ['"/etc/passwd"', "</etc/passwd>", '"../secret.h"'])
def test_program_cannot_read_other_files(include):
    if nvcc.find_nvcc() is None:
        pytest.skip("there is no nvcc")
    with pytest.raises(FileRefusedError, match="no other file is read"):
        nvcc.compile_program(CompileJob(f"#include {include}\n{PROGRAM}", 80))


def test_program_error_states_its_line():
    if nvcc.find_nvcc() is None:
        pytest.skip("there is no nvcc")
    with pytest.raises(CompileError, match=r"^scale\.cu:7: "):
        nvcc.compile_program(CompileJob(PROGRAM.replace("*= a", "*= b"), 80, name="scale.cu"))
