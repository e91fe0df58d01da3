"""Test compiling with NVRTC: PTX, machine code, resources, errors, and the cache of compiled code."""

import os
import subprocess
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.compile import CompileCache, Compiled, CompileError, Resources, assemble, compile_source
from kernrec.compile.assemble import ESTIMATED, check_target
from kernrec.compile.compiled import assembler, first_error, parse_resources
from kernrec.errors import UsageError
from kernrec.ptx import parse
from tests.helpers.paths import beside


def test_compiler_log_reader_ignores_resources_of_called_functions():
    assert parse_resources(beside(__file__, "calls.log")) == {
        "k2": Resources(38, spill_store_bytes=8, spill_load_bytes=12, stack_bytes=400, static_smem_bytes=2048),
        "_Z2k3IfEvPT_": Resources(8, 0, 0, 0, 0),
    }
    assert parse_resources("") == {}


@pytest.mark.parametrize(("log", "line"), [
    (
        'k.cu(3): warning #177-D: unused\n  x\n\nk.cu(7): error: identifier "b" is undefined\nk.cu(9): error: z',
        'k.cu:7: identifier "b" is undefined',
    ),
    ("k.cu(1): catastrophic error: could not open source file", "k.cu:1: could not open source file"),
    ("k.cu(4): error #20: bad", "k.cu:4: bad"),
    (
        "ptxas info    : 0 bytes gmem\nptxas error   : Entry function 'k' uses too much shared data\n",
        "k.cu: Entry function 'k' uses too much shared data",
    ),
    ("\n", "k.cu: the compiler failed without a message"),
])  # fmt: skip
def test_first_error_is_one_line_with_its_source_and_line(log, line):
    assert first_error(log, "k.cu") == line


RESULT = Compiled(
    ".version 9.0\n// é", b"\x7fELF\n\0\xff" * 50, {"k": Resources(32, 0, 4, 8, 1024)}, "nvrtc 13.5", "log\n"
)


def stored(cache: CompileCache):
    return [path for path in cache.folder.rglob("*") if path.is_file()]


def test_cache_returns_the_stored_value(cache):
    assert cache.get("ab12") is None
    cache.put("ab12", RESULT)
    assert cache.get("ab12") == RESULT
    assert cache.get("ab13") is None
    cache.put("ab12", RESULT)
    assert [path.name for path in stored(cache)] == ["ab12.z"]


_CODE = b'{"resources": {}, "ptx": "", "compiler": "", "log": "", "code": {"k": %s}}\n0123456789012345'


@pytest.mark.parametrize("damage", [
    b"", b"garbage", None, zlib.compress(b'{"resources": []}'), zlib.compress(b"[" * 100_000),
    *(zlib.compress(_CODE % size) for size in (b"[16, 4, [], [], 8]", b"[12, 3, [], [], 8]", b"[0, 0, [0.5], [], 8]")),
])  # fmt: skip
def test_damaged_entry_is_treated_as_missing_and_replaced(cache, damage):
    cache.put("ab12", RESULT)
    (file,) = stored(cache)
    file.write_bytes(file.read_bytes()[:-3] if damage is None else damage)
    assert cache.get("ab12") is None
    cache.put("ab12", RESULT)
    assert cache.get("ab12") == RESULT


def test_cache_stores_compile_errors_but_not_crashes_or_missing_headers(nvrtc, cache):
    for source in ("void f( {", '#include "nowhere.h"'):
        with pytest.raises(CompileError) as first:
            compile_source(source, 80, cache=cache)
    assert "nowhere.h" in str(first.value)
    (file,) = stored(cache)
    again = cache.get(file.stem)
    assert isinstance(again, CompileError)
    assert str(again).startswith("kernel.cu:1: ")
    assert not CompileError("slow", reason="timeout").lasting


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser writes anywhere")
def test_read_only_folder_is_still_read(cache):
    cache.put("ab12", RESULT)
    cache.folder.chmod(0o500)
    try:
        cache.put("cd34", RESULT)
        assert cache.get("ab12") == RESULT
        assert cache.get("cd34") is None
    finally:
        cache.folder.chmod(0o700)


@given(st.lists(st.text()), st.lists(st.text()))
def test_cache_keys_are_equal_only_for_equal_inputs(first, second):
    assert (CompileCache.key(*first) == CompileCache.key(*second)) == (first == second)


SUM = beside(__file__, "sum.ptx")


def test_registers_are_marked_as_estimated_without_an_assembler(monkeypatch):
    monkeypatch.setattr(assemble, "assembler", lambda: None)
    compiled = assemble.assemble(SUM, 86, "sum.ptx")
    assert compiled.compiler == ESTIMATED
    resources = compiled.resources["sum"]
    assert resources.static_smem_bytes == 512
    assert 6 <= resources.registers <= 10  # two registers for an address, four for values
    if assembler() is not None:
        monkeypatch.undo()
        assembled = assemble.assemble(SUM, 86, "sum.ptx")
        assert assembled.cubin[:4] == b"\x7fELF"
        real = assembled.resources["sum"]
        assert real.static_smem_bytes == 512
        assert resources.registers <= 2 * real.registers


