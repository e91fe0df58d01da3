"""Test that tensor core kernels give the recorded bits and counts."""

import numpy as np
import pytest

from kernrec.ptx import EmulationError, KernelLaunch, emulate, parse
from tests.engine.expected import check, digest, one_nan

_HEAD = """.version 8.8
.target sm_120a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y, .param .u64 n)
{
.reg .pred %p<9>; .reg .b32 %r<40>; .reg .b64 %a<9>; .reg .b64 %d<40>; .shared .align 128 .b8 tile[8192];
mov.u32 %r0, %tid.x; ld.param.u64 %a0, [x]; ld.param.u64 %a1, [y]; ld.param.u64 %a4, [n]; cvt.u32.u64 %r39, %a4;
mul.wide.u32 %a2, %r0, 64; add.u64 %a2, %a0, %a2; mul.wide.u32 %a3, %r0, 64; add.u64 %a3, %a1, %a3;
"""


def _listed(first: int, count: int, letter: str = "r") -> str:
    return "{" + ", ".join(f"%{letter}{i}" for i in range(first, first + count)) + "}"


def _mma(form: str, a: int, b: int, c: int, d: int, more: str = "", letter: str = "r") -> str:
    """Return PTX in which each thread loads the operands of an `mma`, runs the `mma` and stores the result."""
    size = 8 if letter == "d" else 4
    loads = [f"ld.global.b{8 * size} %{letter}{1 + i}, [%a2+{size * i % 64}];" for i in range(a + b + c)]
    first_d = 1 + a + b + c
    operands = [
        _listed(first_d, d, letter), _listed(1, a, letter), _listed(1 + a, b, letter), _listed(1 + a + b, c, letter),
    ]  # fmt: skip
    stores = [f"st.global.b{8 * size} [%a3+{size * i}], %{letter}{first_d + i};" for i in range(d)]
    return "\n".join([*loads, f"mma.sync.aligned.{form} {', '.join(operands)}{more};", *stores])


def _wmma(shape: str, kind: str, registers: int, layout: str, space: str) -> str:
    """Return PTX that loads an accumulator and stores it by columns; shared memory is read with a 32-bit address."""
    registers_listed = _listed(1, registers)
    fill = "mov.u32 %r30, tile; mad.lo.u32 %r31, %r0, 32, %r30;" + "".join(
        f"ld.global.b32 %r32, [%a2+{4 * i}]; st.shared.b32 [%r31+{4 * i}], %r32;" for i in range(8)
    )
    source = "%r30" if space == "shared" else "%a0"
    load = f"wmma.load.c.sync.aligned.{layout}.{shape}.{space}.{kind} {registers_listed}, [{source}], %r39;"
    store = f"wmma.store.d.sync.aligned.col.{shape}.global.{kind} [%a1], {registers_listed}, 32;"
    return f"{fill} bar.sync 0; {load} {store}"


_PROGRAMS = {
    "mma f16": _mma("m16n8k16.row.col.f32.f16.f16.f32", 4, 2, 4, 4),
    "mma f16 in f16": _mma("m16n8k8.row.col.f16.f16.f16.f16", 2, 1, 2, 2),
    "mma s8": _mma("m16n8k32.row.col.satfinite.s32.s8.u8.s32", 4, 2, 4, 4),
    "mma b1": _mma("m16n8k256.row.col.s32.b1.b1.s32.xor.popc", 4, 2, 4, 4),
    "mma f64": _mma("m8n8k4.row.col.f64.f64.f64.f64", 1, 1, 2, 2, letter="d"),
    "mma e4m3": _mma("m16n8k32.row.col.f32.e4m3.e5m2.f32", 4, 2, 4, 4),
    "mma f8f6f4": _mma("m16n8k32.row.col.kind::f8f6f4.f32.e3m2.e2m1.f32", 4, 2, 4, 4),
    "mma mxf4nvf4": _mma(
        "m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3",
        4, 2, 4, 4, ", %r1, {0, 1}, %r2, {0, 3}",
    ),
    "mma of half a warp": "setp.lt.u32 %p1, %r0, 16; @%p1 bra A; bra B; A:\n"
    + _mma("m16n8k8.row.col.f16.f16.f16.f16", 2, 1, 2, 2)
    + "\nB:",
    **{
        f"wmma {kind} {layout} {space}": _wmma("m16n16k16", kind, registers, layout, space)
        for kind, registers in (("f32", 8), ("f16", 4), ("s32", 8))
        for layout in ("row", "col")
        for space in ("global", "shared")
    },
    "wmma outside": _wmma("m16n16k16", "f32", 8, "row", "global").replace("[%a0]", "[%a0+4080]"),
    "wmma misaligned": _wmma("m16n16k16", "f32", 8, "row", "global").replace("[%a0]", "[%a0+2]"),
}  # fmt: skip


@pytest.mark.parametrize("name", _PROGRAMS)
def test_matmul_has_the_recorded_bits(name):
    module = parse(_HEAD + _PROGRAMS[name] + "\nret;\n}\n")
    values = np.random.default_rng(13).standard_normal(64 * 32).astype(np.float16)
    buffers = {"x": values, "y": np.zeros(64 * 64, np.uint8), "n": np.zeros(4, np.uint8)}
    try:
        counts = emulate(module, KernelLaunch("k", (1,), (64,), ["x", "y", 16], buffers))
    except EmulationError as error:
        check(name, str(error))
        return
    kind = {"mma f64": "f64", "mma e4m3": "f32", "mma f8f6f4": "f32"}.get(name, "b32")
    check(name, digest(counts, one_nan(kind, buffers["y"])))
