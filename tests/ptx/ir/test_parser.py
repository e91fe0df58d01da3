"""Test that the parser and the verifier accept compilers' PTX, and name the position of each error in one line."""

import gc
import pickle
import tomllib
from weakref import ref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.errors import KernrecError
from kernrec.ptx import KernelLaunch, ParseError, emulate, parse
from kernrec.ptx.analysis import issue_cost
from kernrec.ptx.execution.engine import encoded
from kernrec.ptx.ir.function_parser import read_operand
from kernrec.ptx.ir.operand import (
    BITS,
    REGISTER_TYPES,
    Address,
    Immediate,
    Negated,
    Pair,
    Register,
    Symbol,
    Vector,
    agrees,
)
from kernrec.ptx.ir.parser import _parsed_before
from tests.fuzz.instructions import SAMPLE
from tests.helpers.paths import beside
from tests.helpers.ptx_text import module

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


def test_instruction_is_parsed_into_its_parts():
    ins = module("@!%p1 ld.global.nc.v2.f32 {%f1, %f2}, [%rd1+-8];", verified=False).functions["k"].instructions[0]
    assert ins.name == "ld.global.nc.v2.f32"
    assert ins.predicate == ("%p1", True)
    assert ins.operands == (Vector((Register("%f1"), Register("%f2"))), Address(Register("%rd1"), -8))


def test_literals_are_checked_in_a_function_that_differs_only_in_literals():
    body = "add.u16 %rs1, %rs2, {};"
    module(body.format(7))
    with pytest.raises(ParseError, match="the literal 99999 does not fit"):
        module(body.format(99999))


def test_instructions_are_shared_with_a_text_that_differs_only_in_literals():
    body = "mov.u32 %r1, 6;\nmov.u32 %r2, {0};"
    first, second = (module(body.format(literal)).functions["k"].instructions for literal in (4, 8))
    assert second[0] is first[0]
    assert second[1].operands[1] == Immediate(8, "int")


@pytest.mark.parametrize("kernel", [
    "f() .maxntid {},\n1, 1\n{{ ret; }}", "f() .maxntid 9\n.maxntid {}\n.maxntid 64\n{{ ret; }}",
    "f()\n/*\n.maxntid {}\n*/ .maxntid 64 {{ ret; }}", "f() {{\n.shared .b8 a[{}];\n.shared .b8 a[16];\nret;\n}}",
    "f() {{ .reg .b32 %r; {{ .reg .pred p; setp.eq.u32 p, %r, 0;\n@p mov.u32 %r, {};\n}} ret; }}", "{}() {{ ret; }}",
    "f()\n.maxntid {0}, 1, 1\n{{\n.shared .b8 tile[{0}];\n.reg .b32 %r;\nst.shared.u32 [tile+{0}], %r;\nret;\n}}",
    "f() {{ {{ .reg .b32 %t; mov.u32 %t, 5; }} {{ .reg .b32 %t;\nmov.u32 %t, {};\n}} ret; }}",
])  # fmt: skip
def test_changed_literal_is_read_as_in_a_new_text(kernel):
    texts = [HEAD + ".entry " + kernel.format(literal) for literal in (4, 8)]
    expected = parse(texts[1])
    _parsed_before.cache_clear()
    parse(texts[0])
    assert parse(texts[1]) == expected


def test_large_function_is_not_kept_for_similar_texts():
    adds = "add.u32 %r1, %r1, 7;\n" * 5000
    function = parse(f"{HEAD}.entry large() {{\n.reg .b32 %r<2>;\n{adds}ret;\n}}").functions["large"]
    encoded(function)
    reference = ref(function)
    del function
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize(("text", "operand"), [
    ("0f3F800000", Immediate(0x3F800000, "f32")), ("0d3FF0000000000000", Immediate(0x3FF0000000000000, "f64")),
    ("-5", Immediate(-5, "int")), ("0xFFu", Immediate(255, "int")), ("017", Immediate(15, "int")),
    ("1.5", Immediate(1.5, "float")), ("!%p3", Negated(Register("%p3"))),
    ("%r1|%p2", Pair(Register("%r1"), Register("%p2"))), ("table+12", Symbol("table", 12)),
    ("WARP_SZ", Immediate(32, "int")),
])  # fmt: skip
def test_operands_have_their_documented_meaning(text, operand):
    assert module(f"foo.b32 %r1, {text};").functions["k"].instructions[0].operands[1] == operand


