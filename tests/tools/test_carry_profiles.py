"""Profiles are carried over to a rearranged source only where it compiles to the same code."""

from dataclasses import replace

import pytest

from kernrec import paths
from kernrec.kernel import find_kernel
from kernrec.profile.profile_library import variants_of
from kernrec.store import ProfileRow, read_profile_rows
from tools.carry_profiles import carried_over, form, tokens

KERNEL = find_kernel("softmax_rows")
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


def rows_of_one_variant() -> list[ProfileRow]:
    rows = read_profile_rows(paths.shipped("db/prebuilt") / "softmax_rows.profile.parquet")
    variant = next(v for v in variants_of(KERNEL, (80,)) if v.dtype == "f16")
    return [row for row in rows if (row.variant_key, row.sm) == (variant.key, 80)]


def test_a_changed_comment_carries_everything_over_without_compiling() -> None:
    rows = rows_of_one_variant()
    renamed = replace(KERNEL, source=f"// more\n{KERNEL.source}", hash="new")
    outcome = carried_over(KERNEL, renamed, rows)
    assert (outcome.compiled, outcome.differing) == (0, 0)
    assert [row.columns() for row in outcome.rows] == [{**row.columns(), "kernel_hash": "new"} for row in rows]


def test_a_changed_specification_carries_nothing_over() -> None:
    rows = rows_of_one_variant()
    other = replace(KERNEL, spec={**KERNEL.spec, "min_sm": 80}, hash="new")
    assert carried_over(KERNEL, other, rows).rows == []


def test_what_only_the_cost_of_counts_depends_on_carries_over() -> None:
    rows = rows_of_one_variant()
    launches = [{**launch, "prefetch": "1"} for launch in KERNEL.spec["launch"]]
    other = replace(KERNEL, spec={**KERNEL.spec, "launch": launches, "constraints": []}, hash="new")
    outcome = carried_over(KERNEL, other, rows)
    assert (len(outcome.rows), outcome.compiled) == (len(rows), 0)
