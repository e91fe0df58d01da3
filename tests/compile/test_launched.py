"""Test that unlaunched kernels are removed before compilation if the launched kernel's code does not depend on them."""

import re

import pytest

from kernrec.compile import compile_source
from kernrec.compile.launched import launched_only
from tests.helpers.paths import ROOT

TEXTBOOK = ROOT / "datasets" / "kernels" / "textbook"
TWO = """
// a comment with void first(int) { and a brace
#define SIZE 4
extern "C" __global__ void first(int* x) {
    x[0] = '}' + SIZE;  /* } */
}

extern "C" __global__ void __launch_bounds__(64) second(int* x)
{
    #pragma unroll
    for (int i = 0; i < SIZE; i++) { x[i] = i; }
}
"""


def kernels(source: str) -> list[str]:
    return re.findall(r"void (?:__launch_bounds__\(64\) )?(\w+)\(int\*", source)


@pytest.mark.parametrize("name", ["first", "second"])
def test_other_kernel_is_removed_and_line_numbers_stay(name):
    reduced = launched_only(TWO, [name])
    assert kernels(reduced) == [name]
    lines = zip(TWO.splitlines(), reduced.splitlines(), strict=True)
    assert all(new in (old, "") for old, new in lines)


@pytest.mark.parametrize("changed", [
    TWO.replace("#define SIZE 4", "__device__ int shared_by_both(int a) { return a; }"),
    TWO.replace("    x[0]", "#if SIZE\n    x[0]").replace("/* } */", "/* } */\n#endif"),
    TWO.replace("#define SIZE 4", "#define SIZE 4\n#define first other"),
    TWO.replace("#define SIZE 4", "#define SIZE 4\n#define KERNEL __global__ void"),
    TWO.replace('extern "C" __global__ void first', "template <int N> __global__ void first"),
    TWO.replace("int* x) {", 'int* x);\nint unusual = R"(})"[0];'),
    TWO.replace('extern "C" __global__ void first', "[[deprecated]] __global__ void first"),
])  # fmt: skip
def test_unusual_launch_stays_unchanged(changed):
    assert changed != TWO
    assert launched_only(changed, ["second"]) == changed


@pytest.mark.parametrize(
    ("file", "name"), [("reduce", "scan_block"), ("neighbors", "box_blur"), ("histogram", "histogram_private")]
)
def test_launched_kernel_compiles_to_the_same_code(nvrtc, file, name):
    source = (TEXTBOOK / f"{file}.cu").read_text(encoding="utf-8")
    reduced = launched_only(source, [name])
    assert reduced.count("__global__") == 1
    defines = {"BLOCK": 64 if file != "neighbors" else 16, "BINS": 512}
    whole, alone = (compile_source(text, 86, defines) for text in (source, reduced))
    assert alone.resources == {name: whole.resources[name]}
    assert body(alone.ptx, name) == body(whole.ptx, name)


def body(ptx: str, name: str) -> str:
    """Return the PTX of one kernel with labels that do not depend on the kernels before it."""
    start = ptx.index(f".entry {name}(")
    return re.sub(r"\$L__BB\d+_", "$L__BB_", ptx[start : ptx.index("\n}", start)])
