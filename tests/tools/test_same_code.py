"""Test which differences between two compilations count as the compiler's variation."""

from dataclasses import replace

import numpy as np
import pytest
from same_code import tokens, within_compiler_variation

from kernrec.store import ProfileRow


def test_comments_and_white_space_are_not_tokens():
    source = 'int a;  // a\n\n/* b\n */ asm("mov // %0;");\n#define X 1\n'
    assert tokens(source) == ["int a;", 'asm("mov // %0;");', "#define X 1"]
    assert tokens(source.replace("// a", "")) == tokens(source)
    assert tokens(source.replace("X 1", "X 2")) != tokens(source)


METRICS = ("barriers", "global.a.read_sectors", "issue", "issue.alu", "issue.fma32", "lanes")
COUNTS = np.array([[0, 1], [0, 256], [800, 2500], [300, 40], [0, 2048], [25600, 80000]], dtype=np.float64)
ROW = ProfileRow("k", "h", "c", 86, 0, "k", {}, 104, 0, 0, 0, "one", "nvrtc 13.5", METRICS, ("block", "trips"), COUNTS)


def changed(metric: str, term: int, by: float, **fields: int) -> ProfileRow:
    counts = COUNTS.copy()
    counts[METRICS.index(metric), term] += by
    return replace(ROW, counts=counts, **fields)  # type: ignore[arg-type]


def test_different_moves_before_the_loop_are_ignored():
    assert within_compiler_variation(ROW, changed("issue.alu", 0, 50, registers=112))


@pytest.mark.parametrize(
    ("metric", "by"), [("issue.fma32", 1), ("global.a.read_sectors", -1), ("barriers", 1), ("issue.alu", 500)]
)
def test_different_arithmetic_or_memory_access_is_a_difference(metric, by):
    assert not within_compiler_variation(ROW, changed(metric, 1, by))


def test_registers_and_loops_count_as_differences():
    assert not within_compiler_variation(ROW, replace(ROW, registers=200))
    assert not within_compiler_variation(ROW, replace(ROW, terms=("block", "tiles")))
