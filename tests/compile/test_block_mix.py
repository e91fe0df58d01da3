"""Test that machine instructions are attributed to the PTX basic blocks they were compiled from."""

from dataclasses import replace
from random import Random

import pytest

from kernrec.compile import Compiled, CompileJob
from kernrec.compile.block_mix import MachineLowering, _form, block_mix
from kernrec.compile.compiled import COUNTS, assembler
from kernrec.compile.machine_code import read_machine_code
from kernrec.compile.nvrtc import compile_alone
from kernrec.ptx import parse
from kernrec.ptx.analysis.lowering import lowered
from tests.helpers.kernel_code import machine_code_of
from tests.helpers.paths import beside


@pytest.fixture(autouse=True)
def reads_machine_code(monkeypatch):
    monkeypatch.delenv(COUNTS, raising=False)


HEAD = beside(__file__, "block_mix_head.ptx")
LOOP = beside(__file__, "block_mix_loop.ptx")


def test_code_without_line_information_is_estimated_from_ptx():
    ptx = HEAD + LOOP.replace("LIMIT", "%r1")
    function = parse(ptx).functions["k"]
    lowering = MachineLowering(Compiled(ptx, b"", {}, "ptxas", ""), 86, "k")
    assert lowering(function) == lowered(function)
    assert not any(lowering.mix(function).from_code)


@pytest.mark.skipif(assembler() is None, reason="there is no ptxas here")
@pytest.mark.parametrize("sm", [75, 86, 90, 120])
@pytest.mark.parametrize("limit", ["%r1", "8"])
def test_unrolled_loop_has_the_instruction_counts_of_one_trip(limit, sm):
    ptx = HEAD + LOOP.replace("LIMIT", limit)
    function = parse(ptx).functions["k"]
    mix = block_mix(function, machine_code_of(ptx, sm)["k"])
    assert all(mix.from_code)
    assert mix.issue[-1]["branch"] == 1.0  # the padding after the code is a branch to itself
    assert mix.issue[1]["ld_global"] == pytest.approx(1.0)
    assert mix.issue[1]["fma32"] == pytest.approx(1.0)
    assert sum(mix.issue[1].values()) < sum(lowered(function)[1].values())
    assert sum(issue.get("st_global", 0.0) for issue in mix.issue) == pytest.approx(1.0)


@pytest.mark.parametrize("sm", [75, 90, 120])
def test_equal_forms_of_machine_code_have_equal_decoded_instructions(nvrtc, sm):
    cubin = compile_alone(CompileJob(beside(__file__, "many_opcodes.cu"), sm)).cubin
    code, random = read_machine_code(cubin, sm)["k"], Random(sm)
    equal = 0
    for _ in range(2000):
        content = bytearray(code.content)
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        changed = replace(code, content=bytes(content))
        if _form(changed) == _form(code):
            equal += 1
            assert changed.decoded == code.decoded
    assert equal > 500