@pytest.mark.skipif(assembler() is None, reason="there is no ptxas here")
def test_ptx_for_a_target_with_a_suffix_is_assembled():
    target = SUM.replace(".target sm_80", ".target sm_90a")
    assert target != SUM
    assert assemble.assemble(target, 90, "sum.ptx").resources.keys() == {"sum"}


def test_assembler_error_is_quoted_with_its_line():
    if assembler() is None:
        pytest.skip("there is no ptxas here")
    wrong = SUM.replace("add.f32 %f1, %f1, %f2;", "add.often.f32 %f1, %f1, %f2;")
    line = wrong[: wrong.index("add.often")].count("\n") + 1
    with pytest.raises(CompileError, match=rf"^sum\.ptx:{line}: "):
        assemble.assemble(wrong, 86, "sum.ptx")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [(".version 8.0", ".version 99.9", "newer than"), ("sm_80", "sm_120", "for sm_120, which the GPU's sm_86 cannot")],
)
def test_ptx_of_a_future_version_or_another_gpu_is_refused(old, new, says):
    with pytest.raises(UsageError, match=says):
        check_target(parse(SUM.replace(old, new)), 86)


@pytest.mark.parametrize("sm", [75, 80, 86, 89, 90, 100, 120])
def test_one_call_returns_ptx_machine_code_and_resources(nvrtc, cache, sm, saxpy):
    compiled = compile_source(saxpy, sm, {"SCALE": 2}, cache=cache)
    assert f".target sm_{sm}" in compiled.ptx
    assert compiled.ptx.endswith("}\n") or compiled.ptx.rstrip().endswith("}")
    assert compiled.cubin.startswith(b"\x7fELF")
    assert compiled.compiler == nvrtc
    (resources,) = compiled.resources.values()
    assert set(compiled.resources) == {"saxpy"}
    assert 4 <= resources.registers <= 40
    assert (resources.spill_store_bytes, resources.stack_bytes, resources.static_smem_bytes) == (0, 0, 0)


def test_static_shared_memory_and_spills_are_reported(nvrtc):
    source = beside(__file__, "spills.cu")
    resources = compile_source(source, 80, cache=CompileCache(None)).resources["k"]
    assert resources.static_smem_bytes == 2048
    assert resources.registers <= 32
    assert resources.spill_store_bytes > 0
    assert resources.spill_load_bytes > 0


def test_unsupported_architecture_error_names_the_compiler_and_its_architectures(nvrtc, cache, saxpy):
    with pytest.raises(CompileError) as caught:
        compile_source(saxpy, 30, cache=cache)
    assert str(caught.value).startswith(f"{nvrtc} cannot compile for sm_30; it supports sm_")
    assert "sm_89" in str(caught.value)


def test_omitting_unused_cuda_declarations_keeps_the_compiled_code(nvrtc, cache, saxpy):
    with_all = saxpy + "// of which cudaError_t is one\n"
    plain, whole = (compile_source(source, 86, {"SCALE": 2}, cache=cache) for source in (saxpy, with_all))
    assert (plain.ptx, plain.cubin, plain.resources) == (whole.ptx, whole.cubin, whole.resources)


@pytest.mark.parametrize("body", [
    "a[0] = tex2D<float>(image, 0.5f, 0.5f);", "a[0] = sizeof(DIM(Extent));",
    "#ifdef __CUDACC_RTC_MINIMAL__\na[0] = none;\n#endif\n",
])  # fmt: skip
def test_source_receives_only_the_declarations_it_needs(nvrtc, cache, body):
    source = f'extern "C" __global__ void k(float* a, unsigned long long image) {{\n{body}\n}}'
    defines = {"DIM(name)": "cuda##name"}  # the macro forms a name that is not in the source
    compiled = compile_source(source, 86, defines, cache=cache)
    assert ("tex.2d" in compiled.ptx) == ("tex2D" in body)


def test_missing_cupy_error_names_the_extra():
    script = (
        "import sys; sys.modules['cupy'] = sys.modules['nvidia'] = None\n"
        "from kernrec.compile import NoCompilerError, compile_many, compile_source, CompileJob\n"
        "for attempt in (lambda: compile_source('', 80), lambda: next(compile_many([CompileJob('', 80)]))):\n"
        "    try: attempt()\n"
        "    except NoCompilerError as error: print(error)\n"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    lines = output.splitlines()
    assert len(lines) == 2
    assert all("pip install '.[cuda13]'" in line for line in lines)
