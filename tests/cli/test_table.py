"""Tables fit the terminal, whatever its width, and lose nothing."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.cli.table import PIPE_WIDTH, table_lines, text_width
from tests.helpers.command import run_here

COLUMNS = [("rank", "right"), ("kernel", "left"), ("energy vs occupancy", "right"), ("config", "left")]
CONFIG = " ".join(f"tunable_{number}={number}" for number in range(12))
ROWS = [("~1", "matmul_simt", "-36 %", CONFIG), ("~2", "matmul_mma", "+1 %", CONFIG)]


def test_without_a_width_a_row_is_a_line() -> None:
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


def test_a_problem_that_is_wider_than_the_terminal_goes_on_behind_a_comma() -> None:
    problem = f"attention[{','.join(f'dimension_{number}=8' for number in range(6))}]f32,bhsd"
    title, rest, *_ = table_lines(f"{problem} on a card", COLUMNS[:2], [], 90)
    assert title.endswith("=8,")
    assert title + rest == f"{problem} on a card"


def test_what_goes_below_stands_under_its_heading() -> None:
    lines = table_lines(None, COLUMNS[:3], [row[:3] for row in ROWS], 32)
    assert lines[1].index("energy") + len("energy vs occupancy") == len(lines[4])


def test_a_row_with_nothing_below_has_no_line_there() -> None:
    assert "" not in table_lines(None, [("name", "left"), ("aliases", "left")], [("t4", ""), ("l4", "")], 80)
    long = [("name", "left"), ("rows", "right"), ("word", "left")]
    narrow = table_lines(None, long, [("t4", "1", ""), ("l4", "2", "a" * 38)], 40)
    assert narrow[3:5] == ["t4       1", ""]


@given(width=st.integers(40, 120))
def test_long_text_goes_on_within_its_column(width: int) -> None:
    lines = table_lines(None, [("name", "left"), ("dims", "left"), ("sm", "right")], [("t4", "ada " * 40, "75")], width)
    assert max(map(len, lines)) <= width
    start = lines[0].index("dims")
    assert all(not line[:start].strip() and line[start:].startswith("ada") for line in lines[3:])
    assert lines[2].endswith("75")
    assert len(lines) > 3


def test_a_pipe_is_a_hundred_characters_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    read, write = os.pipe()
    with open(read, "rb"), open(write, "w") as pipe:
        assert text_width(pipe) == PIPE_WIDTH == 100
    monkeypatch.setenv("COLUMNS", "132")
    assert text_width() == 132


def test_a_table_without_rows_has_its_heading() -> None:
    assert table_lines(None, [("name", "left")], [], 80)[0] == "name"


@pytest.mark.parametrize("columns", ["80", None], ids=["80 columns", "pipe"])
@pytest.mark.parametrize(
    "command",
    [
        "gpus",
        "ops",
        "kernels",
        "doctor",
        "recommend --op softmax --gpu a100 --shape rows=4096,columns=4096",
        "recommend --op softmax --gpu a100",
        "explain --op softmax --gpu a100 --shape rows=4096,columns=4096",
        "compare --op softmax --gpu a100,h200,l40s --shape rows=4096,columns=4096",
    ],
)
def test_no_command_prints_wider_than_its_terminal_or_a_hundred_characters(
    command: str, columns: str | None, tmp_path: Path
) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    variables |= {"NO_COLOR": "1"} | ({"COLUMNS": columns} if columns else {})
    done = run_here(*command.split(), home=tmp_path, variables=variables, in_terminal=columns is not None)
    assert done.stdout
    assert max(map(len, done.stdout.splitlines())) <= int(columns or PIPE_WIDTH)
    if command in ("gpus", "kernels"):  # a row is a line, each value under its heading
        heading, _, *rows = done.stdout.splitlines()
        left = [place.start() for place in re.finditer(r"(?<= {2})[a-z]", heading)] if command == "kernels" else []
        assert all(row[start - 1] == " " and row[start].strip() for row in rows for start in left[:-1])
        assert all(rows)
