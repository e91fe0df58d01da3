"""Test the analysis of a user's kernel from its source to the stored answer."""

import shutil
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest

from kernrec.compile.pool import Processors, compile_many
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import find_gpu
from kernrec.kernel import Space, find_kernel
from kernrec.measure.collect import collect
from kernrec.measure.request import CollectRequest, WantedProblem
from kernrec.recommender import Answer, Objective, Query, Recommender, Request
from kernrec.recommender.analyze.kernel import analyze
from kernrec.recommender.analyze.profile_configs import ProfilingOptions
from kernrec.recommender.candidates import CandidateSet
from kernrec.recommender.context import Context
from kernrec.recommender.explain.breakdown import explain
from kernrec.recommender.explain.report import difference, explainable, pick_config, what_if
from kernrec.recommender.notes import of_measurements
from tests.helpers.kernel_code import written_kernel
from tests.helpers.paths import beside
from tests.helpers.recording import measured_row, store_rows

SOURCE = beside(__file__, "kernel.cu")
SPEC = beside(__file__, "kernel.toml")
GPU = find_gpu("rtx4090")
pytestmark = pytest.mark.usefixtures("compiled_here")

ONE = ProfilingOptions(processes=1)
COSTS = ("latency_s", "latency_low_s", "latency_high_s", "energy_j", "power_w")
INCORRECT = dict.fromkeys(COSTS) | {"outcome": "incorrect"}


def ask(database: Path, query: Query | None = None, name: str = "rowsum", gpu: str = GPU.name, **shape: Any) -> Answer:
    return Recommender([database]).answer(Request(gpu, None, name, shape.get("shape", {}), query=query or Query()))


def own_candidates(database: Path, power_limit_w: float | None = None) -> CandidateSet:
    request = Request(GPU.name, kernel="rowsum", query=Query(Objective.LATENCY, power_limit_w=power_limit_w))
    return explainable(request, Context([database]))[0]


@pytest.fixture(scope="module")
def folder(nvrtc, tmp_path_factory):
    return tmp_path_factory.mktemp("rowsum")


@pytest.fixture(scope="module")
def kernel(folder):
    return written_kernel(folder, SOURCE, SPEC)


@pytest.fixture(scope="module")
def database(folder, kernel):
    path = folder / "mine" / "own.duckdb"
    seen: list[tuple[int, int]] = []
    whole = analyze(
        kernel, kernel.definition.problem(), GPU, path, None, ProfilingOptions(progress=lambda *done: seen.append(done))
    )
    assert (whole.profiled, whole.cached, whole.failed) == (8, 0, ())
    assert seen[-1] == (8, 8)
    return path


def test_second_analysis_profiles_nothing(kernel, database):
    again = analyze(kernel, kernel.definition.problem(), GPU, database)
    assert (again.profiled, again.cached) == (0, 8)


@pytest.mark.every(2)
def test_endless_compilation_is_abandoned_after_two_configs(folder, tmp_path, monkeypatch):
    """Six one-line macros expand to 10^6 terms. Reporting the error must not compile again."""
    macros = ["#define M0(x) x", *(f"#define M{i}(x) {' + '.join([f'M{i - 1}(x)'] * 10)}" for i in range(1, 7))]
    source = "\n".join([*macros, SOURCE.replace("sum += x[", "sum += M6(threadIdx.x) + x[")])
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Processors, "compile", lambda self, jobs: compile_many(jobs, 1, timeout_s=1.0))
    kernel = written_kernel(tmp_path, source, SPEC)
    seen: list[tuple[int, int]] = []
    options = ProfilingOptions(processes=1, progress=lambda *done: seen.append(done))
    with pytest.raises(KernrecError, match=r"^rowsum\.cu: compiling took longer than 1 s$"):
        analyze(kernel, kernel.definition.problem(), GPU, tmp_path / "own.duckdb", None, options)
    assert seen == [(1, 8)]  # the second config's timeout ended the analysis


