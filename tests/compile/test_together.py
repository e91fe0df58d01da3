"""Test that configs compiled together get the same code as configs compiled separately."""

import re
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernrec.compile import CompileError, CompileJob, compile_many, compile_source, together
from kernrec.compile.compiled import Compiled
from kernrec.compile.machine_code import read_machine_code
from kernrec.compile.nvrtc import cached_result, compile_alone
from kernrec.compile.together import Together, can_be_together, compile_together, launched_only
from tests.helpers.depth import few_examples
from tests.helpers.paths import ROOT, beside

_COMMENT = re.compile(r"//[^\n]*|^\s*\.(?:loc|file)\b[^\n]*", re.MULTILINE)
_WORD = re.compile(r"[%$A-Za-z_][A-Za-z0-9_$]*")
_NAME = re.compile(r"%(?:r|rs|rd|f|fd|p)[0-9]+|\$L_\w+|\b(?:_Z[\w$]+|L__\w+|p|q|h|half|low|high|pair)\b")
"""Names that are normalized: registers, labels, mangled names, and registers of the library's inline assembly."""
_REGISTERS = re.compile(r"\.reg \.\w+ %\w+<[0-9]+>;")
_VARIABLE = re.compile(r"\.global \.align [0-9]+ \.\w+ (\w+)(?: = [^;{]*)?;")
_ORDERED = re.compile(r"(?:ld|st)\.(?:global|shared|local)|bar\.|bra|ret|cp\.async|mma|ldmatrix|shfl")


def form(ptx: str) -> list[tuple[str, ...]]:
    """Return each basic block's sorted instructions, without register names and unused variables. Then return the
    memory accesses, synchronization and branches in program order."""
    text = " ".join(_COMMENT.sub("", ptx).split())
    words = Counter(_WORD.findall(text))
    text = _VARIABLE.sub(lambda variable: variable[0] if words[variable[1]] > 1 else "", text)
    blocks: list[list[str]] = [[]]
    for statement in _REGISTERS.sub("", text).split(";"):
        statement = statement.strip("{} ")  # drop braces of functions and inline assembly
        if statement.startswith("$"):
            blocks.append([])
        blocks[-1].append("".join(_NAME.sub("%", statement).split()))
        if "bra" in statement:
            blocks.append([])
    return [(*sorted(block), *(text for text in block if _ORDERED.search(text))) for block in blocks]


SM = 86
TILES = beside(__file__, "tiles.cu")
CONFIGS = st.fixed_dictionaries(
    {"TILE": st.sampled_from([32, 64, 128]), "UNROLLED": st.integers(1, 4), "KEPT": st.integers(0, 1)}
)


def job(source: str, defines: dict[str, str | int]) -> CompileJob:
    return CompileJob(source, SM, defines, machine_code=False)


