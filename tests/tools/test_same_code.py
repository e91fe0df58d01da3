"""Which differences between two compilations are the compiler's business, and which are not."""

from dataclasses import replace

import numpy as np
import pytest
from same_code import form, tokens, within_compiler_variation

from kernrec.store import ProfileRow

PTX = """
.visible .entry k(.param .u64 k_param_0) {
 .reg .b32 %r<5>; .reg .b64 %rd<2>;
 ld.param.u64 %rd1, [k_param_0];
 mov.u32 %r1, %tid.x;
 add.s32 %r2, %r1, 4;
 shl.b32 %r3, %r1, 2;
 st.global.u32 [%rd1], %r2; // first
 st.global.u32 [%rd1+4], %r3;
 ret;
}
"""


def test_comments_and_white_space_are_no_tokens() -> None:
    source = 'int a;  // a\n\n/* b\n */ asm("mov // %0;");\n#define X 1\n'
    assert tokens(source) == ["int a;", 'asm("mov // %0;");', "#define X 1"]
    assert tokens(source.replace("// a", "")) == tokens(source)
    assert tokens(source.replace("X 1", "X 2")) != tokens(source)


def test_names_and_the_order_of_arithmetic_do_not_change_the_form() -> None:
    swapped = PTX.replace(
        " add.s32 %r2, %r1, 4;\n shl.b32 %r3, %r1, 2;", " shl.b32 %r9, %r1, 2;\n add.s32 %r2, %r1, 4;"
    )
    assert form(swapped.replace("// first", "")) == form(PTX)


@pytest.mark.parametrize(
    ("old", "new"),
    [("%r1, 4;", "%r1, 8;"), ("add.s32", "sub.s32"), ("ret;", "bar.sync 0;\n ret;"), ("[%rd1+4]", "[%rd1+8]")],
)
def test_another_instruction_or_constant_changes_the_form(old: str, new: str) -> None:
    assert form(PTX.replace(old, new)) != form(PTX)


def test_the_order_of_stores_changes_the_form() -> None:
    lines = PTX.splitlines()
    first = next(i for i, line in enumerate(lines) if "st.global" in line)
    lines[first], lines[first + 1] = lines[first + 1], lines[first]
    assert form("\n".join(lines)) != form(PTX)


METRICS = ("barriers", "global.a.read_sectors", "issue", "issue.alu", "issue.fma32", "lanes")
COUNTS = np.array([[0, 1], [0, 256], [800, 2500], [300, 40], [0, 2048], [25600, 80000]], dtype=np.float64)
ROW = ProfileRow("k", "h", "c", 86, 0, "k", {}, 104, 0, 0, 0, "one", "nvrtc 13.5", METRICS, ("block", "trips"), COUNTS)


def changed(metric: str, term: int, by: float, **fields: int) -> ProfileRow:
    counts = COUNTS.copy()
    counts[METRICS.index(metric), term] += by
    return replace(ROW, counts=counts, **fields)  # type: ignore[arg-type]


def test_other_moves_before_the_loop_are_the_compilers_business() -> None:
    assert within_compiler_variation(ROW, changed("issue.alu", 0, 50, registers=112))


@pytest.mark.parametrize(
    ("metric", "by"), [("issue.fma32", 1), ("global.a.read_sectors", -1), ("barriers", 1), ("issue.alu", 500)]
)
def test_other_arithmetic_or_memory_is_a_difference(metric: str, by: float) -> None:
    assert not within_compiler_variation(ROW, changed(metric, 1, by))


def test_so_are_far_more_registers_and_other_loops() -> None:
    assert not within_compiler_variation(ROW, replace(ROW, registers=200))
    assert not within_compiler_variation(ROW, replace(ROW, terms=("block", "tiles")))
