"""Test that a kernel's code is divided at waits between warps, and where it is long."""

from kernrec.ptx import parse
from kernrec.ptx.analysis.lowering import lowered
from kernrec.ptx.analysis.stretches import MOST, issued_by_stretch

HEAD = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 x)
{
    .reg .pred %p<3>; .reg .b32 %r<8>; .reg .f32 %f<8>; .reg .f64 %fd<4>; .reg .b64 %rd<8>;
    .shared .align 4 .b8 tile[256];
    ld.param.u64 %rd1, [x]; mov.f32 %f2, 0f3F800000; mov.f64 %fd1, 0d3FF0000000000000;
"""
FLOATS, DOUBLES = "fma.rn.f32 %f2, %f2, %f2, %f2;", "fma.rn.f64 %fd1, %fd1, %fd1, %fd1;"
STORE = "st.global.f32 [%rd1], %f2; st.global.f64 [%rd1+8], %fd1;"


def stretches(body: str, warps: int = 1) -> list[dict[str, float]]:
    """Return the issued instructions of each stretch of a kernel whose basic blocks run in `warps` warps."""
    function = parse(f"{HEAD}{body} {STORE} ret;\n}}\n").functions["k"]
    ran = {block.index: warps for block in function.blocks}
    return issued_by_stretch(function, lowered(function), ran)


def test_barrier_ends_a_stretch():
    first, second = stretches(f"{FLOATS} bar.sync 0; {DOUBLES}")
    assert (first["fma32"], second["f64"]) == (1, 1)
    assert "f64" not in first
    assert "fma32" not in second


def test_stretches_contain_all_instructions_of_all_warps():
    for length in (10, 100, 3000):
        parts = stretches(FLOATS * length + DOUBLES * 7, warps=3)
        assert sum(part.get("fma32", 0) for part in parts) == 3 * length
        assert round(sum(part.get("f64", 0) for part in parts)) == 3 * 7
        assert len(parts) <= MOST + 2
    assert len(stretches(f"{FLOATS} bar.sync 0;" * 200)) <= 2 * MOST
