"""Test compiling with the real NVRTC."""

import subprocess
import sys

import pytest

from kernrec.compile import CompileCache, CompileError, compile_source
from tests.helpers.paths import beside


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


def test_omitted_declarations_do_not_change_the_code(nvrtc, cache, saxpy):
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
