"""The prior's core as Python and compiled: equal results, and no compiled core of other source is loaded."""

import importlib.machinery
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernrec.gpu import find_gpu
from kernrec.model.prior import dram_traffic, launch_time, power
from kernrec.model.prior.compiled import FOLDER, SOURCES, choose, file_name
from kernrec.model.prior.core import CONCURRENT, OVERLAPPED, PREFETCH
from kernrec.model.prior.demand import BETWEEN_GROUPS, IN_TURN, PIPES, PORT, QUANTITIES, Demand
from kernrec.model.prior.dram_traffic import TensorAccess
from kernrec.model.prior.launch_time import LaunchWork
from kernrec.model.prior.power import PowerModel
from kernrec.model.vendor import compact_trees
from tests.helpers.process import environment

FORMS = choose(FOLDER, "python"), choose(FOLDER, None)
"""Without a C compiler both are Python: tests/test_wheel.py holds that with one there is a compiled core."""
GPUS = st.sampled_from(("t4", "a100-sxm4-80gb", "rtx4090", "h200-sxm", "b200", "rtx5090"))
SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
draws = st.integers(0, 2**32 - 1).map(np.random.default_rng)


def in_both_forms(module: object, results: Callable[[], list[np.ndarray]]) -> None:
    """Asserts that a module's function has the same results, to the last bit, in both forms of the core."""
    with pytest.MonkeyPatch.context() as patch:
        by_form = []
        for form in FORMS:
            patch.setattr(module, "core", lambda form=form: form)
            by_form.append(results())
    for plain, built in zip(*by_form, strict=True):
        np.testing.assert_array_equal(plain, built)


@settings(max_examples=40, deadline=None)
@given(draws, GPUS)
def test_launches_take_the_same_time_in_both_forms(draw: np.random.Generator, name: str) -> None:
    count, variants, loops = int(draw.integers(1, 40)), 7, int(draw.integers(0, 3))
    rates = 10.0 ** draw.uniform(-1, 5, (loops + 1, len(QUANTITIES), variants))
    rates[:, draw.choice([BETWEEN_GROUPS, IN_TURN, PIPES.index("f64")], 2)] = 0.0
    demand = Demand(("block", "k", "l")[: loops + 1], tuple(rates))
    work = LaunchWork.empty(count, loops)
    work.variants[:] = draw.integers(0, variants, count)
    work.rows[:] = np.ceil(10.0 ** draw.uniform(0, 5, work.rows.shape))
    work.rows[CONCURRENT : PREFETCH + 1] = draw.integers((1, 1, 0), (9, 17, 4), (count, 3)).T
    work.rows[OVERLAPPED] = np.where(draw.random(count) < 0.5, np.nan, draw.random(count))
    gpu = find_gpu(name)

    def times() -> list[np.ndarray]:
        return list(vars(launch_time.launch_time(gpu, demand, work)).values())

    in_both_forms(launch_time, times)


@settings(max_examples=30, deadline=None)
@given(draws, st.integers(0, 4))
def test_launches_move_the_same_bytes_in_both_forms(draw: np.random.Generator, steps: int) -> None:
    count, tensors = 20, "abcd"
    axes = {name: draw.choice(["m", "n", "k"], draw.integers(0, 4)).tolist() for name in tensors[:3]}
    access = TensorAccess(draw.choice(["m", "n", "k"], steps).tolist(), axes, "cd", draw.choice(list("abcd"), 1))
    extents = [draw.integers(1, 200, count) for _ in range(steps)]
    blocks = np.prod([np.ones(count), *extents], axis=0)
    together = draw.integers(1, 5000, count).astype(np.float64)
    sizes = [*(10.0 ** draw.uniform(3, 9, 3)), 10.0 ** draw.uniform(3, 9, count)]

    def moved() -> list[np.ndarray]:
        return [dram_traffic.dram_bytes(access, extents, sizes, blocks, together, 4e7)]

    in_both_forms(dram_traffic, moved)


