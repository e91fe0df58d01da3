"""Test which configs are measured, in which order, and how they are compiled ahead, without a GPU."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from kernrec.gpu import find_gpu
from kernrec.kernel import Space, find_kernel
from kernrec.measure.campaign.compile_queue import CompiledVariant, CompileQueue
from kernrec.measure.campaign.plan import PlanOptions, Task, plan_library
from kernrec.op import find_op
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.context import Context
from kernrec.store import ProfileTable
from tests.helpers.rig import KERNEL

GPU = find_gpu("h200")
MATVEC = find_op("matvec").problem(m=4096, n=1, k=4096)
SOFTMAX = find_op("softmax").problem(rows=64, columns=256)


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


def half_of(table: ProfileTable) -> ProfileTable:
    """Return every other variant of a table."""
    columns = ("variant_keys", "registers", "spill_bytes", "stack_bytes", "static_smem_bytes", "counts")
    return replace(table, **{name: getattr(table, name)[::2] for name in columns})


def _used(ahead: CompileQueue, tasks: Sequence[Task]) -> list[CompiledVariant]:
    """Return the compiled variants of the tasks, and wait for each in turn."""
    codes = []
    for task in tasks:
        deadline = time.monotonic() + 60.0
        while (code := ahead.ready(task)) is None:
            assert time.monotonic() < deadline
            ahead.wait(1.0)
        codes.append(code)
    return codes


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
