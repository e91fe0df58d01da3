"""Test that neighboring shared-memory accesses are merged if alignment is known, with unchanged results."""

from dataclasses import replace

import numpy as np
import pytest

from kernrec.compile.compiled import assembler
from kernrec.profile.sample_profile import sampled_counts
from kernrec.ptx import KernelLaunch, emulate, parse
from kernrec.ptx.analysis.issue_cost import AGGREGATED
from kernrec.ptx.analysis.wide_access import with_warp_aggregation, with_wide_accesses
from tests.helpers.kernel_code import machine_code_of
from tests.helpers.paths import beside
from tests.helpers.ptx_text import module

SHARED = ".shared .align 4 .b8 tile[4096];"
BASE = "mov.u32 %r1, tile; mov.u32 %r2, %tid.x; "
BY_16 = BASE + "shl.b32 %r3, %r2, 4; add.s32 %r4, %r1, %r3;"
FOUR_LOADS = " ".join(f"ld.shared.f32 %f{i}, [%r4+{4 * i}];" for i in range(4))
FOUR_STORES = " ".join(f"st.shared.f32 [%r4+{4 * i}], %f{i};" for i in range(4))
SUM = "add.f32 %f4, %f0, %f1; add.f32 %f5, %f2, %f3; add.f32 %f4, %f4, %f5;"


def accesses(body: str) -> list[str]:
    made = with_wide_accesses(module(body, globals_=SHARED, verified=False), "k").functions["k"]
    return [ins.name for ins in made.instructions if "shared" in ins.modifiers]


def test_four_words_per_thread_become_one_access_of_16_bytes():
    assert accesses(BY_16 + FOUR_LOADS + SUM) == ["ld.shared.v4.b32"]
    assert accesses(BY_16 + FOUR_STORES) == ["st.shared.v4.b32"]


