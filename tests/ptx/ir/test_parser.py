"""Test that the parser reads PTX from compilers and people, and reports where it cannot."""

import pytest

from kernrec.ptx import ParseError, parse
from kernrec.ptx.ir.operand import Address, Immediate, Negated, Pair, Register, Symbol, Vector
from tests.helpers.ptx_text import module

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


def test_instruction_is_parsed_into_its_parts():
    ins = module("@!%p1 ld.global.nc.v2.f32 {%f1, %f2}, [%rd1+-8];", verified=False).functions["k"].instructions[0]
    assert ins.name == "ld.global.nc.v2.f32"
    assert ins.predicate == ("%p1", True)
    assert ins.operands == (Vector((Register("%f1"), Register("%f2"))), Address(Register("%rd1"), -8))


@pytest.mark.parametrize(("text", "operand"), [
    ("0f3F800000", Immediate(0x3F800000, "f32")), ("0d3FF0000000000000", Immediate(0x3FF0000000000000, "f64")),
    ("-5", Immediate(-5, "int")), ("0xFFu", Immediate(255, "int")), ("017", Immediate(15, "int")),
    ("1.5", Immediate(1.5, "float")), ("!%p3", Negated(Register("%p3"))),
    ("%r1|%p2", Pair(Register("%r1"), Register("%p2"))), ("table+12", Symbol("table", 12)),
    ("WARP_SZ", Immediate(32, "int")),
])  # fmt: skip
def test_operands_have_their_documented_meaning(text, operand):
    assert module(f"foo.b32 %r1, {text};").functions["k"].instructions[0].operands[1] == operand


def test_inner_registers_hide_outer_ones():
    body = "{ .reg .b64 %r1; mov.b64 %r1, 5; }\n mov.b32 %r1, 1;"
    function = module(body).functions["k"]
    inner, outer = (i.operands[0] for i in function.instructions[:2])
    assert isinstance(inner, Register)
    assert inner != outer == Register("%r1")
    assert function.register_type(inner.name) == "b64"


def test_label_may_be_defined_once_per_scope():
    scope = "{ L: @%p1 bra L; }\n"
    function = module(scope + scope, verified=False).functions["k"]
    assert len(function.labels) == 2
    for block in function.blocks[:2]:
        target = block.instructions[0].operands[0]
        assert isinstance(target, Symbol)
        assert target.name == block.labels[0]


def test_variables_have_sizes_and_contents():
    variables = parse(
        HEAD
        + ".const .align 4 .f32 c[2] = {0f3F800000, 2.0};\n.global .align 8 .u64 p[2] = {c, generic(c)+4};\n"
        + ".global .b8 text[6] = {104, 105};\n.extern .shared .align 16 .b8 dynamic[];\n.shared .v4 .f32 s[3];\n"
    ).variables
    assert variables["c"].data == b"\x00\x00\x80?\x00\x00\x00@"
    assert variables["p"].pointers == ((0, "c", 0), (8, "c", 4))
    assert variables["text"].data == b"hi\0\0\0\0"
    assert (variables["dynamic"].size, variables["dynamic"].external) == (0, True)
    assert variables["s"].size == 48


def test_basic_blocks_end_at_branches_and_begin_at_labels():
    body = "mov.b32 %r1, 0;\nL:\nadd.s32 %r1, %r1, 1;\n@%p1 bra L;\nbar.sync 0;\nmov.b32 %r2, 0;"
    function = module(body, verified=False).functions["k"]
    assert [len(b.instructions) for b in function.blocks] == [1, 2, 1, 2]
    assert function.block_index == {"L": 1}


def test_debug_sections_and_pragmas_are_ignored():
    text = (
        '.file 1 "k.cu"\n.entry k()\n.maxntid 128, 1, 1\n{\n.loc 1 2 3\n.pragma "nounroll";\nret;\n}\n'
        ".section .debug_str\n{\n.b8 1\n}\n"
    )
    function = parse(HEAD + text).functions["k"]
    assert function.directives["maxntid"] == (128, 1, 1)
    assert len(function.instructions) == 1


def test_unreadable_text_is_named_with_its_line(refuses):
    refuses(parse, [
        "", HEAD + ".entry k()\n{\nbra NOWHERE;\n}", HEAD + ".entry k()\n{\nadd.s32 %r1",
        HEAD + ".entry k()\n{\nret;\n", HEAD + ".entry k()\n{\n.nonsense 3;\n}", HEAD + "nonsense;",
        HEAD + ".entry k()\n{\nL: ret; L: ret;\n}", HEAD + ".entry k()\n{\nld.b32 %r1, [%r2*4];\n}",
    ])  # fmt: skip


def test_unfinished_instruction_takes_linear_time():
    """Quadratic time would take minutes here."""
    with pytest.raises(ParseError, match="unfinished statement"):
        parse(".version 7.0\n.target sm_75\n.visible .entry k()\n{\n\tadd.s64 " + " " * 100_000 + "%rd7,\n}\n")


@pytest.mark.parametrize(
    "lines", ["T: .branchtargets A, B;", "T:\n.branchtargets A,\n  B;", "T:\n\t.branchtargets\n\t\tA,\n\t\tB;"]
)
def test_branch_target_table_may_span_lines(lines):
    body = f"{lines}\nmov.u32 %r1, 1;\nbrx.idx %r1, T;\nA: mov.u32 %r2, 0;\nB: mov.u32 %r2, 1;"
    function = module(body).functions["k"]
    assert function.tables == {"T": ("A", "B")}
    assert {*function.labels} == {"A", "B"}
