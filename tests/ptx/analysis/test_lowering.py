"""Test that lowering PTX predicts the machine instructions that the assembler emits."""

import re
import tomllib
from dataclasses import replace
from itertools import pairwise

import pytest

from kernrec.compile.compiled import assembler
from kernrec.ptx import parse
from kernrec.ptx.analysis import issue_cost
from kernrec.ptx.analysis.dependence import data_dependences
from kernrec.ptx.analysis.folding import removed_copies
from kernrec.ptx.analysis.liveness import live_by_block
from kernrec.ptx.analysis.lowering import lowered, straightened
from kernrec.ptx.execution.engine import encoded, known_opcodes
from kernrec.ptx.ir.program import Function
from tests.helpers.kernel_code import machine_code_of
from tests.helpers.paths import beside
from tests.helpers.ptx_text import module

VARYING = "mov.u32 %r0, %laneid; cvt.u64.u32 %rd0, %r0;" + "".join(
    f"ld.global.b32 %r{i}, [%rd0];" for i in (1, 2, 3, 5, 7)
)
"""Code that sets `%r1` and other registers to values that differ between threads."""
SETUP = {"move": 2, "ld_global": 5, "branch": 1}
"""Instruction counts of the code around each body: stack pointer setup, `VARYING` and `ret`."""


def function(body: str, parameters: str = "u64 x, u32 n") -> Function:
    return module(body, parameters, verified=False).functions["k"]


def blocks(body: str) -> list[dict[str, int]]:
    return [{name: count for name, count in block.items() if count} for block in lowered(function(body))]


def cost(body: str) -> dict[str, int]:
    """Return the machine instruction counts of a body without branches, less the counts in `SETUP`."""
    (block,) = blocks(VARYING + body)
    for name, count in SETUP.items():
        block[name] -= count
    return {name: count for name, count in block.items() if count}


FOLDED = tomllib.loads(beside(__file__, "folded.toml"))


def changed_literals(body: str) -> str:
    """Return the body after adding 2 to each decimal literal above 1."""
    return re.sub(r"(?<=[ +-])([2-9]|[1-9]\d+)\b", lambda match: str(int(match[0]) + 2), body)


@pytest.mark.parametrize("name", FOLDED)
def test_functions_that_differ_only_in_literals_share_costs(name):
    body = VARYING + FOLDED[name]["body"]
    first, second = function(body), function(changed_literals(body))
    assert first.form_memo is second.form_memo
    lowered(first)
    encoded(first)
    for got, expected in zip(encoded(second), encoded(replace(second)), strict=True):
        assert str(got) == str(expected)
    assert lowered(second) == lowered(replace(second)), "a copy has no cached results"
    assert live_by_block(second) == live_by_block(replace(second))
    assert data_dependences(second) == data_dependences(replace(second))


@pytest.mark.parametrize(("first", "second"), [
    ("mov.u32 %r9, 0;", "mov.u32 %r9, 2;"),
    ("selp.b32 %r9, 1, 0, %p1;", "selp.b32 %r9, 2, 0, %p1;"),
    ("shfl.sync.bfly.b32 %r9, %r1, 2, 31, -1;", "shfl.sync.bfly.b32 %r9, %r1, 2, 31, 15;"),
    ("match.any.sync.b32 %r9, %r1, 4294967295;", "match.any.sync.b32 %r9, %r1, 7;"),
    ("mul.wide.s32 %rd3, %r1, 4; mul.wide.s32 %rd5, %r2, 4;", "mul.wide.s32 %rd3, %r1, 4; mul.wide.s32 %rd5, %r2, 8;"),
    ("mul.wide.s32 %rd3, %r1, 4; mul.wide.s32 %rd5, %r2, 0x4;",
     "mul.wide.s32 %rd3, %r1, 8; mul.wide.s32 %rd5, %r2, 0x4;"),
])  # fmt: skip
def test_functions_with_different_special_literals_share_no_costs(first, second):
    assert function(first).form_memo is not function(second).form_memo


def test_costs_do_not_depend_on_the_names_of_two_results():
    body = "setp.lt.s32 {0}|{1}, %r1, 5; and.pred %p9, {0}, %p9; @{1} add.s32 %r2, %r2, 1; @{1} add.s32 %r3, %r3, 1;"
    names = [f"%p{number}" for number in range(10, 18)]
    costs = [cost(body.format(*pair)) for pair in pairwise(names)]
    assert costs == costs[:1] * len(costs)


