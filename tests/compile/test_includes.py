"""Test that a source can include CUDA headers by name, and no other file in any spelling."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.compile.compiled import CompileError, CompileJob, NoCompilerError
from kernrec.compile.includes import check_includes
from kernrec.errors import UsageError
from kernrec.util.process import run_confined

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
def test_headers_by_name_are_accepted(source):
    check_includes(source, "kernel.cu")


@given(st.sampled_from(["", " ", "\t", "/* x */", "\\\n", "a;\n"]), st.sampled_from(["", " ", "/**/", "\\\n"]))
def test_text_around_includes_does_not_hide_them(before, spaces):
    with pytest.raises(UsageError):
        check_includes(f'{before}#{spaces}include{spaces}"/etc/passwd"', "kernel.cu")


@pytest.mark.parametrize("piece", ["#/*", "#" + " " * 50, "/**/#", "#/**/", "%:??/\n"])
def test_thousands_of_directives_are_scanned_in_linear_time(piece):
    check_includes(piece * (200_000 // len(piece)), "kernel.cu")


def test_compiler_reads_only_cuda_headers(tmp_path):
    """Without the include check, Landlock must still keep the compiling thread from opening the file."""
    nvrtc = pytest.importorskip("kernrec.compile.nvrtc")
    try:
        sms = nvrtc.supported_sms()
    except NoCompilerError as error:
        pytest.skip(str(error))
    (tmp_path / "secret.h").write_text("the password is 1234")
    source = f'#include "{tmp_path}/secret.h"\n__global__ void f() {{}}\n'
    job = CompileJob(source, sms[0], {}, "kernel.cu")
    with pytest.raises(CompileError, match="no other file is read"):
        nvrtc.compile_alone(job)
    with pytest.raises(CompileError) as past_the_check:
        run_confined(lambda: nvrtc._compiled_here(job, []), nvrtc._readable())
    has_landlock = run_confined(lambda: not readable(tmp_path / "secret.h"), ())
    if not has_landlock:
        pytest.skip("there is no Landlock on this machine")
    assert "password" not in past_the_check.value.log + str(past_the_check.value)
    assert "secret.h" in str(past_the_check.value)
    assert (tmp_path / "secret.h").read_text()  # the calling thread is not confined


def test_cuda_headers_compile_in_the_confined_thread():
    nvrtc = pytest.importorskip("kernrec.compile.nvrtc")
    try:
        sms = nvrtc.supported_sms()
    except NoCompilerError as error:
        pytest.skip(str(error))
    if not nvrtc.header_folders():
        pytest.skip("no headers of CUDA are installed")
    source = '#include <cuda_fp16.h>\n#include "mma.h"\nextern "C" __global__ void f(half *x) { *x = *x + *x; }\n'
    assert ".entry f(" in nvrtc.compile_alone(CompileJob(source, sms[0], {}, "kernel.cu")).ptx


def readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True