def test_register_in_an_inner_scope_hides_the_outer_one():
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


def test_parsed_variables_have_expected_sizes_and_contents():
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
        HEAD + ".entry k()\n{\nsetp.eq.u32 " + "|".join(["%p1"] * 900) + ", %r1, 5;\n}",
    ])  # fmt: skip


def test_long_statement_is_read():
    text = "mov.u32 %r1, 5;" + "\n" * 5000 + "mov.u32 %r2," + " " * 5000 + "%r1;"
    instructions = module(text, verified=False).functions["k"].instructions
    assert [(ins.operands[1], ins.text.split()[1]) for ins in instructions[:2]] == [
        (Immediate(5, "int"), "%r1,"),
        (Register("%r1"), "%r2,"),
    ]
    assert instructions[1].line - instructions[0].line == 5000


@pytest.mark.parametrize("text", ["%r1", "5", "table", "[%r1+4]", "{%r1, %r2}"])
def test_operand_is_freed_without_the_garbage_collector(text):
    operand = read_operand.__wrapped__(text)
    assert len(operand.leaves) >= len(operand.registers)
    reference = ref(operand)
    del operand
    assert reference() is None


def test_register_names_of_an_inner_scope_do_not_slow_down_later_instructions():
    body = "{ .reg .b32 x; mov.u32 x, %tid.x; mov.u32 %r1, x; }\nadd.u32 %r2, %r1, 5;"
    first, _, ins, _ = module(body).functions["k"].instructions
    assert first.operands[1] == Register("%tid.x")
    assert "results" in vars(ins), "the instruction was read once for all functions"


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


def test_code_that_the_assembler_refuses_is_refused_with_its_line(refuses):
    refuses(module, [
        "add.s32 %r1, 1;", "mov.b32 %r1, 1; add.s32 %r1, %r1, 1, 2;", "mov.b32 %r99, 1;", "mov.b32 %r01, 1;",
        "mov.u32 %r1, %tid.q;", "mov.b32 %r1, 1; @%r1 bra L; L: ret;",
        "mov.f32 %f1, 0f00000000; add.s32 %r1, %f1, 1;", "mov.b64 %rd1, 1; mov.b32 %r1, %rd1;",
        "mov.b32 %r1, 4294967296;", "mov.b16 %rs1, -32769;", "mov.s32 %r1, 1.5;", "mov.f32 %f1, 1;",
        "ld.global.b32 %r1, %rd1;", "setp.ge.s321e309 %p1, %r1, %r2;", "mov %r1, 1;", "add.s32.fast %r1, %r1, 1;",
        "mov.u32.pred %r1, %tid.x;", "ld.global.b32 %r1, [1e309];", "ld.global.b32 %r1, [0f3F800000];",
        "mov.f64 %fd1, 0d0000000000000000; ld.global.b32 %r1, [%fd1];", "ld.param.u64 %rd1, [nowhere];",
        "mov.b64 %rd1, 0; ld.global.v4.b32 {%r1, %r2}, [%rd1];", "mov.b32 %r1, 0; mov.b32 5, %r1;",
        "mov.b32 %r1, 0; setp.eq.s32 %r2, %r1, 0;", "add.s32 %r1, , 1;", "bra;", "mbarrier.init.shared.b64 %r1, 1;",
        "mov.b32 %r1, 0; mbarrier.try_wait.parity.shared.b64 %r2, [%r1], 0;",
        "mov.b32 %r1, 0; mov.b64 %rd1, 0; cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1], [%r1];",
        "mov.b32 %r1, 0; mov.b64 %rd1, 0; cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"
            " [%rd1, {%r1, %rd1}], [%r1];",
        "mov.b32 %r1, 0; mov.b64 %rd1, 0; cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1];",
    ])  # fmt: skip


def test_oversized_declarations_allocate_nothing(refuses):
    refuses(module, [
        ".reg .b32 %x<2147483647>;", ".reg .b32 %x<200000>; .reg .b32 %y<200000>;", "{ .reg .b32 %x<2147483647>; }",
        ".reg .b31 %x;", ".shared .align 4 .b8 s[999999999999];", ".local .align 4 .b8 s[999999999999];",
        ".shared .align 3 .b8 s[4];", ".shared .align 4 .b8 s[-4];", ".shared .align 4 .q8 s[4];",
        "{" * 100 + "}" * 100,
    ])  # fmt: skip