def test_interrupted_analysis_resumes(kernel, tmp_path):
    def stop(done: int, total: int) -> None:
        if done >= 3:
            raise KeyboardInterrupt

    path = tmp_path / "own.duckdb"
    with pytest.raises(KeyboardInterrupt):
        analyze(kernel, kernel.definition.problem(), GPU, path, None, ProfilingOptions(progress=stop))
    whole = analyze(kernel, kernel.definition.problem(), GPU, path)
    assert whole.cached >= 3
    assert whole.cached + whole.profiled == 8


def test_new_emulator_version_profiles_all_configs_again(kernel, tmp_path, monkeypatch):
    path, problem = tmp_path / "own.duckdb", kernel.definition.problem()
    first = analyze(kernel, problem, GPU, path)
    assert (first.cached, first.profiled) == (0, 8)
    assert analyze(kernel, problem, GPU, path).profiled == 0
    monkeypatch.setattr("kernrec.recommender.analyze.profile_configs.COUNTS_VERSION", 3)
    again = analyze(kernel, problem, GPU, path)
    assert (again.cached, again.profiled) == (0, 8)
    assert again.answer.best.latency_s == first.answer.best.latency_s


REFUSED = """
#if STRIDE == 8 && !defined(ANYHOW)
#error no stride of eight
#endif
"""


