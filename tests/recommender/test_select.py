"""Test selection by bounds and objective, Pareto fronts, and rows of distinct configs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kernrec.cli.app import run
from kernrec.gpu import find_gpu
from kernrec.model.analytical.spread import SOURCES
from kernrec.profile.triton_call import kernel_of_triton
from kernrec.profile.triton_call_file import TritonCall
from kernrec.recommender import Objective, Query
from kernrec.recommender.analyze.kernel import analyze
from kernrec.recommender.analyze.profile_configs import ProfilingOptions
from kernrec.recommender.select import bounds_of, pareto_front, reachable
from kernrec.training.scores import hypervolume
from tests.helpers.engine_objects import candidates
from tests.helpers.paths import ROOT


def selected(
    latency: list[list[float]], energy: list[list[float]], query: Query, top: int | None = None
) -> list[tuple[int, int]]:
    every = candidates(np.array(latency, dtype=float), np.array(energy, dtype=float))
    bounds = bounds_of(replace(query, top=top or query.top))
    rows, *_ = reachable(every.recommended(bounds, 0, True, True, False, SOURCES), query, "a GPU")
    return [(point, position) for _, position, _, point, *_ in rows]


def test_each_config_is_selected_once_at_its_best_operating_point():
    costs = [[1, 2, 3], [2, 2.5, 3]], [[9, 5, 7], [4, 3, 8]]
    assert selected(*costs, Query(Objective.ENERGY)) == [(1, 1), (1, 0), (0, 2)]
    assert selected(*costs, Query(Objective.LATENCY, top=2)) == [(0, 0), (0, 1)]
    assert selected(*costs, Query(Objective.EDP, top=1)) == [(1, 1)]


def test_pareto_front_covers_all_configs_and_operating_points():
    assert selected([[1, 2, 3], [2, 2.5, 3]], [[9, 5, 7], [4, 3, 8]], Query()) == [(0, 0), (1, 0), (1, 1)]


def test_recommendations_respect_bounds_and_unreachable_bounds_are_refused(refuses):
    costs = [[1.0, 2.0, 4.0]], [[400.0, 400.0, 100.0]]
    assert selected(*costs, Query(Objective.LATENCY, max_power_w=250.0)) == [(0, 1), (0, 2)]
    assert selected(*costs, Query(Objective.ENERGY, max_slowdown=1.0, top=1)) == [(0, 0)]
    refuses(lambda: selected(*costs, Query(max_power_w=20.0)))
    refuses(lambda: selected(*costs, Query(source="measured")))


costs = st.integers(1, 60).flatmap(
    lambda n: st.tuples(*(arrays(np.float64, n, elements=st.integers(1, 20).map(float)) for _ in range(2)))
)


@given(costs)
def test_front_contains_exactly_the_undominated_points(both):
    x, y = both
    front = pareto_front(x, y)
    beaten = [
        any((x[j] <= x[i] and y[j] < y[i]) or (x[j] < x[i] and y[j] <= y[i]) for j in range(len(x)))
        for i in range(len(x))
    ]
    assert {(x[i], y[i]) for i in front} == {(x[i], y[i]) for i in range(len(x)) if not beaten[i]}
    assert len(front) == len({(x[i], y[i]) for i in front})


@given(costs)
def test_front_runs_from_the_fastest_to_the_lowest_energy(both):
    x, y = both
    front = pareto_front(x, y)
    assert x[front[0]] == x.min()
    assert y[front[-1]] == y.min()
    assert (np.diff(x[front]) > 0).all()
    assert (np.diff(y[front]) < 0).all()


@given(costs)
def test_front_has_the_hypervolume_of_all_points(both):
    x, y = both
    front = pareto_front(x, y)
    # Costs are whole numbers, so that counting unit cells gives the hypervolume.
    cells = sum(any(x[i] <= a and y[i] <= b for i in range(len(x))) for a in range(1, 21) for b in range(1, 21))
    assert hypervolume(x, y, (21.0, 21.0)) == hypervolume(x[front], y[front], (21.0, 21.0)) == cells


@given(costs, st.integers(2, 8))
def test_trimmed_front_keeps_its_ends_and_order(both, count):
    x, y = both
    front = pareto_front(x, y)
    trimmed = [position for _, position in selected([x.tolist()], [y.tolist()], Query(top=count))]
    assert len(trimmed) == min(count, len(front))
    assert trimmed[0] == front[0]
    assert trimmed[-1] == front[-1]
    assert list(trimmed) == [i for i in front if i in set(trimmed)]


pytestmark = pytest.mark.usefixtures("compiled_here")

PRODUCT = {"m": 2048, "n": 2048, "k": 2048}
ARGUMENTS = {"raster", "split_k", "stream", "block_tiles"}
"""Tunables of matmul that do not change the machine code."""
COMMAND = ["recommend", "--op", "matmul", "--dtype", "f16", "--shape", "m=2048,n=2048,k=2048"]


@pytest.mark.parametrize("gpu", ["rtx3090", "rtx4090", "h200"])
def test_shown_rows_differ_in_code_or_in_more_than_one_tunable(recommender, gpu):
    answer = recommender.recommend("matmul", gpu, PRODUCT, "f16", "nt", Query(Objective.LATENCY))
    for number, row in enumerate(answer.recommendations):
        for other in answer.recommendations[number + 1 :]:
            if other.kernel.name == row.kernel.name:
                changed = [name for name, value in row.config.items() if other.config[name] != value]
                close = abs(other.latency_s.value / row.latency_s.value - 1) < 0.005
                assert set(changed) - ARGUMENTS
                assert len(changed) > 1 or not close
    assert any(row.alike for row in answer.recommendations)


@pytest.mark.slow
def test_triton_configs_with_equal_code_and_grid_are_one_row(tmp_path):
    """A function without a loop compiles to the same code for any `num_stages`."""
    pytest.importorskip("triton", reason="needs the extra `triton`")
    kernels = ROOT / "tests" / "triton" / "tuned_kernels.py"
    rows = {"dtype": "f32", "shape": [1 << 22]}
    configs = [{"BLOCK": block, "num_stages": stages} for block in (16, 1024) for stages in (1, 2, 4)]
    arguments = {"x": rows, "y": rows, "n": 1 << 22, "WIDTH": 1}
    kernel, _ = kernel_of_triton(TritonCall(kernels, "add_rows", arguments, ["ceil_div(n, BLOCK)"], configs))
    options = ProfilingOptions(folder=kernels.parent, processes=1)
    problem, query = kernel.definition.problem(), Query(Objective.LATENCY)
    answer = analyze(kernel, problem, find_gpu("a100"), tmp_path / "own.duckdb", query, options).answer
    assert [(row.config["block"], row.alike) for row in answer.recommendations] == [(1024, 2), (16, 2)]


def test_note_on_a_possibly_faster_config_has_the_command_to_measure_it(capsys):
    assert run([*COMMAND, "--layout", "nt", "--gpu", "h100-sxm-96gb", "--objective", "latency"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "predicted: may be faster" in out
    assert "kernrec collect --op matmul --shape m=2048,n=2048,k=2048 --dtype f16 --layout nt" in out


@pytest.mark.parametrize("options", [["--max-power", "250W"], ["--top", "1", "--power-limit", "300W"]])
def test_every_row_shows_its_power_limit_but_the_title_does_not(capsys, options):
    # An earlier title was "default power limit 450 W" over a row that is valid only at 236 W.
    assert run([*COMMAND, "--gpu", "rtx4090", *options]) == 0
    out = capsys.readouterr().out
    title = " ".join(out[: out.index("rank")].split())
    assert "450 W" not in title
    assert "default" not in title
    assert "power limit [W]" in out


def test_locked_clock_is_in_the_title_and_every_row(capsys):
    assert run([*COMMAND, "--gpu", "rtx4090", "--clock", "1500MHz", "--top", "2"]) == 0
    out = capsys.readouterr().out
    assert "clock locked at 1.5 GHz" in " ".join(out.split())
    assert "locked clock [MHz]" in out


def test_learned_baseline_ranks_above_an_unmeasured_kernel(recommender, capsys):
    answer = recommender.recommend("matmul", "h200", {"m": 4096, "n": 4096, "k": 4096}, "bf16", "nt", Query("latency"))
    baseline = answer.leading_baseline
    assert baseline is not None
    assert baseline.source != "transferred"
    assert baseline.latency_s < answer.best.latency_s.value * answer.best.unsure
    assert (
        run(
            [
                *COMMAND[:3], "--dtype", "bf16", "--shape", "m=4096,n=4096,k=4096", "--gpu", "h200", "--objective",
                "latency",
            ]
        )
        == 0
    )  # fmt: skip
    out = capsys.readouterr().out
    assert out.index(baseline.name) < out.index("~1")