@pytest.mark.parametrize("name", FOLDED)
def test_folded_instructions_cost_nothing(name):
    assert cost(FOLDED[name]["body"]) == FOLDED[name]["want"]


def test_loop_that_counts_true_conditions_needs_two_moves_per_trip():
    body = "setp.gt.s32 %p1, %r1, %r2; selp.b32 %r3, 1, 0, %p1; add.s32 %r5, %r5, %r3; setp.lt.s32 %p2, %r5, %r7;"
    loop = blocks(VARYING + f"L: {body} @%p2 bra L; st.global.b32 [%rd30], %r5;")[1]
    assert loop == {"setp": 2, "alu": 1, "move": 2, "branch": 1}


@pytest.mark.parametrize(("text", "want"), [
    ("ex2.approx.ftz.f32 %f1, %f2;", {"mufu": 1}), ("ex2.approx.f32 %f1, %f2;", {"mufu": 1, "fcmp": 1, "fma32": 2}),
    ("cvt.rn.f32.f64 %f1, %fd1;", {"cvt64": 1}), ("cvt.rn.f32.s32 %f1, %r1;", {"i2f": 1}),
    ("cvt.rp.f32.u32 %f1, %r1;", {"f2i": 1}), ("cvt.rn.f32.s8 %f1, %r1;", {"f2i": 1}),
    ("cvt.rzi.u32.f32 %r1, %f1;", {"f2i": 1}), ("cvt.rmi.f32.f32 %f1, %f2;", {"f2i": 1}),
    ("cvt.ftz.f32.f32 %f1, %f2;", {"fma32": 1}), ("cvt.sat.f32.f32 %f1, %f2;", {"fma32": 1}),
    ("cvt.rna.tf32.f32 %r1, %f1;", {"fcmp": 1, "alu": 2}), ("cvt.rn.bf16x2.f32 %r1, %f1, %f2;", {"cvt": 1}),
    ("cvt.u64.u32 %rd1, %r1;", {}), ("max.f32 %f1, %f2, %f3;", {"fcmp": 1}),
    ("div.u32 %r1, %r2, 7;", {"imad": 2, "alu": 2}),
])  # fmt: skip
def test_instruction_lowers_to_expected_machine_instructions(text, want):
    assert dict(issue_cost.machine_cost(function(text).instructions[0])) == want


MACHINE_CLASSES = {*issue_cost.CLASSES, *issue_cost.MACHINE_CLASSES} - {"mov", "ld_const"}


@pytest.mark.parametrize(("cost_of", "names"), [
    (issue_cost.machine_cost, MACHINE_CLASSES), (issue_cost.classify, {*issue_cost.CLASSES}),
])  # fmt: skip
def test_every_known_opcode_has_a_cost_of_a_known_class(cost_of, names):
    for opcode in known_opcodes():
        for suffix in ("u32", "f32", "s64", "f64", "pred"):
            for name, number in cost_of(function(f"{opcode}.{suffix} %r1, %r2, %r3;").instructions[0]):
                assert name in names
                assert number > 0


BRANCH = (
    "mov.u32 %r1, {}; setp.gt.s32 %p1, %r1, 5; @%p1 bra $END; {} $END: add.s32 %r9, %r9, 1; st.global.b32 [%rd30], %r9;"
)


ARITHMETIC = "fma.rn.f32 %f1, %f1, %f1, %f1;"
LOAD = "ld.global.f32 %f1, [%rd0];"


@pytest.mark.parametrize(("begin", "most"), [("", 8), (LOAD, 20)])
def test_short_code_after_a_branch_is_predicated_and_long_code_is_not(begin, most):
    loads = bool(begin)
    short = blocks(BRANCH.format("%tid.x", begin + ARITHMETIC * (most - loads)))
    assert (short[0]["fma32"], short[1]) == (most - loads, {})
    assert "branch" not in short[0]
    long = blocks(BRANCH.format("%tid.x", begin + ARITHMETIC * (most - loads + 1)))
    assert (long[0]["branch"], long[1]["fma32"]) == (1, most - loads + 1)


GUARDED = "@%p1 bra $A; {0} $A: setp.gt.s32 %p2, %r1, 6; @%p2 bra $B; {0} $B: st.global.f32 [%rd30], %f1;"


@pytest.mark.parametrize(("guarded", "pieces"), [
    ("ld.global.f32 %f1, [%rd0];", [[0, 1, 2, 3, 4]]), (ARITHMETIC * 9, [[0], [1], [2], [3], [4]]),
    ("bar.sync 0;", [[0], [1], [2], [3], [4]]),
])  # fmt: skip
def test_predicated_branch_does_not_split_straight_line_code(guarded, pieces):
    arguments = function("setp.gt.s32 %p1, %r1, 5;" + GUARDED.format(guarded))
    assert [[block.index for block in piece] for piece in straightened(arguments, lowered(arguments))] == pieces