def test_refused_config_is_not_tried_again(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNREC_CACHE", str(tmp_path / "cache"))
    source = REFUSED + SOURCE.replace("part[threadIdx.x] = sum", "part[2 * blockDim.x - 65] = sum")
    kernel = written_kernel(tmp_path, source, SPEC)
    problem = kernel.definition.problem(rows=64, width=256)
    tried: list[str] = []
    for name in ("kernrec.compile.together.compile_job", "kernrec.profile.profile_user_kernel._sample"):
        function = resolve_name(name)

        def counted(*arguments: object, name: str = name, function: Callable[..., object] = function) -> object:
            tried.append(name)
            return function(*arguments)

        monkeypatch.setattr(name, counted)

    def failures() -> dict[str, str]:
        whole = analyze(kernel, problem, GPU, tmp_path / "own.duckdb", None, ONE)
        assert whole.answer.best.config == {"threads": 64, "stride": 1}
        return {" ".join(map(str, failure.config.values())): failure.message for failure in whole.failed}

    first = failures()
    assert len(set(tried)) == 2
    assert len(first) == 7
    assert first["32 8"] == "rowsum.cu:3: #error directive: no stride of eight"
    assert "shared memory, which has" in first["128 1"]
    tried.clear()
    assert failures() == first
    assert not tried
    kernel = written_kernel(tmp_path, SOURCE, SPEC)  # a corrected source is another kernel
    assert not analyze(kernel, problem, GPU, tmp_path / "own.duckdb", None, ONE).failed


def test_shipped_kernel_is_profiled_once_for_all_problems(folder, tmp_path):
    kernel = find_kernel("transpose_tiled")
    problem = kernel.definition.problem("f32", rows=1024, columns=2048)
    space = Space(kernel, GPU.sm, GPU.limits, "f32", problem.layout)
    only = [space.config(int(row)) for row in space.at(problem).rows[:2]]
    path = tmp_path / "own.duckdb"
    whole = analyze(kernel, problem, GPU, path, None, ProfilingOptions(only=only, processes=1))
    assert (whole.profiled, whole.answer.sampled_blocks) == (2, (0, 0))
    other = kernel.definition.problem("f32", rows=4096, columns=4096)
    assert analyze(kernel, other, GPU, path, None, ProfilingOptions(only=only)).profiled == 0


def with_rows(database: Path, folder: Path, rows: list[dict[str, Any]]) -> Path:
    return store_rows(Path(shutil.copy(database, folder / "measured.duckdb")), rows)


def measurement(answer: Answer, rank: int, factor: float) -> dict[str, Any]:
    return measured_row(GPU.name, answer.recommendations[rank], answer.problem, factor)


@pytest.fixture(scope="module")
def predicted(database):
    """Return the answer with all eight configs at the default limit."""
    return ask(database, Query(Objective.LATENCY, top=8, power_limit_w=GPU.tdp_w, each_config=True))


def test_measured_time_is_kept_and_scales_unmeasured_configs(kernel, database, predicted, tmp_path):
    path = with_rows(database, tmp_path, [measurement(predicted, rank, 1.5) for rank in (2, 3, 4)])
    for answer in (
        ask(path, Query(Objective.LATENCY, top=8, power_limit_w=GPU.tdp_w)),
        analyze(kernel, predicted.problem, GPU, path, Query(Objective.LATENCY, top=8)).answer,
    ):
        by_config = {tuple(c.config.values()): c for c in answer.recommendations if c.power_limit_w == GPU.tdp_w}
        for rank, before in enumerate(predicted.recommendations):
            if (now := by_config.get(tuple(before.config.values()))) is None:
                continue  # the answer has the config at another power limit
            ratio = now.latency_s.value / before.latency_s.value
            if rank in (2, 3, 4):
                assert (now.source, now.energy_j.source) == ("measured", "measured")
                assert now.measurement is not None
                stated = (now.sessions, now.measured_at, now.device)
                assert stated == (1, "2026-03-01T12:00:00Z", "NVIDIA GeForce RTX 4090")
                assert ratio == pytest.approx(1.5)
            else:
                assert (now.source, now.measurement) == ("predicted", None)
                assert 1.2 < ratio < 1.5
        assert any("scaled to 3 configs measured here" in note for note in answer.notes)


def test_failed_config_is_skipped_and_reported(database, predicted, tmp_path):
    path = with_rows(database, tmp_path, [measurement(predicted, 0, 1.0) | INCORRECT])
    answer = ask(path, Query(Objective.LATENCY, top=8))
    assert answer.candidates == 7
    assert predicted.best.config not in [c.config for c in answer.recommendations]
    assert any("1 config left out: failed on this GPU (1 incorrect)" in note for note in answer.notes)


def test_explanation_shows_measured_and_predicted_time(database, predicted, tmp_path, refuses):
    wrong = measurement(predicted, 7, 1.0) | INCORRECT
    rows = [measurement(predicted, 2, 1.5), measurement(predicted, 3, 1.5), wrong]
    candidates = own_candidates(with_rows(database, tmp_path, rows))
    before = predicted.recommendations[2]
    subject = explain(candidates, pick_config(candidates, before.config, Objective.LATENCY, 0))
    recommendation = subject.recommendation
    assert (recommendation.source, recommendation.energy_j.source) == ("measured", "measured")
    assert recommendation.measurement is not None
    assert recommendation.latency_s.value == pytest.approx(1.5 * before.latency_s.value)
    assert subject.analytical["latency_s"] == pytest.approx(before.latency_s.value)
    assert subject.analytical["energy_j"] == pytest.approx(before.energy_j.value)
    assert sum(subject.energy_j.values()) == pytest.approx(recommendation.energy_j.value)
    assert subject.figures["time"] == recommendation.latency_s.value
    # Gains compare only predictions, so that a slow measurement does not make other configs look better.
    position = int(np.flatnonzero(candidates.latency_s[0] == recommendation.latency_s.value)[0])
    changes = what_if(candidates, position, objective=Objective.LATENCY)
    gains = [change.time for change in changes if change.source == "predicted"]
    assert min(gains) >= predicted.best.latency_s.value / before.latency_s.value - 1.001
    kernel_candidates = candidates.kernels[0]
    assert list(of_measurements(kernel_candidates, predicts=False)) == [
        "rowsum: 1 config left out: failed on this GPU (1 incorrect)"
    ]
    refuses(lambda: pick_config(candidates, predicted.recommendations[7].config, Objective.LATENCY, 0))


def test_suggested_change_has_the_energy_and_traffic_of_the_new_config(database):
    candidates = own_candidates(database)
    slow = pick_config(candidates, {"stride": 8, "threads": 32}, Objective.ENERGY, 0)
    subject = explain(candidates, slow)
    recommendation = subject.recommendation
    assert sum(subject.energy_j.values()) == pytest.approx(recommendation.energy_j.value)
    (launch,) = subject.launches
    assert (launch.blocks, launch.threads, launch.shared_bytes) == (65536, 32, 128)
    assert launch.occupancy == pytest.approx(launch.resident_blocks / GPU.limits.max_warps_per_sm)
    assert max(launch.time_s, key=lambda name: launch.time_s[name]) == recommendation.bottleneck
    read = next(access for access in launch.accesses if (access.buffer, access.what) == ("x", "read"))
    assert read.sectors_per_request == pytest.approx(32)
    assert read.useful == pytest.approx(1 / 8)
    changes = what_if(candidates, slow, objective=Objective.ENERGY)
    assert changes == sorted(changes, key=lambda change: -change.gain)
    first = next(change for change in changes if change.what == "stride 8 -> 1")
    other = explain(candidates, pick_config(candidates, {"stride": 1, "threads": 32}, Objective.ENERGY, 0))
    assert first.energy == pytest.approx(other.recommendation.energy_j.value / recommendation.energy_j.value - 1)
    assert first.changes["DRAM traffic"] == pytest.approx(difference(subject, other)["DRAM traffic"])
    assert first.changes["DRAM traffic"] < -0.5


@pytest.mark.parametrize(("old", "new", "says"), [
    ('"threads <= width"', '"threads > width"', "'threads > width' excludes every config on rtx4090"),
    ("stride = {", "strid = {", "tunable strid changes nothing: rowsum.cu does not mention STRID"),
    ('"i32 width"]', '"i32 width", "i32 rows"]', "takes 3 arguments, not 4"),
    ('grid = ["rows"]', 'grid = ["1", "rows"]', r"'1 <= \(rows\) <= 65535' excludes every config"),
])  # fmt: skip
def test_inconsistent_spec_is_refused_in_one_line(folder, tmp_path, old, new, says):
    assert old in SPEC
    kernel = written_kernel(tmp_path, SOURCE, SPEC.replace(old, new))
    with pytest.raises(UsageError, match=says) as raised:
        analyze(kernel, kernel.definition.problem(), GPU, tmp_path / "own.duckdb", None, ONE)
    assert "\n" not in str(raised.value)


TEXTURE_SOURCE = """
extern "C" __global__ void soften(cudaTextureObject_t image, cudaSurfaceObject_t out) {
    int x = blockIdx.x * BX + threadIdx.x, y = blockIdx.y;
    surf2Dwrite(tex2D<float2>(image, x + 0.25f, y + 0.5f).y, out, 4 * x, y);
}
"""


def test_texture_and_surface_kernel_is_analyzed_but_not_measured(tmp_path, refuses):
    kernel = written_kernel(tmp_path, TEXTURE_SOURCE, beside(__file__, "texture_spec.toml"))
    analysis = analyze(kernel, kernel.definition.problem(), GPU, tmp_path / "own.duckdb", None, ONE)
    assert analysis.profiled == 2
    best = analysis.answer.best
    moved = 256 * 128 * (2 + 4)
    assert best.latency_s.value > 0
    assert kernel.definition.problem().bytes == moved
    request = CollectRequest(
        [WantedProblem("soften", kernel.definition.problem())], tmp_path / "own.duckdb", kernel=kernel
    )
    refuses(lambda: collect(request))


def test_implementation_of_a_known_op_needs_no_problem_definition(folder, tmp_path):
    """The source is typical C++, with a mangled kernel name and a template."""
    spec = """
    name = "mine"
    op = "reduce"
    dtypes = ["f32"]
    layouts = ["row"]
    source = "add.cu"
    tunables = { unroll = { values = [1, 4] } }
    [[launch]]
    entry = "reduce"
    grid = ["rows"]
    block = ["32"]
    arguments = ["x", "y", "i32 columns"]
    """
    kernel = written_kernel(tmp_path, beside(__file__, "known_op.cu"), spec)
    problem = kernel.definition.problem(rows=4096, columns=4096)
    whole = analyze(kernel, problem, GPU, tmp_path / "own.duckdb", None, ONE)
    assert (whole.profiled, whole.failed) == (2, ())
    # Reading 64 MiB takes at least bytes / bandwidth. A warp per row with loads in flight comes close to this time.
    least_s = problem.bytes / GPU.memory_bandwidth
    assert least_s < whole.answer.best.latency_s.value < 2 * least_s
