"""Test that machine instructions are attributed to the PTX basic blocks they were compiled from."""

import pytest

from kernrec.compile import disassemble
from kernrec.compile.block_mix import MachineLowering, block_mix
from kernrec.compile.disassemble import COUNTS, disassembler, machine_code, parse_disassembly
from kernrec.ptx import parse
from kernrec.ptx.analysis.lowering import lowered
from tests.helpers.paths import beside

needs_disassembler = pytest.mark.skipif(disassembler() is None, reason="there is no nvdisasm here")


@pytest.fixture(autouse=True)
def reads_machine_code(monkeypatch):
    monkeypatch.delenv(COUNTS, raising=False)


HEAD = beside(__file__, "block_mix_head.ptx")
LOOP = beside(__file__, "block_mix_loop.ptx")
TEXT = beside(__file__, "listing.sass")


def test_disassembly_listing_is_parsed_with_lines_guards_and_labels():
    code = parse_disassembly(TEXT)
    assert code is not None
    first, load, branch = code["k"].instructions
    assert (first.line, first.opcode, first.modifiers) == (7, "IMAD", ("MOV", "U32"))
    assert (load.line, load.opcode, load.modifiers) == (9, "LDG", ("E", "128"))
    assert (branch.target, code["k"].labels[".L_x_0"]) == (".L_x_0", 1)


@pytest.mark.parametrize("row", ["/*0030*/  ???", "/*0030*/ lower R1 ;", "/*0030*/"])
def test_unknown_listing_format_is_ignored(row):
    assert parse_disassembly(f"{TEXT}        {row}\n") is None


@pytest.mark.parametrize("program", ["assembler", "disassembler"])
def test_missing_or_failing_disassembler_falls_back_to_ptx_counts(program, monkeypatch):
    ptx = HEAD + LOOP.replace("LIMIT", "%r1")
    function = parse(ptx).functions["k"]
    for path in (None, "/bin/false", "/nowhere"):
        monkeypatch.setattr(disassemble, program, lambda path=path: path)
        lowering = MachineLowering(ptx, 86, "k")
        assert lowering(function) == lowered(function)
        assert not any(lowering.mix(function).from_code)


@needs_disassembler
@pytest.mark.parametrize("sm", [75, 86, 90, 120])
@pytest.mark.parametrize("limit", ["%r1", "8"])
def test_unrolled_loop_has_the_instruction_counts_of_one_trip(limit, sm):
    ptx = HEAD + LOOP.replace("LIMIT", limit)
    function = parse(ptx).functions["k"]
    code = machine_code(ptx, sm)
    assert code is not None
    mix = block_mix(function, code["k"])
    assert all(mix.from_code)
    assert mix.issue[-1]["branch"] == 1.0  # the padding after the code is a branch to itself
    assert mix.issue[1]["ld_global"] == pytest.approx(1.0)
    assert mix.issue[1]["fma32"] == pytest.approx(1.0)
    assert sum(mix.issue[1].values()) < sum(lowered(function)[1].values())
    assert sum(issue.get("st_global", 0.0) for issue in mix.issue) == pytest.approx(1.0)
