"""Test which code depends on data, and the count of loads that wait for one another."""

import pytest

from kernrec.ptx import parse
from kernrec.ptx.analysis.dependence import blocks_run_alike, data_dependences, load_depths
from kernrec.ptx.analysis.liveness import live_registers

HEAD = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y, .param .u32 n)
{
    .reg .pred %p<3>; .reg .b32 %r<8>; .reg .f32 %f<4>; .reg .b64 %rd<8>;
    .shared .align 4 .b8 tile[256];
    ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x; setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %rd3, %r2, 4; add.s64 %rd4, %rd1, %rd3;
    ld.global.u32 %r3, [%rd4];
"""
TAIL = "\nDONE:\n    ret;\n}\n"


def kernel(body: str):  # type: ignore[no-untyped-def]
    return parse(HEAD + body + TAIL).functions["k"]


def test_loaded_index_makes_a_data_dependent_address():
    dependences = data_dependences(
        kernel("mul.wide.u32 %rd5, %r3, 4; add.s64 %rd6, %rd2, %rd5;\nld.global.u32 %r4, [%rd6];")
    )
    assert [(d.kind, d.text) for d in dependences] == [("load", "ld.global.u32 %r4, [%rd6];")]


def test_consecutive_loads_wait_once_and_pointer_chasing_waits_each_time():
    apart = kernel("ld.global.u32 %r4, [%rd4+4];\nld.global.u32 %r5, [%rd4+8];")
    chained = kernel("cvt.u64.u32 %rd5, %r3;\nld.global.u64 %rd6, [%rd5];\nld.global.u32 %r4, [%rd6];")
    assert max(depth for _, depth in load_depths(apart.instructions)) == 1
    assert max(depth for _, depth in load_depths(chained.instructions)) == 3


def test_only_values_alive_together_need_registers():
    alone = live_registers(kernel(""))
    sums = "add.u32 %r7, %r4, %r5; add.u32 %r7, %r7, %r6; st.global.u32 [%rd4], %r7;"
    stored = kernel("add.u32 %r4, %r3, 1; add.u32 %r5, %r3, 2; add.u32 %r6, %r3, 3;\n" + sums)
    reused = kernel("add.u32 %r4, %r3, 1; add.u32 %r4, %r4, 2; add.u32 %r4, %r4, 3;\nst.global.u32 [%rd4], %r4;")
    assert live_registers(reused) <= live_registers(stored)
    assert live_registers(stored) == 2 + 3  # the address and three terms
    assert alone >= 2


@pytest.mark.parametrize(
    ("body", "alike"),
    [
        ("", True),
        ("mov.u32 %r4, %ctaid.x; mad.lo.u32 %r5, %r4, 64, %r2;\nst.global.u32 [%rd4], %r5;", True),
        ("mov.u32 %r4, %nctaid.x; add.u32 %r5, %r4, %r1; setp.gt.u32 %p2, %r5, 7;\n@%p2 bra DONE;", True),
        ("mov.u32 %r4, %ctaid.x; mad.lo.u32 %r5, %r4, 64, %r2; setp.gt.u32 %p2, %r5, %r1;\n@%p2 bra DONE;", False),
        ("mov.u32 %r4, %ctaid.x; setp.gt.u32 %p2, %r4, 7; selp.u32 %r5, 1, 0, %p2; bar.sync %r5;", False),
        ("mov.u32 %r4, %smid; setp.gt.u32 %p2, %r4, 7;\n@%p2 exit;", False),
        ("setp.gt.u32 %p2, %r3, 7;\n@%p2 bra DONE;", False),
        ("ld.shared.u32 %r4, [tile]; setp.gt.u32 %p2, %r4, 7;\n@%p2 bra DONE;", False),
        ("mov.u32 %r4, 5;\nLOOP:\nsub.u32 %r4, %r4, 1; setp.gt.u32 %p2, %r4, 0;\n@%p2 bra LOOP;", True),
    ],
)  # fmt: skip
def test_blocks_run_equally_if_no_branch_depends_on_block_or_data(body, alike):
    assert blocks_run_alike(kernel(body)) is alike