def test_text_that_is_not_a_module_is_refused_in_one_line(refuses):
    refuses(parse, [
        ".version", HEAD + ".global .f32 x = 0f1;", HEAD + ".global .f16 x = 1e9;",
        HEAD + ".global .b32 x = 0d3FF0000000000000;",
        HEAD + ".visible .entry k(.param " + ".ptr " * 60 + ".x a)\n{ret;}\n", HEAD + "}",
        HEAD + ".entry k() { mov.b32 {{}, }; }", HEAD + ";;;\n.entry",
    ])  # fmt: skip


def test_register_that_nothing_writes_may_be_read():
    """Compilers leave a register undefined if the value does not matter, and the assembler accepts the code."""
    parse(HEAD + ".entry k()\n{\n.reg .b32 %r<3>;\nadd.s32 %r2, %r1, 1;\nret;\n}")


def test_negative_literal_of_64_bits_fits_a_narrower_register():
    module("mov.b16 %rs1, 0xffffffffffffffff; mov.b32 %r1, 0xffffffff80000000;")
    for literal in ("0xffffffff7fffffff", "0x1ffffffff"):
        with pytest.raises(ParseError, match="does not fit"):
            module(f"mov.b32 %r1, {literal};")


def test_ptx_parse_error_can_be_pickled():
    error = pickle.loads(pickle.dumps(ParseError("no module", 3)))
    assert (str(error), error.line) == ("PTX line 3: no module", 3)


@given(st.integers(0, 400), st.integers(0, 400), st.text('%@;{}[]().,:|!<>0x-"abdfprsu123\n ', max_size=6))
def test_damaged_text_is_parsed_or_refused_in_one_line(start, length, patch):
    text = HEAD + (
        ".visible .entry k(.param .u64 a)\n{\n.reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<3>;\n"
        "ld.param.u64 %rd1, [a];\nmov.u32 %r1, %tid.x;\nsetp.gt.u32 %p1, %r1, 7;\n@%p1 bra END;\n"
        "mad.wide.u32 %rd2, %r1, 4, %rd1;\nld.global.u32 %r2, [%rd2+4];\nshl.b32 %r3, %r2, 1;\n"
        "st.global.u32 [%rd2], %r3;\nEND:\nret;\n}\n"
    )
    says = ""
    try:
        parse(text[:start] + patch + text[start + length % 7 :])
    except KernrecError as error:
        says = str(error)
    assert "\n" not in says


@given(st.sampled_from(sorted(REGISTER_TYPES)), st.sampled_from(sorted(BITS)))
def test_registers_accept_types_of_their_size(register, wanted):
    if agrees(register, wanted):
        assert BITS[register] == BITS[wanted]
        assert agrees(register, wanted, wider=True)
    elif agrees(register, wanted, wider=True):
        assert BITS[register] > BITS[wanted]


FORMS = tomllib.loads(beside(__file__, "forms.toml"))


@pytest.mark.parametrize("guard", ["", "@%p1 "])
@pytest.mark.parametrize("form", list(FORMS))
def test_unknown_form_is_refused_in_one_line_with_the_instruction(form, guard):
    text = SAMPLE.decode().replace("add.u32 %r1, %r1, %r2;", f"{guard}{form};")
    line = next(number for number, each in enumerate(text.split("\n"), 1) if form in each)
    with pytest.raises(KernrecError) as raised:
        executed_text(text)
    message = str(raised.value)
    assert f"PTX line {line}" in message
    assert form.split(" ")[0].split(".")[0] in message
    assert FORMS[form] in message


def test_unmodified_sample_ptx_is_executed():
    content = executed_text(SAMPLE.decode())
    assert content[0] == 31


def executed_text(text: str) -> np.ndarray:
    content = np.zeros(256, np.uint32)
    module = parse(text)
    for block in module.functions["k"].blocks:
        issue_cost.chain_clk(block)
    emulate(module, KernelLaunch("k", (1,), (32,), ["buf"], {"buf": content}))
    return content
