"""Tables fit the terminal, whatever its width, and lose nothing."""

from hypothesis import given
from hypothesis import strategies as st

from kernrec.cli.table import table_lines

COLUMNS = [("rank", "right"), ("kernel", "left"), ("energy vs occupancy", "right"), ("config", "left")]
CONFIG = " ".join(f"tunable_{number}={number}" for number in range(12))
ROWS = [("~1", "matmul_simt", "-36 %", CONFIG), ("~2", "matmul_mma", "+1 %", CONFIG)]


def test_in_a_pipe_a_row_is_a_line() -> None:
    lines = table_lines("title", COLUMNS, ROWS, None)
    assert len(lines) == 1 + 2 + len(ROWS)
    assert all(row[1] in line and line.endswith(CONFIG) for row, line in zip(ROWS, lines[3:], strict=True))


@given(width=st.integers(60, 400))
def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost(width: int) -> None:
    title = "a title that is longer than sixty characters, as those of convolutions are"
    lines = table_lines(title, COLUMNS, ROWS, width)
    assert max(map(len, lines)) <= width
    shown = " ".join(lines).split()
    assert all(shown.count(word) >= 1 for row in ROWS for cell in row for word in cell.split())


def test_what_goes_below_stands_under_its_heading() -> None:
    lines = table_lines(None, COLUMNS[:3], [row[:3] for row in ROWS], 32)
    assert lines[1].index("energy") + len("energy vs occupancy") == len(lines[4])


def test_a_row_with_nothing_below_has_no_line_there() -> None:
    assert "" not in table_lines(None, [("name", "left"), ("aliases", "left")], [("t4", ""), ("l4", "")], 80)
    narrow = table_lines(None, [("name", "left"), ("aliases", "left")], [("t4", ""), ("l4", "ada " * 30)], 40)
    assert narrow[3:5] == ["t4", ""]


def test_a_table_without_rows_has_its_heading() -> None:
    assert table_lines(None, [("name", "left")], [], 80)[0] == "name"
