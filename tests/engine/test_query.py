"""Test that the engine's query functions give the values of release 0.1.0 and reject invalid arguments. Backend
predictions and the H200's power limits are those of 29 November 2026."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from kernrec.kernel.expression import OPERATIONS, Expression, literal
from kernrec.model.analytical.demand import PIPES, QUANTITIES
from kernrec.model.analytical.spread import SOURCES
from kernrec.util import engine, engine_file
from kernrec.util.engine import query
from tests.engine.query_values import values
from tests.helpers.engine_objects import candidates, costs, integers, launch
from tests.helpers.paths import ROOT


def test_query_results_equal_release_0_1_0():
    stored, computed = json.loads(Path(__file__).with_name("query_values.json").read_text()), values()
    assert computed.keys() == stored.keys()
    for name, expected in stored.items():
        # Features have single precision.
        within = 2.0**-23 if name == "features" else 1e-12
        np.testing.assert_allclose(computed[name], expected, rtol=within, atol=1e-12, err_msg=name)


def evaluate_node(*node: object) -> None:
    query.evaluated(Expression("x", frozenset(), node, False), {}, 1)


def compact_trees(levels: int = 1, **changed: Sequence[int]) -> object:
    """Create trees: without changes, one with a single split on feature 0 at 0."""
    parts: dict[str, Sequence[int]] = {
        "nodes": [3], "inner": [0b10000000], "column": [0], "cut": [0], "cut_count": [1], "cuts": [0], "leaf": [0, 1],
        "low": [0], "step": [1],
    }  # fmt: skip
    kinds = ["u2", "u1", "u1", "u1", "u2", "f4", "u1", "f4", "f4"]
    return query.Trees(0.5, levels, *map(np.array, (parts | changed).values(), kinds))


def quantities(count: int) -> np.ndarray:
    return np.empty((51, count))


TREE = np.zeros(2, np.float32)
REFUSED: dict[str, Callable[[], object]] = {
    "an operation that does not exist": lambda: evaluate_node(99, 1),
    "an operation of the engine": lambda: evaluate_node(OPERATIONS["spread"], 1),
    "too few operands": lambda: evaluate_node(OPERATIONS["add"], (OPERATIONS["number"], 1)),
    "a tree that is no tuple": lambda: evaluate_node(OPERATIONS["negation"], 7),
    "a digit outside": lambda: query.Space({"a": integers(1, 2)}, np.array([[2]]), {}, {}, [], [], 9),
    "a tunable outside": lambda: query.Space({"a": integers(1, 2)}, None, {}, {}, [], [], 9).groups([1]),
    "a launch without waits": lambda: launch(figures=[literal(1), None, None, None]),
    "a launch without blocks": lambda: launch(figures=[None, None, literal(1), None]),
    "a launch of another space": lambda: launch(variant=integers(0, 0, 0)),
    "a variant of a launch outside": lambda: launch(variant=integers(0, 1)),
    "work of other configs": lambda: launch(given=np.ones((10, 3))),
    "a row outside": lambda: costs(integers(0, 2)),
    "a position outside": lambda: costs(integers(0, 1)).fill(0, 1, integers(1), np.ones((7, 2)), quantities(1)),
    "a position of launches outside": lambda: costs(integers(0, 1)).launches(0, 2),
    "costs of other shapes": lambda: query.pareto_front(np.ones(2), np.ones(1)),
    "points outside": lambda: candidates(*np.ones((2, 1, 2))).recommended(
        (1, 1, np.inf, np.inf, -1), 1, True, True, False, SOURCES),
    "a kernel outside": lambda: costs(integers(0, 1)).fill(1, 0, integers(0), np.ones((7, 2)), quantities(1)),
    "too few leaves": lambda: query.Trees(1, 3, 0, np.zeros(0, np.uint16), TREE, 0.0),
    "missing values that a reader does not know": lambda: query.Reader(
        query.Trees(1, 1, 1, np.zeros(1, np.uint16), np.arange(3, dtype="f4"), 0.0), TREE[:1, None], *[integers()] * 3
    ),
    "a split on a missing feature": lambda: query.Trees(1, 8, 1, np.full(8, 2, np.uint16), np.zeros(24, "f4"), 0.0),
    "a child outside": lambda: compact_trees(inner=[0b11000000]),
    "a split without a cut": lambda: compact_trees(cut=[1]),
    "a huge place": lambda: query.Reader(compact_trees(), TREE[:1, None], integers(0), integers(2**63 - 1), integers()),
    "sizes of no problem": lambda: query.MoreItems([], 1, 0, 0, 16),
    "a size of no dimension": lambda: query.MoreItems([1.0, 2.0], 1, 2, 0, 16),
    "a bound without features of its sizes": lambda: query.Bound((), {}, np.ones((6, 1)), np.ones((1, 1)), 1, 1),
    "no space": lambda: query.Problem(None, {}, {}, False, 0.0, 0.0),
    "no trees": lambda: query.Reader(None, np.zeros((1, 1), np.float32), integers(), integers(), integers()),
    "no tensor": lambda: query.Access(integers(3), np.zeros((1, 1), np.uint8), integers(), np.zeros(1, np.uint8)),
    "an array of another type": lambda: query.least_seconds(np.zeros((51, 1), np.float32), 1.0, 1.0, np.zeros(1)),
    "quantities without all rows": lambda: query.least_seconds(np.zeros((3, 1)), 1.0, 1.0, np.zeros(1)),
    "a variant outside": lambda: query.launch_times(
        np.zeros((1, 1, len(QUANTITIES))), query.Device(*[1.0] * 7, False, 1.0, 1.0), 0,
        integers(-1), np.ones((11, 1)), np.empty((len(PIPES), 1)), np.empty((8, 1)),
    ),
}  # fmt: skip


def test_space_without_configs_has_no_runnable_config():
    space = query.Space({"a": integers(1)}, np.empty((0, 1), np.int64), {}, {}, [], [literal(1)], 9)
    query.Problem(space, {}, {}, False, 1.0, 1.0).test(np.empty(0, np.bool_))


def test_costs_of_two_problems_computed_together_equal_separate_costs():
    alone, both = costs(integers(0, 1)), costs(integers(0, 1), 2)
    np.testing.assert_array_equal(both.nominal, np.tile(alone.nominal, 2))
    of_second = quantities(2)
    both.fill(0, 2, integers(0, 1), np.ones((7, 2)), of_second)
    of_first = quantities(2)
    alone.fill(0, 0, integers(0, 1), np.ones((7, 2)), of_first)
    np.testing.assert_array_equal(of_second[:31], of_first[:31])


@pytest.mark.parametrize("case", REFUSED)
def test_arguments_that_index_outside_arrays_are_refused(case):
    with pytest.raises((ValueError, TypeError, RuntimeError, IndexError)):
        REFUSED[case]()


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001])
def test_nan_input_at_a_leaf_does_not_read_beyond_the_tree(bits):
    trees = compact_trees(levels=3, nodes=[1], inner=[0], column=[], cut=[], leaf=[2])
    sums = np.empty(1)
    trees.predict(np.array([[bits]], np.uint32).view(np.float32), sums)
    assert sums[0] == 2.5


@pytest.mark.parametrize("figure", [0.0, -1.0, 1e300, np.inf, np.nan])
def test_nan_infinite_or_negative_launch_inputs_do_not_change_other_launches(figure):
    rates = [*[1.0] * (len(QUANTITIES) - 1), 1e6]  # warps take turns
    demand = np.stack([np.full((2, len(QUANTITIES)), figure), [rates] * 2])
    device = query.Device(*[1.0] * 7, True, 1.0, 1.0)
    alone, beside = np.empty((8, 1)), np.empty((8, 2))
    work = np.array([[figure, 0.0 if row == 8 else 1.0] for row in range(13)])  # 8: `overlapped`
    query.launch_times(demand, device, 1, integers(1), work[:, 1:].copy(), np.empty((len(PIPES), 1)), alone)
    query.launch_times(demand, device, 1, integers(0, 1), work, np.empty((len(PIPES), 2)), beside)
    np.testing.assert_array_equal(beside[:, 1:], alone)


@pytest.mark.parametrize(("other", "reason"), [(False, "not compiled"), (True, "of another version")])
def test_missing_engine_is_reported_in_one_line(other, reason, tmp_path, monkeypatch):
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


def test_engine_of_another_python_is_not_loaded(tmp_path, monkeypatch):
    package, loaded = tmp_path / "kernrec", []
    for folder in (package, tmp_path / "engine"):
        folder.mkdir()
    (tmp_path / "engine" / "query.cpp").write_text("int x;")
    for module in (engine, engine_file):
        monkeypatch.setattr(module, "PACKAGE", package)
    monkeypatch.setattr("importlib.util.spec_from_file_location", lambda _, path: loaded.append(path.suffixes[-2:]))
    suffixes = ([".cpython-311", ".so"], [".abi3", ".so"])
    for suffix in suffixes:
        monkeypatch.setattr(engine_file, "_SUFFIX", "".join(suffix))
        (package / engine_file.file_name(tmp_path)).touch()
    for suffix in suffixes:
        monkeypatch.setattr(engine_file, "_SUFFIX", "".join(suffix))
        with pytest.raises(AssertionError):
            engine.module.__wrapped__()
    assert loaded == [*suffixes]


def test_doctor_names_the_engine_compiler():
    assert engine.state().startswith("compiled by ")
