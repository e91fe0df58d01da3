"""Test that the lowering rules treat guarded code as the assembler does, on four architectures."""

from functools import cache

import pytest

from kernrec.compile.disassemble import disassembler
from kernrec.ptx import parse
from kernrec.ptx.analysis.lowering import lowered
from tests.helpers.machine_code import machine_code_of

pytestmark = pytest.mark.skipif(disassembler() is None, reason="there is no nvdisasm here")

CHAIN = "fma.rn.f32 %f1, %f1, %f2, %f2;\n"
INTEGERS = "mad.lo.s32 %r5, %r5, %r1, %r2;\n"
LOAD = "ld.global.f32 %f1, [%rd3+16];\n"
LONG_INDEX = "mul.lo.s64 %rd4, %rd2, %rd9; add.s64 %rd5, %rd4, %rd8; shl.b64 %rd6, %rd5, 2; add.s64 %rd7, %rd1, %rd6;\n"
STORE_SHARED, STORE = "st.shared.f32 [%r2], %f1;\n", "st.global.f32 [%rd3+64], %f1;\n"
BODIES = {
    **{f"arithmetic {n}": CHAIN * n for n in (1, 4, 7, 8, 9, 12, 24)},
    **{f"integers {n}": INTEGERS * n + "cvt.rn.f32.s32 %f1, %r5;\n" for n in (3, 7, 8, 14)},
    **{f"shared load {n}": "ld.shared.f32 %f1, [%r2];\n" + CHAIN * (n - 1) for n in (2, 8, 9, 16)},
    **{f"special function {n}": "ex2.approx.ftz.f32 %f1, %f1;\n" + CHAIN * (n - 1) for n in (8, 9)},
    **{f"store to shared memory {n}": CHAIN * (n - 1) + STORE_SHARED for n in (8, 9)},
    **{f"global load {n}": LOAD + CHAIN * (n - 1) for n in (1, 8, 9, 16, 20, 21, 28)},
    **{f"load and store {n}": LOAD + CHAIN * (n - 2) + STORE for n in (2, 9, 20, 21)},
    **{f"load and store to shared memory {n}": LOAD + CHAIN * (n - 2) + STORE_SHARED for n in (2, 20, 21)},
    **{f"loads {n}": LOAD + "".join(f"ld.global.f32 %f2, [%rd3+{i}];{CHAIN}" for i in range(32, 32 + 8 * n, 8))
       for n in (3, 9, 12)},
    "64-bit index": LONG_INDEX + "ld.global.f32 %f1, [%rd7];\n",
    "64-bit index and store": LONG_INDEX + "ld.global.f32 %f1, [%rd7];\n" + STORE_SHARED,
    "atomic operation": "red.global.add.f32 [%rd3+64], %f1;\n",
    "atomic operation after arithmetic": CHAIN * 3 + "atom.global.add.u32 %r6, [%rd3+64], %r2;\n",
}  # fmt: skip
"""Code behind a branch that only some threads take, by name."""

GUARDED = """
.visible .entry k{number}(.param .u64 x, .param .u32 n, .param .u64 row, .param .u64 column)
{{
.reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<10>; .reg .f32 %f<3>; .shared .align 4 .b8 tile[4096];
ld.param.u64 %rd1, [x]; ld.param.u32 %r1, [n]; ld.param.u64 %rd8, [column]; ld.param.u64 %rd9, [row];
mov.u32 %r2, %tid.x;
mov.u32 %r5, %r2;
mul.wide.u32 %rd2, %r2, 4; add.s64 %rd3, %rd1, %rd2; ld.global.f32 %f1, [%rd3];
fma.rn.f32 %f2, %f1, %f1, %f1;
setp.ge.s32 %p1, %r2, %r1;
@%p1 bra $END{number};
{body}
$END{number}:
st.global.f32 [%rd3+8192], %f1;
st.global.f32 [%rd3+8196], %f2;
ret;
}}
"""
PTX = ".version 8.0\n.target sm_75\n.address_size 64\n" + "".join(
    GUARDED.format(number=number, body=body.replace("; ", ";\n")) for number, body in enumerate(BODIES.values())
)
SMS = (75, 86, 90, 120)


@cache
def branches_of_rules() -> list[bool]:
    """Return whether the lowering rules keep the branch, for each kernel."""
    module = parse(PTX)
    return [lowered(module.functions[f"k{number}"])[0].get("branch", 0) > 0 for number in range(len(BODIES))]


@pytest.mark.parametrize("sm", SMS)
def test_predication_rules_match_the_assembler(sm):
    differ = []
    for number, name in enumerate(BODIES):
        code = machine_code_of(PTX, sm)[f"k{number}"].instructions
        main = code[: max(i for i, ins in enumerate(code) if ins.opcode == "EXIT")]
        if any(ins.opcode == "BRA" for ins in main) != branches_of_rules()[number]:
            differ.append(name)
    assert differ == []