@pytest.mark.parametrize("declared", ['extern "C" __global__ void', "__global__ void"])
@settings(few_examples(4), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(configs=st.lists(CONFIGS, min_size=2, max_size=4))
def test_configs_compiled_together_have_unchanged_code(nvrtc, declared, configs):
    jobs = [job(TILES.replace("KERNEL", declared), config) for config in configs]
    assert all(map(can_be_together, jobs))
    alone = [compile_alone(each) for each in jobs]
    (kernel,) = alone[0].resources
    together = compile_together(jobs, kernel)
    assert together is not None
    extern = [".extern .shared" in code.ptx for code in alone]
    assert [code is None for code in together] == [any(extern) and not own for own in extern]
    for expected, code in zip(alone, together, strict=True):
        if code is None:
            continue
        assert form(code.ptx) == form(expected.ptx)
        assert code.ptx.splitlines()[:9] == expected.ptx.splitlines()[:9]
        assert not code.cubin
        if code.ptx == expected.ptx:  # NVRTC may number registers differently, which can change their count
            assert code.resources == expected.resources


def test_configs_compiled_together_have_the_machine_code_of_separate_ones(nvrtc):
    jobs = [
        job(TILES.replace("KERNEL", "__global__ void"), {"TILE": tile, "UNROLLED": 2, "KEPT": 1}) for tile in (32, 64)
    ]
    alone = [compile_alone(each) for each in jobs]
    (kernel,) = alone[0].resources
    for code, expected in zip(compile_together(jobs, kernel), alone, strict=True):
        assert code.code == read_machine_code(expected.cubin, SM)
        assert len(code.code[kernel].instructions) > 10


SAXPY = 'extern "C" __global__ void saxpy(float *x) { x[threadIdx.x] *= SCALE; }'


@pytest.mark.parametrize("before", [
    "__device__ float twice(TYPE x) { return 2 * x; }", "__constant__ float weights[4];",
    "template <typename T> T twice(T x) { return 2 * x; }", "struct Pair { float x, y; };", "typedef TYPE Value;",
    '#include "mine.h"', 'extern "C" __global__ void other() {}', "#pragma diag_suppress 177", "#undef SCALE",
])  # fmt: skip
def test_source_whose_definitions_would_conflict_is_compiled_separately(before):
    assert can_be_together(job(SAXPY, {"SCALE": 2}))
    assert not can_be_together(job(f"{before}\n{SAXPY}", {"SCALE": 2}))


def test_source_with_a_global_constant_is_compiled_separately(nvrtc, cache):
    jobs = [job(f"const int two = SCALE;\n{SAXPY}", {"SCALE": scale}) for scale in range(2, 6)]
    assert compile_together(jobs, "saxpy") is None
    results = dict(compile_many(jobs, processes=1, cache=cache))
    assert all(isinstance(results[each], Compiled) for each in jobs)


def test_compile_error_affects_only_its_config(nvrtc, cache):
    jobs = [job(f"#if SCALE == 5\n#error five\n#endif\n{SAXPY}", {"SCALE": scale}) for scale in range(12)]
    results = dict(compile_many(jobs, processes=1, cache=cache))
    assert len(results) == 12
    for each, result in results.items():
        assert isinstance(result, CompileError) == (each.defines["SCALE"] == 5)
        if isinstance(result, Compiled):
            assert form(result.ptx) == form(compile_alone(each).ptx)


def test_instructions_of_another_decoder_are_not_read_from_the_cache(nvrtc, cache, monkeypatch):
    jobs = [job(SAXPY, {"SCALE": scale}) for scale in range(3)]
    assert len([*Together(cache).results(jobs)]) == 3
    assert cached_result(jobs[2], cache).code
    monkeypatch.setattr("kernrec.compile.nvrtc.decoder_hash", lambda: "another")
    assert cached_result(jobs[2], cache) is None


def test_slow_source_is_compiled_one_config_at_a_time(nvrtc, cache, monkeypatch):
    monkeypatch.setattr(together, "_RUN_S", 1e-9)
    first, *rest = Together(cache).results([job(SAXPY, {"SCALE": scale}) for scale in range(3)])
    assert isinstance(first, Compiled)
    assert rest == [1]


@pytest.mark.every(4)
@pytest.mark.slow
def test_compile_timeout_affects_only_its_config(nvrtc, cache):
    body = "\n".join(f"x[{i} % 7] = x[{i * 13 % 1024}] * x[{i * 7 % 1000}];" for i in range(40_000))
    source = SAXPY.replace("{", f"{{\n#if SCALE == 5\n{body}\n#endif\n", 1)
    jobs = [job(source, {"SCALE": scale}) for scale in range(2, 10)]
    results = dict(compile_many(jobs, processes=1, timeout_s=4.0, cache=cache))
    assert len(results) == 8
    for each, result in results.items():
        assert isinstance(result, CompileError) == (each.defines["SCALE"] == 5)
        if isinstance(result, CompileError):
            assert result.reason == "timeout"


TEXTBOOK = ROOT / "datasets" / "kernels" / "textbook"
TWO = beside(__file__, "two.cu")


def kernels(source: str) -> list[str]:
    return re.findall(r"void (?:__launch_bounds__\(64\) )?(\w+)\(int\*", source)


@pytest.mark.parametrize("name", ["first", "second"])
def test_unlaunched_kernel_is_removed_without_moving_lines(name):
    reduced = launched_only(TWO, [name])
    assert kernels(reduced) == [name]
    lines = zip(TWO.splitlines(), reduced.splitlines(), strict=True)
    assert all(new in (old, "") for old, new in lines)


@pytest.mark.parametrize("changed", [
    TWO.replace("#define SIZE 4", "__device__ int shared_by_both(int a) { return a; }"),
    TWO.replace("    x[0]", "#if SIZE\n    x[0]").replace("/* } */", "/* } */\n#endif"),
    TWO.replace("#define SIZE 4", "int shared_by_both(int a) { return a; /* for each __global__ function */ }"),
    TWO.replace("#define SIZE 4", "#define SIZE 4\n#define first other"),
    TWO.replace("#define SIZE 4", "#define SIZE 4\n#define KERNEL __global__ void"),
    TWO.replace('extern "C" __global__ void first', "template <int N> __global__ void first"),
    TWO.replace("int* x) {", 'int* x);\nint unusual = R"(})"[0];'),
])  # fmt: skip
def test_source_with_an_unusual_launch_keeps_all_kernels(changed):
    assert changed != TWO
    assert launched_only(changed, ["second"]) == changed


@pytest.mark.parametrize(
    ("file", "name"), [("reduce", "scan_block"), ("neighbors", "box_blur"), ("histogram", "histogram_private")]
)
def test_removing_unlaunched_kernels_keeps_the_compiled_code(nvrtc, file, name):
    source = (TEXTBOOK / f"{file}.cu").read_text(encoding="utf-8")
    reduced = launched_only(source, [name])
    assert reduced.count("__global__") == 1
    defines = {"BLOCK": 64 if file != "neighbors" else 16, "BINS": 512}
    whole, alone = (compile_source(text, 86, defines) for text in (source, reduced))
    assert alone.resources == {name: whole.resources[name]}
    assert body(alone.ptx, name) == body(whole.ptx, name)


def body(ptx: str, name: str) -> str:
    start = ptx.index(f".entry {name}(")
    return re.sub(r"\$L__BB\d+_", "$L__BB_", ptx[start : ptx.index("\n}", start)])
