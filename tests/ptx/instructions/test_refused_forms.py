"""Test that impossible types or operands give a one-line error with the instruction and its line."""

import numpy as np
import pytest

from kernrec.errors import KernrecError
from kernrec.ptx import KernelLaunch, emulate, parse
from kernrec.ptx.analysis import issue_cost
from tests.fuzz.instructions import SAMPLE

REPLACED = "add.u32 %r1, %r1, %r2;"
FORMS = {
    "mul.wide.u64 %d1, %d2, %d3": "mul.wide has no type .u64; mul and mad have it for .u16, .s16, .u32 and .s32",
    "sin.wide.f32x2 %d1, %d2": "sin.wide has no type .f32x2",
    "bar.sync <0": "cannot read the operand '<0'",
    "bar.sync": "0 operands, 1 to 2 expected",
    "bar.red.u16.tf32 %r1": "bar.red.u16.tf32 is none of sync, arrive, red.popc.u32, red.and.pred and red.or.pred",
    "bar.red.and.pred %p1, %p2": "2 operands, 3 or 4 expected",
    "ld.global.bf16x2 %r1, [%d1]": "ld has no type .bf16x2",
    "or.f64 %g1, %g2, %g3": "the emulator does not support or.f64: the type .f64",
    "copysign.u16 %h1, %h2, %h3": "the emulator does not support copysign",
    "dp4a.u32.red %r1, %r2, %r3, %r1": "the emulator does not support dp4a",
    "dp2a.u32.u32 %r1, %r2": "the emulator does not support dp2a",
    "slct.u16.pred.s8 %h2, %c2, %c1, %c3": "the emulator does not support slct",
    "redux.sync.max.u16x2 %r1, %r1, %r2": "the emulator does not support redux",
    "brx.idx %r1": "the emulator does not support brx",
    "tex %r3, %r1, %r2, %r3, [shm]": "the emulator does not support tex",
    "activemask.b32": "the emulator does not support activemask",
    "movmatrix.sync.aligned.m8n8.trans.b16": "the emulator does not support movmatrix",
    "wgmma %r1": "the emulator does not support wgmma",
    "wmma %r1, %r2": "the emulator does not support wmma",
}


@pytest.mark.parametrize("guard", ["", "@%p1 "])
@pytest.mark.parametrize("form", list(FORMS))
def test_unknown_form_is_refused_in_one_line_with_the_instruction(form, guard):
    text = SAMPLE.decode().replace(REPLACED, f"{guard}{form};")
    line = next(number for number, each in enumerate(text.split("\n"), 1) if form in each)
    with pytest.raises(KernrecError) as raised:
        executed_text(text)
    message = str(raised.value)
    assert f"PTX line {line}" in message
    assert form.split(" ")[0].split(".")[0] in message
    assert FORMS[form] in message


def test_unchanged_sample_is_executed():
    content = executed_text(SAMPLE.decode())
    assert content[0] == 31


def executed_text(text: str) -> np.ndarray:
    content = np.zeros(256, np.uint32)
    module = parse(text)
    for block in module.functions["k"].blocks:
        issue_cost.chain_clk(block)
    emulate(module, KernelLaunch("k", (1,), (32,), ["buf"], {"buf": content}))
    return content
