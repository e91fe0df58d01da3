"""Test that kernrec finds nvcc, and that nvcc compiles programs without reading other files."""

import stat
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.compile import nvcc
from kernrec.compile import nvrtc as compiling
from kernrec.compile.compiled import CompileError, CompileJob, FileRefusedError, NoCompilerError
from kernrec.compile.nvcc import check_includes
from kernrec.errors import UsageError
from kernrec.util.process import run_confined
from tests.helpers.paths import beside

PROGRAM = beside(__file__, "nvcc.cu")


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
        nvcc._run(["/bin/sh", "-c", f"(sleep 0.6; echo > '{tmp_path}/late') & wait"], tmp_path)
    time.sleep(0.8)
    assert not (tmp_path / "late").exists()


needs_nvcc = pytest.mark.skipif(nvcc.find_nvcc() is None, reason="there is no nvcc")


@needs_nvcc
def test_program_compiles_unmodified():
    compiled = nvcc.compile_program(CompileJob(PROGRAM, 80, name="scale.cu"))
    assert "\t.loc\t1 7 " in compiled.ptx
    assert '.file\t1 "scale.cu"' in compiled.ptx
    assert [name for name in compiled.resources if "scale" in name]


@needs_nvcc
@pytest.mark.parametrize("include", ['"/etc/passwd"', "</etc/passwd>", '"../secret.h"'])
def test_program_cannot_read_other_files(include):
    with pytest.raises(FileRefusedError, match="no other file is read"):
        nvcc.compile_program(CompileJob(f"#include {include}\n{PROGRAM}", 80))


@needs_nvcc
def test_program_error_states_its_line():
    with pytest.raises(CompileError, match=r"^scale\.cu:7: "):
        nvcc.compile_program(CompileJob(PROGRAM.replace("*= a", "*= b"), 80, name="scale.cu"))


HOSTILE = (
    '#include "/etc/passwd"', "#include </etc/passwd>", "#include <../../etc/passwd>", '#include "helper.cuh"',
    "  #  include\t<cuda/../../../etc/passwd>", "#/* hidden */include </etc/passwd>",
    "#/* two\nlines */ include </etc/passwd>", "#in\\\nclude </etc/passwd>", "#in\\  \nclude </etc/passwd>",
    "#\\\r\ninclude </etc/passwd>", '%:include "/etc/passwd"', '??=include "/etc/passwd"',
    '#define F "/etc/passwd"\n#include F', "#include_next </etc/passwd>", '#import "/etc/passwd"',
    '#embed "/etc/passwd"', '#if __has_include("/etc/passwd")\n#endif', "#" + " " * 5000 + "include </etc/passwd>",
    "#" + "/**/" * 2000 + 'include "/proc/self/environ"', "#include" + " " * 5000 + "</usr/include/stdio.h>",
    "??=??/\ninclude </etc/passwd>", '#if __has_embed("/etc/passwd")\n#endif',
    "#define ASK __has_include\n#if ASK(</etc/passwd>)\n#endif", "#include <../secret>", "#include <./secret>",
    "#include <.netrc>", 'R"(/*)"\n#include "/etc/passwd"\n//*/', 'asm(".incbin \\"/etc/passwd\\"");',
    "#include <a>\n#include </etc/passwd>", "#i\\u006eclude </etc/passwd>",
    "#include </etc/passwd>\r#include <cuda_fp16.h>",
)  # fmt: skip


@pytest.mark.parametrize("source", HOSTILE)
def test_source_with_a_file_include_is_refused(source):
    with pytest.raises(UsageError, match=r"kernel\.cu: ") as refused:
        check_includes(source, "kernel.cu")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("source", [
    "#include <cuda_fp16.h>", "#  include <cooperative_groups/reduce.h> // sums",
    "#include <mma.h>\n#include <cuda/std/limits>\n#define N 4\n#pragma unroll\n__global__ void f() {}",
    "int include = 3; // a word", '#define UNROLL _Pragma("unroll")',
    "#if __has_include(<cuda_fp8.h>)\n#include <cuda_fp8.h>\n#endif", "#include/**/<cuda_fp16.h>/* halves */",
    ".version 8.0\n.target sm_80\n.visible .entry f() { ret; }",
])  # fmt: skip
def test_headers_included_by_name_are_accepted(source):
    check_includes(source, "kernel.cu")


@given(st.sampled_from(["", " ", "\t", "/* x */", "\\\n", "a;\n"]), st.sampled_from(["", " ", "/**/", "\\\n"]))
def test_comments_and_spaces_do_not_hide_an_include(before, spaces):
    with pytest.raises(UsageError):
        check_includes(f'{before}#{spaces}include{spaces}"/etc/passwd"', "kernel.cu")


@pytest.mark.parametrize("piece", ["#/*", "#" + " " * 50, "/**/#", "#/**/", "%:??/\n"])
def test_thousands_of_directives_are_scanned_in_linear_time(piece):
    check_includes(piece * (200_000 // len(piece)), "kernel.cu")


def test_compiler_reads_only_cuda_headers(nvrtc, tmp_path):
    """Without the include check, Landlock must still keep the compiling thread from opening the file."""
    (tmp_path / "secret.h").write_text("the password is 1234")
    source = f'#include "{tmp_path}/secret.h"\n__global__ void f() {{}}\n'
    job = CompileJob(source, 80, {}, "kernel.cu")
    with pytest.raises(CompileError, match="no other file is read"):
        compiling.compile_alone(job)
    with pytest.raises(CompileError) as past_the_check:
        run_confined(lambda: compiling._compiled_here(job, []), compiling._readable())
    has_landlock = run_confined(lambda: not readable(tmp_path / "secret.h"), ())
    if not has_landlock:
        pytest.skip("there is no Landlock on this machine")
    assert "password" not in past_the_check.value.log + str(past_the_check.value)
    assert "secret.h" in str(past_the_check.value)
    assert (tmp_path / "secret.h").read_text()  # the calling thread is not confined


def test_cuda_headers_compile_in_the_confined_thread(nvrtc):
    if not compiling.header_folders():
        pytest.skip("no headers of CUDA are installed")
    source = '#include <cuda_fp16.h>\n#include "mma.h"\nextern "C" __global__ void f(half *x) { *x = *x + *x; }\n'
    assert ".entry f(" in compiling.compile_alone(CompileJob(source, 80, {}, "kernel.cu")).ptx


def readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True
