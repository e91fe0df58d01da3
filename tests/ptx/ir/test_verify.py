"""The verifier refuses what the assembler refuses, in one line, and passes what compilers print."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.errors import KernrecError
from kernrec.ptx import parse
from kernrec.ptx.ir.errors import ParseError
from kernrec.ptx.ir.types import BITS, REGISTER_TYPES, agrees
from tests.helpers.ptx_text import module

HEAD = ".version 8.0\n.target sm_86\n.address_size 64\n"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("add.s32 %r1, 1;", "2 operands, 3 expected"),
        ("mov.b32 %r1, 1; add.s32 %r1, %r1, 1, 2;", "4 operands, 3 expected"),
        ("mov.b32 %r99, 1;", "register %r99 is not declared"),
        ("mov.b32 %r01, 1;", "register %r01 is not declared"),
        ("mov.u32 %r1, %tid.q;", "register %tid.q is not declared"),
        ("add.s32 %r1, %r2, 1;", "register %r2 is read but never written"),
        ("@%p1 bra L; L: ret;", "register %p1 is read but never written"),
        ("mov.b32 %r1, 1; @%r1 bra L; L: ret;", "the guard %r1 is not a predicate"),
        ("mov.f32 %f1, 0f00000000; add.s32 %r1, %f1, 1;", "%f1 is .f32, not .s32"),
        ("mov.b64 %rd1, 1; mov.b32 %r1, %rd1;", "%rd1 is .b64, not .b32"),
        ("mov.b32 %r1, 4294967296;", "the literal 4294967296 does not fit .b32"),
        ("mov.b16 %rs1, -32769;", "the literal -32769 does not fit .b16"),
        ("mov.s32 %r1, 1.5;", "a floating-point literal where a .s32 is expected"),
        ("mov.f32 %f1, 1;", "the integer 1 where a .f32 is expected"),
        ("ld.global.b32 %r1, %rd1;", "an address in brackets expected"),
        ("setp.ge.s321e309 %p1, %r1, %r2;", ".s321e309 is not a type"),
        ("mov %r1, 1;", "mov without a type"),
        ("add.s32.fast %r1, %r1, 1;", ".fast is not a type"),
        ("mov.u32.pred %r1, %tid.x;", "2 types, where mov has one"),
        ("ld.global.b32 %r1, [1e309];", "an address is an integer"),
        ("ld.global.b32 %r1, [0f3F800000];", "an address is an integer"),
        ("mov.f64 %fd1, 0d0000000000000000; ld.global.b32 %r1, [%fd1];", "%fd1 is .f64, which cannot be an address"),
        ("ld.param.u64 %rd1, [nowhere];", "'nowhere' is not declared"),
        ("mov.b64 %rd1, 0; ld.global.v4.b32 {%r1, %r2}, [%rd1];", "a vector of 2 elements, 4 expected"),
        ("mov.b32 %r1, 0; mov.b32 5, %r1;", "the destination is not a register"),
        ("mov.b32 %r1, 0; setp.eq.s32 %r2, %r1, 0;", "%r2 is .b32, not .pred"),
        ("add.s32 %r1, , 1;", "an operand is missing|2 operands, 3 expected"),
        ("bra;", "0 operands, 1 expected"),
        ("mbarrier.init.shared.b64 %r1, 1;", "an address in brackets expected"),
        ("mov.b32 %r1, 0; mbarrier.try_wait.parity.shared.b64 %r2, [%r1], 0;", "%r2 is .b32, not .pred"),
        ("mov.b32 %r1, 0; mbarrier.arrive.shared.b64 _, [%r1], %r2;", "register %r2 is read but never written"),
        (
            "mov.b32 %r1, 0; mov.b64 %rd1, 0; cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1], [%r1];",
            "a tensor map and coordinates in brackets expected",
        ),
        (
            "mov.b32 %r1, 0; mov.b64 %rd1, 0; cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"
            " [%rd1, {%r1, %rd1}], [%r1];",
            "%rd1 is .b64, not .s32",
        ),
        (
            "mov.b32 %r1, 0; mov.b64 %rd1, 0; cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1];",
            "2 operands, 3 expected",
        ),
    ],
)
def test_what_the_assembler_refuses_is_refused_with_its_line(body: str, says: str) -> None:
    with pytest.raises(ParseError, match=rf"PTX line \d+: .*({says})"):
        module(body)


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        (".reg .b32 %x<2147483647>;", "more than 262144 registers"),
        (".reg .b32 %x<200000>; .reg .b32 %y<200000>;", "more than 262144 registers"),
        ("{ .reg .b32 %x<2147483647>; }", "more than 262144 registers"),
        (".reg .b31 %x;", ".b31 is not a register type"),
        (".shared .align 4 .b8 s[999999999999];", "at most 262144"),
        (".local .align 4 .b8 s[999999999999];", "at most 524288"),
        (".shared .align 3 .b8 s[4];", "a power of two"),
        (".shared .align 4 .b8 s[-4];", "has -4 bytes"),
        (".shared .align 4 .q8 s[4];", ".q8 is not a variable type"),
        ("{" * 100 + "}" * 100, "nested scopes"),
    ],
)
def test_declarations_beyond_a_gpu_allocate_nothing(declared: str, says: str) -> None:
    with pytest.raises(ParseError, match=says):
        module(declared)


@pytest.mark.parametrize(
    "text",
    [
        ".version",
        HEAD + ".global .f32 x = 0f1;",
        HEAD + ".global .f16 x = 1e9;",
        HEAD + ".global .b32 x = 0d3FF0000000000000;",
        HEAD + ".visible .entry k(.param " + ".ptr " * 60 + ".x a)\n{ret;}\n",
        HEAD + "}",
        HEAD + ".entry k() { mov.b32 {{}, }; }",
        HEAD + ";;;\n.entry",
    ],
)
def test_text_that_is_not_a_module_is_one_line(text: str) -> None:
    with pytest.raises(ParseError) as raised:
        parse(text)
    assert "\n" not in str(raised.value)


def test_a_register_that_the_compiler_leaves_undefined_may_be_read() -> None:
    parse(HEAD + ".entry k()\n{\n.reg .b32 %r<3>;\n// implicit-def: %r1\nadd.s32 %r2, %r1, 1;\nret;\n}")


def test_code_of_llvm_may_read_what_is_never_written() -> None:
    """As the assembler does; in text of others it is a slip of the pen."""
    body = ".entry k()\n{\n.reg .b32 %r<3>;\nadd.s32 %r2, %r1, 1;\nret;\n}"
    parse(f"//\n// Generated by LLVM NVPTX Back-End\n//\n{HEAD}{body}")
    with pytest.raises(ParseError, match="register %r1 is read but never written"):
        parse(HEAD + body)


def test_a_worker_process_can_send_the_error() -> None:
    error = pickle.loads(pickle.dumps(ParseError("no module", 3)))
    assert (str(error), error.line) == ("PTX line 3: no module", 3)


def test_half_of_a_pack_may_be_left_open_where_nobody_reads_it_otherwise() -> None:
    half = "mov.b32 %r1, 7; mov.b64 %rd1, {%r1, %r2}; mov.b64 {%r3, _}, %rd1;"
    module(half)
    with pytest.raises(ParseError, match="register %r2 is read but never written"):
        module(half + " add.s32 %r3, %r2, 1;")
    with pytest.raises(ParseError, match="register %r1 is read but never written"):
        module("mov.b64 %rd1, {%r1, %r2};")
    with pytest.raises(ParseError, match="register %r2 is read but never written"):
        module("mov.b64 %rd1, 0; st.global.v2.b32 [%rd1], {%r1, %r2}; mov.b32 %r1, 0;")


@given(st.integers(0, 400), st.integers(0, 400), st.text('%@;{}[]().,:|!<>0x-"abdfprsu123\n ', max_size=6))
def test_damaged_text_is_one_line_or_a_module(start: int, length: int, patch: str) -> None:
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
def test_registers_agree_with_types_of_their_size(register: str, wanted: str) -> None:
    if agrees(register, wanted):
        assert BITS[register] == BITS[wanted]
        assert agrees(register, wanted, wider=True)
    elif agrees(register, wanted, wider=True):
        assert BITS[register] > BITS[wanted]
