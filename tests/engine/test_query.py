"""The engine's query arithmetic: values of release 0.1.0, and arguments that no caller may pass.

Predictions of backends are those of the models of 28 November 2026, computed by the engine.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kernrec.kernel.instructions import OPERATIONS
from kernrec.model.prior.demand import PIPES, QUANTITIES
from kernrec.util import engine
from kernrec.util.engine import query
from tests.engine.query_values import values
from tests.helpers.paths import ROOT

RELEASE = Path(__file__).with_name("query_values.json")


def test_results_equal_those_of_release_0_1_0() -> None:
    stored, computed = json.loads(RELEASE.read_text()), values()
    assert computed.keys() == stored.keys()
    for name, expected in stored.items():
        # Features are in single precision.
        within = 2.0**-23 if name == "features" else 1e-12
        np.testing.assert_allclose(computed[name], expected, rtol=within, atol=1e-12, err_msg=name)


def integers(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def program(code: np.ndarray, index: tuple[int, ...] = (), truths: tuple[int, ...] = ()) -> None:
    """Make a program of two registers for two configs."""
    query.Program(code, np.array(index, dtype=np.int32), np.zeros(2, np.int64), integers(*truths), 2)


ADD, GATHER = OPERATIONS.index("add"), OPERATIONS.index("gather")
TREE = np.zeros(2, np.float32)
REFUSED: dict[str, Callable[[], object]] = {
    "half an instruction": lambda: program(integers(ADD, 0, 1)),
    "an operation that does not exist": lambda: program(integers(99, 0, 1, -1, 0, 0, 0, 0, 0, 0, 0, 0)),
    "a result outside": lambda: program(integers(ADD, 2, 1, -1, 0, 0, 0, 0, 0, 0, 0, 0)),
    "a result that wraps": lambda: program(integers(ADD, 1, 2**63 - 1, -1, 0, 0, 0, 0, 0, 0, 0, 0)),
    "an operand outside": lambda: program(integers(ADD, 0, 1, -1, -1, 0, 0, 0, 0, 0, 0, 0)),
    "a spread of missing combinations": lambda: program(integers(GATHER, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0), index=(0,)),
    "a combination outside": lambda: program(integers(GATHER, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0), index=(7,)),
    "a condition outside": lambda: program(integers(), truths=(1, -2)),
    "trees that are no multiple of eight": lambda: query.Forest(1, 3, 0, np.zeros(0, np.uint16), TREE, 0.0),
    "a split on a missing feature": lambda: query.Forest(
        1, 8, 1, np.full(8, 2, np.uint16), np.zeros(24, np.float32), 0.0
    ),
    "a child outside": lambda: query.CompactTrees(
        integers(0), integers(1, 1), integers(0, 0), np.array([0.0, np.nan], np.float32), TREE, 0.0, 1
    ),
    "no program": lambda: query.Execution(None),
    "no trees": lambda: query.Reader(None, np.zeros((1, 1), np.float32), integers(), integers(), integers()),
    "a tensor that does not exist": lambda: query.Access(
        integers(3), np.zeros((1, 1), np.uint8), integers(), np.zeros(1, np.uint8)
    ),
    "an array of another type": lambda: query.least_seconds(np.zeros((51, 1), np.float32), 1.0, 1.0, np.zeros(1)),
    "quantities without all rows": lambda: query.least_seconds(np.zeros((3, 1)), 1.0, 1.0, np.zeros(1)),
    "a candidate outside": lambda: query.add_times(
        integers(1), integers(0), np.zeros((len(PIPES), 1)), np.zeros((8, 1)), np.zeros((51, 1))
    ),
    "a variant outside": lambda: query.launch_times(
        query.Demand(np.zeros((1, 1, len(QUANTITIES))), False, True), query.Device(*[1.0] * 7, False, 1.0, 1.0), 0,
        integers(-1), np.ones((11, 1)), np.empty((len(PIPES), 1)), np.empty((8, 1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_arguments_that_would_leave_arrays_are_refused(case: str) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        REFUSED[case]()


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001])
def test_no_missing_value_leads_beyond_a_leaf(bits: int) -> None:
    nan, leaf = np.array([np.nan], np.float32), np.array([2.0], np.float32)
    trees = query.CompactTrees(integers(0), integers(0), integers(0), nan, leaf, 0.5, 3)
    sums = np.empty(1)
    trees.predict(np.array([[bits]], np.uint32).view(np.float32), sums)
    assert sums[0] == 2.5


@pytest.mark.parametrize("figure", [0.0, -1.0, 1e300, np.inf, np.nan])
def test_impossible_figures_of_launches_end_in_numbers(figure: float) -> None:
    work, times = np.full((13, 1), figure), np.zeros((8, 1))
    demand = query.Demand(np.full((1, 2, len(QUANTITIES)), figure), True, True)
    device = query.Device(*[1.0] * 7, True, 1.0, 1.0)
    query.launch_times(demand, device, 1, integers(0), work, np.empty((len(PIPES), 1)), times)
    assert times.dtype == np.float64


@pytest.mark.parametrize(("other", "reason"), [(False, "not compiled"), (True, "of another version")])
def test_a_missing_engine_is_reported_in_one_line(
    other: bool, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "kernrec"
    package.mkdir()
    if other:
        (package / "_engine.0123456789abcdef.so").write_bytes(b"of an earlier version")
    code = f"""
import pathlib, sys
from kernrec.util import engine, engine_file
engine.PACKAGE = engine_file.PACKAGE = pathlib.Path({str(package)!r})
from kernrec.cli import main
sys.argv[1:] = ["recommend", "--op", "matmul", "--gpu", "h200"]
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ, cwd=ROOT
    )
    assert done.returncode == 1
    assert reason in done.stderr.splitlines()[-1]
    assert "pip install ." in done.stderr.splitlines()[-1]


def test_doctor_names_the_compiler_of_the_engine() -> None:
    assert engine.state().startswith("compiled by ")
