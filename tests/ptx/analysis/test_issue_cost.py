"""Test that every emulated instruction has a class and costs as many issues as its expansion."""

import pytest

from kernrec.ptx.analysis import issue_cost
from kernrec.ptx.execution.engine import known_opcodes
from tests.helpers.ptx_text import module


def cost(text: str) -> dict[str, int]:
    return dict(issue_cost.classify(module(text, verified=False).functions["k"].instructions[0]))


def test_every_known_opcode_has_a_class():
    for opcode in known_opcodes():
        for suffix in ("u32", "f32", "s64", "f64", "pred"):
            for name, number in issue_cost.classify(
                module(f"{opcode}.{suffix} %r1, %r2, %r3;", verified=False).functions["k"].instructions[0]
            ):
                assert name in issue_cost.CLASSES
                assert number > 0


@pytest.mark.parametrize(("text", "want"), [
    ("fma.rn.f32 %f1, %f1, %f1, %f1;", {"fma32": 1}), ("add.s64 %rd1, %rd1, %rd1;", {"wide64": 2}),
    ("mad.wide.u32 %rd1, %r1, %r1, %rd1;", {"imad": 1}),
    ("ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r1];", {"ld_shared": 1}), ("ld.param.u64 %rd1, [a];", {"ld_const": 1}),
    ("ld.global.nc.b32 %r1, [%rd1];", {"ld_global": 1}), ("cp.async.commit_group;", {"cp_async": 1}),
    ("cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 16;", {"cp_async": 1}),
    ("mbarrier.arrive.shared::cta.b64 _, [%r1];", {"bar": 1}), ("mapa.shared::cluster.u32 %r1, %r1, 1;", {"alu": 1}),
    ("red.global.add.f32 [%rd1], %f1;", {"atomic": 1}), ("ex2.approx.ftz.f32 %f1, %f1;", {"mufu": 1}),
    ("cvt.rn.f32.s32 %f1, %r1;", {"cvt": 1}), ("mma.sync.aligned.m16n8k16 %r1;", {"mma": 1}),
    ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r1];", {"ld_shared": 1}),
    ("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1], {%r1};", {"st_shared": 1}),
    ("fma.rn.bf16x2 %r1, %r1, %r1, %r1;", {"f16": 1}), ("set.gt.f16x2.f16x2 %r1, %r1, %r1;", {"f16": 1}),
    ("ex2.approx.f16x2 %r1, %r1;", {"mufu": 2}), ("cvt.f32.f16 %f1, %rs1;", {"f16": 1}),
    ("add.rn.f32.bf16 %f1, %rs1, %f2;", {"fma32": 1}), ("cvt.f32.bf16 %f1, %rs1;", {"alu": 1}),
    ("cvt.rn.bf16x2.f32 %r1, %f1, %f1;", {"cvt": 1}), ("add.cc.u32 %r1, %r1, %r1;", {"alu": 1}),
])  # fmt: skip
def test_issue_costs_match_the_recorded_ones(text, want):
    assert cost(text) == want
