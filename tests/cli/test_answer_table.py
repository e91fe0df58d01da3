"""Tables of answers fit the terminal: the columns that matter, a row on at most two lines, one unit in the heading."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.cli.answer_table import SELDOM, USUALLY, Column, answer_lines, digits, markdown_lines, quantities
from kernrec.kernel import all_kernels
from kernrec.kernel.library import triton_kernels
from kernrec.util.config_short import LETTERS, SIZES, short_config

ROWS = 3
COLUMNS = [
    Column("rank", "right", ["~1", "~2", "~3"], styles=["unsure", "", ""]),
    Column("kernel", "left", ["conv2d_implicit_gemm_mma"] * ROWS, below=True),
    Column("config", "left", ["128x128x32 w64x32 s3 k4"] * ROWS, below=True),
    quantities("latency", "s", [1.5e-5, 2e-5, 1e-3], [(1e-5, 2e-5), (1e-5, 3e-5), (9e-4, 2e-3)]),
    quantities("energy", "J", [1e-3, 2e-3, None], [(5e-4, 2e-3), (1e-3, 4e-3), None]),
    Column("source", "left", ["prior", "measured", "measured"], styles=["prior", "measured", "measured"]),
    Column("bottleneck", "left", ["DRAM", "tensor", ""], USUALLY),
    Column("time vs fastest", "right", ["0.0 %", "+33 %", "+500 %"], SELDOM),
    Column("energy vs fastest", "right", ["0.0 %", "0.0 %", "-"], SELDOM),
]


@given(width=st.integers(76, 300))
def test_no_line_is_wider_than_the_terminal_and_a_row_is_at_most_two(width: int) -> None:
    lines = answer_lines("title", COLUMNS, width)
    assert max(map(len, lines)) <= width
    body = [line for line in lines if line]
    assert len(body) in (1 + 1 + 1 + ROWS, 1 + 2 + 1 + 2 * ROWS)
    text = "\n".join(lines)
    for needed in ("rank", "latency [us] (90 %)", "energy [mJ] (90 %)", "source", "128x128x32 w64x32 s3 k4"):
        assert needed in text
    assert "energy vs fastest" not in text  # it says nothing in any row


def test_wider_terminals_show_more_the_most_important_first() -> None:
    shown = [answer_lines("t", COLUMNS, width)[1] for width in (80, 120, 200)]
    assert ["bottleneck" in heading for heading in shown] == [False, True, True] or "bottleneck" in shown[0]
    assert "time vs fastest" in shown[2]
    assert len(answer_lines("t", COLUMNS, 200)) == 3 + ROWS


def test_wide_shows_every_column_that_says_something() -> None:
    text = "\n".join(answer_lines("t", COLUMNS, 80, wide=True))
    assert all(column.name in text for column in COLUMNS[:-1])


def test_colors_change_no_letter() -> None:
    plain, colored = (answer_lines("t", COLUMNS, 120, colored=colored) for colored in (False, True))
    assert "\x1b[32mmeasured\x1b[0m" in "\n".join(colored)
    assert [re.sub(r"\x1b\[\d*m", "", line) for line in colored] == plain


def test_markdown_has_a_row_for_each_row_and_escapes_bars() -> None:
    lines = markdown_lines([Column("a", "left", ["x|y", ""]), Column("b", "right", ["1", "2"])])
    assert lines == ["| a | b |", "| --- | ---: |", "| x\\|y | 1 |", "|  | 2 |"]


@given(value=st.floats(1e-6, 1e9))
def test_numbers_have_three_significant_digits_and_no_exponent(value: float) -> None:
    shown = digits(value)
    assert "e" not in shown
    assert float(shown) == pytest.approx(value, rel=0.0051)


def test_one_unit_holds_for_a_column() -> None:
    column = quantities("time", "s", [1e-6, 2e-5, 5e-4])
    assert (column.name, list(column.cells)) == ("time [us]", ["1", "20", "500"])


def test_a_config_in_short_form_is_told_from_every_other_of_its_kernel() -> None:
    assert (
        short_config(
            {"block_m": 128, "block_n": 128, "block_k": 32, "warp_m": 64, "warp_n": 32, "stages": 3, "split_k": 4}
        )
        == "128x128x32 w64x32 s3 k4"
    )
    assert short_config({"stages": 1, "mine": 7, "split_k": 1}) == "mine=7"
    for kernel in (*all_kernels(), *triton_kernels()):
        base = {tunable.name: tunable.values[0] for tunable in kernel.tunables}
        for tunable in kernel.tunables:
            seen = [short_config(base | {tunable.name: value}) for value in tunable.values]
            assert len(set(seen)) == len(seen), (kernel.name, tunable.name)
            assert tunable.name in LETTERS or any(tunable.name in names for _, names in SIZES), tunable.name


def test_letters_of_one_kernel_do_not_collide() -> None:
    for kernel in (*all_kernels(), *triton_kernels()):
        names = {tunable.name for tunable in kernel.tunables}
        joined = {name for _, sizes in SIZES if names.issuperset(sizes) for name in sizes}
        letters = [letter for letter, sizes in SIZES if letter and names.issuperset(sizes)]
        letters += [LETTERS[name][0] for name in names - joined]
        assert len(set(letters)) == len(letters), (kernel.name, sorted(letters))


@given(width=st.integers(40, 120))
def test_what_matters_and_does_not_fit_goes_below_under_its_heading(width: int) -> None:
    source = Column("source", "left", ["learned, energy prior", "prior: may be faster", "recorded"])
    columns = [*COLUMNS[:5], source]
    lines = answer_lines("t", columns, width)
    assert max(map(len, lines)) <= width
    (heading,) = [line for line in lines if "source" in line]
    start = heading.index("source")
    assert sum(line[start:].startswith(cell) for line in lines for cell in source.cells) == ROWS