def test_register_copy_is_removed_unless_both_values_stay_live():
    def removed(rest: str) -> int:
        return len(
            removed_copies(function(f"add.s32 %r1, %r3, 1; mov.u32 %r2, %r1; {rest} st.global.b32 [%rd30], %r2;"))
        )

    assert removed("") == 1
    assert removed("add.s32 %r2, %r2, 1;") == 1
    assert removed("add.s32 %r2, %r2, 1; st.global.b32 [%rd30], %r1;") == 0


CHAIN = "fma.rn.f32 %f1, %f1, %f2, %f2;\n"
INTEGERS = "mad.lo.s32 %r5, %r5, %r1, %r2;\n"
GLOBAL_LOAD = "ld.global.f32 %f1, [%rd3+16];\n"
LONG_INDEX = "mul.lo.s64 %rd4, %rd2, %rd9; add.s64 %rd5, %rd4, %rd8; shl.b64 %rd6, %rd5, 2; add.s64 %rd7, %rd1, %rd6;\n"
STORE_SHARED, STORE = "st.shared.f32 [%r2], %f1;\n", "st.global.f32 [%rd3+64], %f1;\n"
GUARDED_BODIES = {
    **{f"arithmetic {n}": CHAIN * n for n in (1, 4, 7, 8, 9, 12, 24)},
    **{f"integers {n}": INTEGERS * n + "cvt.rn.f32.s32 %f1, %r5;\n" for n in (3, 7, 8, 14)},
    **{f"shared load {n}": "ld.shared.f32 %f1, [%r2];\n" + CHAIN * (n - 1) for n in (2, 8, 9, 16)},
    **{f"special function {n}": "ex2.approx.ftz.f32 %f1, %f1;\n" + CHAIN * (n - 1) for n in (8, 9)},
    **{f"store to shared memory {n}": CHAIN * (n - 1) + STORE_SHARED for n in (8, 9)},
    **{f"global load {n}": GLOBAL_LOAD + CHAIN * (n - 1) for n in (1, 8, 9, 16, 20, 21, 28)},
    **{f"load and store {n}": GLOBAL_LOAD + CHAIN * (n - 2) + STORE for n in (2, 9, 20, 21)},
    **{f"load and store to shared memory {n}": GLOBAL_LOAD + CHAIN * (n - 2) + STORE_SHARED for n in (2, 20, 21)},
    **{f"loads {n}": GLOBAL_LOAD + "".join(f"ld.global.f32 %f2, [%rd3+{i}];{CHAIN}" for i in range(32, 32 + 8 * n, 8))
       for n in (3, 9, 12)},
    "64-bit index": LONG_INDEX + "ld.global.f32 %f1, [%rd7];\n",
    "64-bit index and store": LONG_INDEX + "ld.global.f32 %f1, [%rd7];\n" + STORE_SHARED,
    "atomic operation": "red.global.add.f32 [%rd3+64], %f1;\n",
    "atomic operation after arithmetic": CHAIN * 3 + "atom.global.add.u32 %r6, [%rd3+64], %r2;\n",
}  # fmt: skip
"""Code behind a branch that only some threads take, by name."""

GUARDED_KERNEL = beside(__file__, "guarded_kernel.ptx")
GUARDED_KERNELS = ".version 8.0\n.target sm_75\n.address_size 64\n" + "".join(
    GUARDED_KERNEL.format(number=number, body=body.replace("; ", ";\n"))
    for number, body in enumerate(GUARDED_BODIES.values())
)


@pytest.mark.skipif(assembler() is None, reason="there is no ptxas here")
@pytest.mark.parametrize("sm", [75, 86, 90, 120])
def test_predication_rules_match_the_assembler(sm):
    functions, differ = parse(GUARDED_KERNELS).functions, []
    for number, name in enumerate(GUARDED_BODIES):
        code = machine_code_of(GUARDED_KERNELS, sm)[f"k{number}"].instructions
        main = code[: max(i for i, ins in enumerate(code) if ins.opcode == "EXIT")]
        if any(ins.opcode == "BRA" for ins in main) != (lowered(functions[f"k{number}"])[0].get("branch", 0) > 0):
            differ.append(name)
    assert differ == []


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
    assert dict(issue_cost.classify(function(text).instructions[0])) == want
