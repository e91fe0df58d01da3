"""What is measured, in which order, and compiled ahead: kernels of the library, real compilations, no GPU."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernrec.compile import NoCompilerError
from kernrec.compile.nvrtc import compiler
from kernrec.gpu import find_gpu
from kernrec.kernel import Space, find_kernel
from kernrec.measure.campaign import compile_queue
from kernrec.measure.campaign.campaign import Campaign
from kernrec.measure.campaign.compile_queue import CompiledVariant, CompileQueue
from kernrec.measure.campaign.ingest import ingest
from kernrec.measure.campaign.journal import Journal, journal_path
from kernrec.measure.campaign.plan import PlannedProblem, PlanOptions, Task, plan_library
from kernrec.measure.campaign.results import CampaignSettings, MeasuringEffort
from kernrec.measure.worker.worker_client import WorkerClient
from kernrec.model.search.expected_improvement import FIRST_COLD, ExpectedImprovement
from kernrec.op import find_op
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.context import Context
from kernrec.store import Database, ProfileTable, Stack
from tests.helpers.fault_injection import OPENING
from tests.helpers.refusals import Refuses
from tests.helpers.rig import KERNEL

GPU = find_gpu("h200")
MATVEC = find_op("matvec").problem(m=4096, n=1, k=4096)
SOFTMAX = find_op("softmax").problem(rows=64, columns=256)


@pytest.fixture
def nvrtc() -> None:
    try:
        compiler()
    except NoCompilerError as error:
        pytest.skip(str(error))


def test_first_planned_config_is_the_top_recommendation() -> None:
    (target,) = plan_library([("gemv", MATVEC)], GPU, Context([]), PlanOptions())
    best = Recommender([]).recommend("matvec", "h200", MATVEC.dim, query=Query(Objective.LATENCY)).best
    assert target.tasks[0].kernel_name == best.kernel.name
    assert target.tasks[0].config == dict(best.config)


def test_plan_contains_every_config_once() -> None:
    (target,) = plan_library([("gemv", MATVEC)], GPU, Context([]), PlanOptions())
    kernels = [find_kernel(name) for name in ("matvec_rows", "matmul_skinny", "matmul_simt")]
    valid = {kernel.name: int(Space.of(kernel, MATVEC, GPU).valid(MATVEC).sum()) for kernel in kernels}
    keys = [task.key for task in target.tasks]
    assert len(keys) == len(set(keys))
    assert Counter(task.kernel_name for task in target.tasks) == valid


def test_lower_effort_plans_the_most_promising_configs_first() -> None:
    (whole,), (few,) = (plan_library([("gemv", MATVEC)], GPU, Context([]), PlanOptions(most)) for most in (None, 7))
    assert few.tasks == whole.tasks
    assert (whole.most, few.most) == (None, 7)
    assert few.search is not None
    assert few.search.order(np.array([], dtype=int), np.array([]))[0] == 0


def test_sample_is_spread_over_the_space_and_states_its_probabilities() -> None:
    problem = find_op("matmul").problem(m=1024, n=1024, k=1024)
    (whole,) = plan_library([("gemm", problem)], GPU, Context([]), PlanOptions())
    (drawn,) = plan_library([("gemm", problem)], GPU, Context([]), PlanOptions(100, drawn=True))
    assert whole.probability is None
    assert drawn.probability == pytest.approx(100 / len(whole.tasks))
    places = [whole.tasks.index(task) for task in drawn.tasks]
    assert len(set(places)) == 100
    assert 0.35 < np.mean(places) / len(whole.tasks) < 0.65


def test_problem_that_exceeds_gpu_memory_is_refused(refuses: Refuses) -> None:
    problem = find_op("matmul").problem(m=40_000, n=40_000, k=40_000)
    refuses(lambda: plan_library([("large", problem)], find_gpu("t4"), Context([]), PlanOptions()))


def test_kernel_without_a_profile_is_planned_in_random_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stack, "profiles", lambda *_: {})
    first, same, other = (
        plan_library([("gemv", MATVEC)], GPU, Context([]), PlanOptions(20, seed=seed))[0].tasks for seed in (1, 1, 2)
    )
    assert first == same != other


def test_search_without_predictions_starts_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stack, "profiles", lambda *_: {})
    (target,) = plan_library([("gemv", MATVEC)], GPU, Context([]), PlanOptions())
    assert target.search is not None
    assert target.search.batch(0) == FIRST_COLD


def test_configs_without_a_profile_are_predicted_from_profiled_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,) = plan_library([("gemv", MATVEC)], GPU, Context([]), PlanOptions())
    profiles = Stack.profiles

    def of_a_half(stack: Stack, kernel: str, kernel_hash: str, sm: int) -> dict[int, ProfileTable]:
        return {launch: half_of(table) for launch, table in profiles(stack, kernel, kernel_hash, sm).items()}

    monkeypatch.setattr(Stack, "profiles", of_a_half)
    (part,) = plan_library([("gemv", MATVEC)], GPU, Context([]), PlanOptions())
    predicted, completed = predictions_of(whole), predictions_of(part)
    assert set(completed) == set(predicted)
    exact = sum(completed[key] == seconds for key, seconds in predicted.items())
    assert 0.2 * len(predicted) < exact < 0.9 * len(predicted)
    errors = [np.log(completed[key] / seconds) for key, seconds in predicted.items()]
    assert np.std(errors) < 0.5 * np.std(np.log(list(predicted.values())))


def predictions_of(planned: PlannedProblem) -> dict[tuple[str, str, str], float]:
    """Predicted seconds by the key of the task."""
    assert isinstance(planned.search, ExpectedImprovement)
    assert planned.search.space.predicted_s is not None
    keys = (task.key for task in planned.tasks)
    return dict(zip(keys, planned.search.space.predicted_s.tolist(), strict=True))


def half_of(table: ProfileTable) -> ProfileTable:
    """Every other variant of a table."""
    columns = ("variant_keys", "registers", "spill_bytes", "stack_bytes", "static_smem_bytes", "counts")
    return replace(table, **{name: getattr(table, name)[::2] for name in columns})


def test_rows_of_library_kernels_store_the_compiled_tunables(nvrtc: None, tmp_path: Path) -> None:
    database = tmp_path / "k.duckdb"
    (target,) = plan_library([("softmax", SOFTMAX)], GPU, Context([]), PlanOptions(3))
    ahead = CompileQueue(GPU.sm, processes=2)
    with Journal(journal_path(database)) as journal:
        client, settings = WorkerClient(OPENING), CampaignSettings("s", MeasuringEffort(None, 0))
        campaign = Campaign(client, [target], journal, settings, compile_queue=ahead)
        campaign.run()
        ingest(journal, database)
    with Database.open(database) as opened:
        rows = opened.rows("measurement", outcome="ok")
    assert len(rows) == 3
    for row in rows:
        assert row["compiler"] == compiler()
        assert len(str(row["cubin_hash"])) == 16
        assert 8 <= np.int64(row["registers"]) <= 255
        assert "--gpu-architecture=sm_90" in str(row["compiler_flags"])
        assert row["smem_bytes"] is not None


def _used(ahead: CompileQueue, tasks: Sequence[Task]) -> list[CompiledVariant]:
    """The codes of tasks, each used as soon as it is there."""
    codes = []
    for task in tasks:
        deadline = time.monotonic() + 60.0
        while (code := ahead.ready(task)) is None:
            assert time.monotonic() < deadline
            ahead.wait(1.0)
        codes.append(code)
    return codes


def test_urgent_code_is_compiled_before_unused_code(nvrtc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A problem whose time is over leaves codes behind that are compiled and never asked for."""
    monkeypatch.setattr(compile_queue, "VARIANTS_AHEAD", 2)
    (first,), (second,) = (plan_library([("", p)], GPU, Context([]), PlanOptions(6)) for p in (SOFTMAX, MATVEC))
    ahead = CompileQueue(GPU.sm, processes=1)
    try:
        ahead.want(first.tasks)
        _used(ahead, first.tasks[:1])
        ahead.want(second.tasks[:6])
        assert [code.error for code in _used(ahead, second.tasks[:6])] == [None] * 6
    finally:
        ahead.stop()


def test_compile_error_is_stored_with_the_compilers_message(nvrtc: None) -> None:
    kernel = replace(find_kernel("softmax_rows"), source="this is no CUDA", hash="broken")
    (target,) = plan_library([("softmax", SOFTMAX)], GPU, Context([]), PlanOptions(1))
    task = Task(KERNEL[0], "broken", target.tasks[0].config, SOFTMAX, kernel)
    ahead = CompileQueue(GPU.sm, processes=1)
    ahead.want([task])
    (code,) = _used(ahead, [task])
    ahead.stop()
    assert code.error is not None
    assert code.error.startswith("kernel.cu:1: ")
