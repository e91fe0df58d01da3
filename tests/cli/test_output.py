"""Test the layout of terminal output: widths, numbers, units of quantities, and progress."""

import io
import os
import re
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.cli.output import PIPE_WIDTH, Column, column_lines, digits, print_line, text_width
from kernrec.cli.progress import Lines, Steps
from kernrec.cli.quantity import fraction, hertz, watts
from kernrec.kernel import all_kernels
from kernrec.kernel.library import triton_kernels
from kernrec.measure.campaign.results import Progress
from kernrec.store.measurement import Measurement
from kernrec.util.human import LETTERS, SIZES, short_config
from tests.helpers.command import run_here
from tests.helpers.sharing import USUAL

COLUMNS = [("rank", "right"), ("kernel", "left"), ("energy vs occupancy", "right"), ("config", "left")]
CONFIG = " ".join(f"tunable_{number}={number}" for number in range(12))
ROWS = [("~1", "matmul_simt", "-36 %", CONFIG), ("~2", "matmul_mma", "+1 %", CONFIG)]


def text_columns(columns, rows):
    return [Column(name, side, [row[number] for row in rows]) for number, (name, side) in enumerate(columns)]


@given(width=st.integers(60, 400))
def test_wrapped_lines_fit_the_terminal_and_keep_every_word(width):
    title = "a title that is longer than sixty characters, as those of convolutions are"
    lines = column_lines(title, text_columns(COLUMNS, ROWS), width)
    assert max(map(len, lines)) <= width
    shown = " ".join(lines).split()
    assert all(shown.count(word) >= 1 for row in ROWS for cell in row for word in cell.split())


def test_wide_problem_wraps_after_a_comma():
    problem = f"attention[{','.join(f'dimension_{number}=8' for number in range(6))}]f32,bhsd"
    title, rest, *_ = column_lines(f"{problem} on a card", text_columns(COLUMNS[:2], []), 90)
    assert title.endswith("=8,")
    assert title + rest == f"{problem} on a card"


def test_wrapped_cell_stays_under_its_heading():
    lines = column_lines(None, text_columns(COLUMNS[:3], [row[:3] for row in ROWS]), 32)
    assert lines[1].index("energy") + len("energy vs occupancy") == len(lines[4])


def test_pipe_output_is_100_columns_wide(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    read, write = os.pipe()
    with open(read, "rb"), open(write, "w") as pipe:
        assert text_width(pipe) == PIPE_WIDTH == 100
    monkeypatch.setenv("COLUMNS", "132")
    assert text_width() == 132


@pytest.mark.parametrize("columns", ["80", None], ids=["80 columns", "pipe"])
@pytest.mark.parametrize("command", [
    "list gpus", "list ops", "list kernels", "list workloads", "doctor",
    "recommend --op softmax --gpu a100 --shape rows=4096,columns=4096", "recommend --op softmax --gpu a100",
    "explain --op softmax --gpu a100 --shape rows=4096,columns=4096",
    "recommend --op softmax --gpu a100,h200,l40s --shape rows=4096,columns=4096",
])  # fmt: skip
def test_every_command_fits_its_terminal_or_100_columns(command, columns, tmp_path):
    variables = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    variables |= {"COLUMNS": columns} if columns else {}
    done = run_here(*command.split(), home=tmp_path, variables=variables, in_terminal=columns is not None)
    assert done.stdout
    assert max(map(len, done.stdout.splitlines())) <= int(columns or PIPE_WIDTH)
    if command in ("list gpus", "list kernels"):  # each row of these tables is one line
        heading, _, *rows = done.stdout.splitlines()
        left = [place.start() for place in re.finditer(r"(?<= {2})[a-z]", heading)] if command == "list kernels" else []
        assert all(row[start - 1] == " " and row[start].strip() for row in rows for start in left[:-1])
        assert all(rows)


@given(value=st.floats(1e-6, 1e9))
def test_numbers_have_three_significant_digits_and_no_exponent(value):
    shown = digits(value)
    assert "e" not in shown
    assert float(shown) == pytest.approx(value, rel=0.0051)


def test_short_config_is_unique_within_its_kernel():
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


TEXT = "  time: latency 3.42 ms, issue 3.42 ms, fma 2.12 ms"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_wide_line_wraps(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    narrow, pipe = Terminal(), io.StringIO()
    print_line(TEXT, narrow)
    print_line(TEXT, pipe)
    lines = narrow.getvalue().splitlines()
    assert max(map(len, lines)) <= 30
    assert [line[: len(line) - len(line.lstrip())] for line in lines] == ["  ", *["      "] * (len(lines) - 1)]
    assert not any(line.lstrip().startswith("ms") for line in lines)  # a unit stays next to its number
    assert " ".join(narrow.getvalue().split()) == " ".join(TEXT.split())
    assert pipe.getvalue() == narrow.getvalue()


def test_quantity_accepts_its_unit():
    assert watts("--max-power", "250W") == watts("--max-power", " 0.25 kw ") == 250.0
    assert hertz("--clock", "1.41GHz") == hertz("--clock", "1410MHz") == 1.41e9
    assert fraction("--max-slowdown", "3%") == 0.03


def test_quantity_without_a_unit_is_refused_with_an_example(refuses):
    refuses(lambda text: watts("--max-power", text), ["250", "W", "", "-3W", "3 %", "1e3e3W", "nanW"])


def measurement(**arguments: object) -> Measurement:
    return Measurement.from_columns(USUAL | {"config": {"a": 1}, "tier": "screen"} | arguments)


def step(done: int, **row: object) -> Progress:
    return Progress("card", "layer", "screen", done, 10, measurement=measurement(**row))


def test_progress_line_shows_percentage_best_time_and_failures(capsys):
    lines = Lines(every_s=0.0)
    lines.show(step(1, latency_s=2e-3))
    lines.show(step(2, latency_s=1e-3))
    lines.show(step(3, outcome="timeout"))
    assert capsys.readouterr().err.splitlines()[-1] == "card: layer, screen 3/10, best 1 ms, 1 timeout"


def test_progress_log_has_a_line_per_measurement_stage_and_per_note(capsys):
    lines = Lines(every_s=3600.0)
    for done in range(1, 6):
        lines.show(step(done))
    lines.show(Progress("card", "layer", "", 0, 0, note="energy is not measured: because"))
    lines.show(Progress("card", "layer", "coarse", 1, 2, measurement=measurement()))
    captured = capsys.readouterr()
    assert captured.out == ""
    first, note, second = captured.err.splitlines()
    assert "screen 1/10" in first
    assert note == "note: energy is not measured: because"
    assert "coarse 1/2" in second


def test_quick_step_prints_no_progress(capsys):
    with Steps("checking"):
        pass
    assert capsys.readouterr().err == ""


def test_remaining_time_is_shown_only_if_the_total_is_known():
    steps = Steps("reading")
    assert "reading, 0 s so far" in steps.text()
    steps.step("training", 1.0, 4.0)
    assert steps.text().startswith("training, about ")
    assert steps.text().endswith(" left")


def test_long_step_is_reported_while_it_runs(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with Steps("merging", first_s=0.01):
        while "merging" not in stream.getvalue():
            time.sleep(0.005)
    assert stream.getvalue().endswith("\n")