@settings(max_examples=30, deadline=None)
@given(draws, GPUS)
def test_power_limits_leave_the_same_clock_in_both_forms(draw: np.random.Generator, name: str) -> None:
    model = PowerModel.for_gpu(find_gpu(name))
    core_s, dram_s = 10.0 ** draw.uniform(-7, -1, (2, 50))
    core_j, dram_j = core_s * model.tdp_w * draw.uniform(0, 5, 50), dram_s * model.tdp_w * draw.uniform(0, 0.5, 50)
    launches = np.stack([core_s, dram_s, np.full(50, 5e-6), core_j, dram_j])
    limits_w = draw.uniform(model.power_min_w, model.tdp_w, 3)
    points = [(float(limit_w), draw.choice([None, 0.7 * model.boost_hz])) for limit_w in limits_w]
    in_both_forms(power, lambda: model.limit_launches(launches, points).columns())


@settings(max_examples=30, deadline=None)
@given(draws, st.integers(0, 6), st.integers(1, 30))
def test_candidates_reach_the_same_leaves_in_both_forms(draw: np.random.Generator, levels: int, rows: int) -> None:
    trees, features, inner = 12, 5, 2**levels - 1
    nodes = 2 * inner + 1
    node = np.arange(trees * nodes)
    split = node % nodes < inner
    left = np.where(split, 2 * node + 1 - node // nodes * nodes, node)
    threshold = np.where(split, draw.normal(size=len(node)), np.nan).astype(np.float32)
    leaf = draw.normal(size=len(node)).astype(np.float32)
    start, feature = np.arange(trees) * nodes, draw.integers(0, features, len(node))
    trained = compact_trees.CompactTrees(start, left, feature, threshold, leaf, 0.5, levels)
    matrix = draw.normal(size=(rows, features)).astype(np.float32)
    in_both_forms(compact_trees, lambda: [trained.predict(matrix)])


def copied(folder: Path) -> Path:
    """The sources of the core in a folder."""
    for name in SOURCES:
        shutil.copy(FOLDER / name, folder / name)
    return folder


def test_a_compiled_core_of_other_source_is_not_loaded_and_a_line_says_so(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    (folder / f"_core.0123456789abcdef{SUFFIX}").write_bytes(b"of an earlier version")
    chosen = choose(folder, None)
    assert not chosen.compiled
    assert "of other source" in chosen.state
    code = "import pathlib, sys; from kernrec.model.prior import compiled; compiled.FOLDER = pathlib.Path(sys.argv[1])"
    code += "; compiled.core(); compiled.core()"
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment(KERNREC_CORE=""))
    (line,) = done.stderr.splitlines()
    assert "of other source than core.py" in line
    assert "install kernrec again" in line


def test_an_edit_of_any_source_asks_for_another_compiled_core(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    expected = {file_name(folder)}
    assert expected == {file_name()}
    for name in SOURCES:
        (folder / name).write_text((folder / name).read_text() + "\n# edited\n")
        expected.add(file_name(folder))
    assert len(expected) == 1 + len(SOURCES)


def test_a_compiled_core_that_cannot_be_loaded_is_left_aside(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    (folder / file_name(folder)).write_bytes(b"no library")
    chosen = choose(folder, None)
    assert not chosen.compiled
    assert "cannot be loaded" in str(chosen.warning)


def test_the_environment_can_ask_for_python() -> None:
    assert FORMS[0].state == "Python (KERNREC_CORE is set)"
    assert not FORMS[0].compiled


def test_rows_of_the_core_are_those_of_the_demand() -> None:
    from kernrec.model.prior import core

    names = "f64", "shared memory", "port", "sectors", "barriers", "core_j", "between", "between_groups", "alone"
    rows = core.F64, core.SHARED, core.PORT, core.SECTORS, core.BARRIERS, core.CORE_J, core.BETWEEN
    assert (*rows, core.BETWEEN_GROUPS, core.ALONE) == tuple(map(QUANTITIES.index, names))
    assert QUANTITIES[core.IN_TURN :] == ("in_turn",)
    assert len(PIPES) == core.PIPES == PORT