@pytest.mark.parametrize(("place", "elements"), [
    ("add.s32 %r4, %r4, 8;", 2), ("mul.lo.s32 %r4, %r2, 48; add.s32 %r4, %r4, %r1;", 4),
    ("mad.lo.s32 %r4, %r2, 24, %r1;", 2), ("and.b32 %r4, %r2, 48; add.s32 %r4, %r4, %r1;", 4),
    ("xor.b32 %r4, %r3, 40; add.s32 %r4, %r4, %r1;", 2),
])  # fmt: skip
def test_alignment_follows_from_the_address_computation(place, elements):
    start = BASE + "shl.b32 %r3, %r2, 4;" + ("add.s32 %r5, %r1, %r3;" + place.replace("%r4, %r4, 8", "%r4, %r5, 8"))
    assert accesses(start + FOUR_LOADS + SUM) == [f"ld.shared.v{elements}.b32"] * (4 // elements)


def test_accesses_are_not_combined_across_a_conflicting_one():
    first, second = "ld.shared.f32 %f0, [%r4];", "ld.shared.f32 %f1, [%r4+4];"
    assert accesses(BY_16 + first + "st.shared.f32 [%r1], %f9;" + second)[::2] == ["ld.shared.f32"] * 2
    assert accesses(BY_16 + first + "bar.sync 0;" + second) == ["ld.shared.f32"] * 2
    assert accesses(BY_16 + first + "add.f32 %f2, %f1, %f0;" + second) == ["ld.shared.f32"] * 2
    assert accesses(BY_16 + first + "add.s32 %r4, %r4, 64;" + second) == ["ld.shared.f32"] * 2
    store = "st.shared.f32 [%r4], %f0; ld.shared.f32 %f3, [%r1]; st.shared.f32 [%r4+4], %f1;"
    assert accesses(BY_16 + store) == ["st.shared.f32", "ld.shared.f32", "st.shared.f32"]


def test_kernel_computes_the_same_with_wide_accesses():
    body = (
        BY_16
        + "ld.param.u64 %rd0, [x]; cvt.rn.f32.u32 %f0, %r2; mul.wide.u32 %rd1, %r2, 4; add.u64 %rd0, %rd0, %rd1;"
        + "add.f32 %f1, %f0, 0f3F800000; add.f32 %f2, %f1, %f1; mul.f32 %f3, %f2, %f1;"
        + FOUR_STORES
        + "bar.sync 0; xor.b32 %r3, %r3, 16; add.s32 %r4, %r1, %r3;"
        + FOUR_LOADS
        + SUM
        + "st.global.f32 [%rd0], %f4;"
    )
    plain = module(body, "u64 x", SHARED)
    results, wavefronts = [], []
    for kernel in (plain, with_wide_accesses(plain, "k")):
        x = np.zeros(32, np.float32)
        counts = emulate(kernel, KernelLaunch("k", (1,), (32,), ("x",), {"x": x}))
        results.append(x)
        wavefronts.append((counts["issue.ld_shared"], counts["issue.st_shared"]))
    assert wavefronts == [(4, 4), (1, 1)]
    assert (results[0] == results[1]).all()
    assert results[0].any()


ONE, LANE, BLOCK = "[%rd1]", "[%rd3]", "[%rd5]"
BODIES = {
    "constant": (f"red.global.add.u32 {ONE}, 1;", True),
    "value per lane": (f"red.global.add.u32 {ONE}, %r2;", True),
    "address per block": (f"red.global.add.s32 {BLOCK}, %r2;", True),
    "address per lane": (f"red.global.add.u32 {LANE}, 1;", False),
    "old value is read": (f"atom.global.add.u32 %r3, {ONE}, %r2; st.global.u32 [%rd3+64], %r3;", True),
    "old value is not read": (f"atom.global.max.s32 %r3, {ONE}, %r2;", True),
    "old maximum is read": (f"atom.global.max.s32 %r3, {ONE}, %r2; st.global.u32 [%rd3+64], %r3;", False),
    "bits": (f"red.global.xor.b32 {ONE}, %r2;", True),
    "long constant": (f"red.global.add.u64 {ONE}, 1;", True),
    "long value per lane": (f"red.global.add.u64 {ONE}, %rd2;", False),
    "long maximum": (f"red.global.max.u64 {ONE}, %rd2;", False),
    "float": (f"red.global.add.f32 {ONE}, %f1;", False),
    "wrapping increment": (f"red.global.inc.u32 {ONE}, 100;", False),
    "exchange": (f"atom.global.exch.b32 %r3, {ONE}, %r2;", False),
    "address from memory": (
        "ld.global.u32 %r3, [%rd5]; mul.wide.u32 %rd6, %r3, 4; add.s64 %rd7, %rd1, %rd6; red.global.add.u32 [%rd7], 1;",
        True,
    ),
    "shared memory": ("mov.u32 %r3, tile; red.shared.add.u32 [%r3], %r2;", True),
}  # fmt: skip
"""Atomic operations after a condition that differs between threads, and whether the assembler combines them."""
KERNEL = beside(__file__, "wide_access.ptx")
PTX = ".version 8.0\n.target sm_75\n.address_size 64\n" + "".join(
    KERNEL.format(number=number, body=body) for number, (body, _) in enumerate(BODIES.values())
)


def test_atomics_on_one_address_are_marked_as_warp_aggregated():
    functions = parse(PTX).functions
    marked = [
        any(AGGREGATED in ins.modifiers for ins in with_warp_aggregation(functions[f"k{number}"]).instructions)
        for number in range(len(BODIES))
    ]
    assert dict(zip(BODIES, marked, strict=True)) == {name: combines for name, (_, combines) in BODIES.items()}


@pytest.mark.skipif(assembler() is None, reason="there is no ptxas here")
@pytest.mark.parametrize("sm", [75, 86, 90, 120])
def test_assembler_combines_the_same_operations_as_kernrec(sm):
    combines = {
        name: any(ins.opcode in ("VOTE", "VOTEU") for ins in machine_code_of(PTX, sm)[f"k{number}"].instructions)
        for number, name in enumerate(BODIES)
    }
    assert combines == {name: expected for name, (_, expected) in BODIES.items()}


@pytest.mark.parametrize(("name", "turns"), [("constant", 4), ("value per lane", 4), ("address per block", 4),
                                             ("float", 96)])  # fmt: skip
def test_warp_aggregated_atomic_is_executed_once_per_warp(name, turns):
    """A block of four warps has 96 active threads."""
    entry = f"k{[*BODIES].index(name)}"
    values = np.arange(128, dtype=np.uint32) % 4
    launch = KernelLaunch(entry, (8, 1, 1), (128, 1, 1), ("x", "y"), {"x": np.zeros(256, np.uint32), "y": values})
    counts = sampled_counts(parse(PTX), launch)
    assert counts["global.x.atomic_turns"] == turns
    assert counts["global.x.atomic_requests"] == 4


def test_marking_warp_aggregated_atomics_keeps_the_results():
    module = parse(PTX)
    results = []
    for functions in (module.functions, {name: with_warp_aggregation(f) for name, f in module.functions.items()}):
        x, y = np.zeros(256, np.uint32), np.arange(128, dtype=np.uint32) % 4
        for number in range(len(BODIES)):
            launch = KernelLaunch(f"k{number}", (2,), (128,), ("x", "y"), {"x": x, "y": y})
            emulate(replace(module, functions=functions), launch)
        results.append(x)
    assert results[0].any()
    assert np.array_equal(*results)
