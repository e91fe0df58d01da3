"""Test that neighboring shared-memory accesses are merged if alignment is known, with unchanged results."""

import numpy as np
import pytest

from kernrec.ptx import KernelLaunch, emulate
from kernrec.ptx.analysis.wide_access import with_wide_accesses
from tests.helpers.ptx_text import module

SHARED = ".shared .align 4 .b8 tile[4096];"
BASE = "mov.u32 %r1, tile; mov.u32 %r2, %tid.x; "
BY_16 = BASE + "shl.b32 %r3, %r2, 4; add.s32 %r4, %r1, %r3;"
FOUR_LOADS = " ".join(f"ld.shared.f32 %f{i}, [%r4+{4 * i}];" for i in range(4))
FOUR_STORES = " ".join(f"st.shared.f32 [%r4+{4 * i}], %f{i};" for i in range(4))
SUM = "add.f32 %f4, %f0, %f1; add.f32 %f5, %f2, %f3; add.f32 %f4, %f4, %f5;"


def accesses(body: str) -> list[str]:
    """Return the loads and stores of shared memory after merging."""
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


def test_no_access_moves_past_a_conflicting_one():
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
