"""Test which configs are measured, in which order, and how they are compiled ahead, without a GPU."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.gpu import find_gpu
from kernrec.kernel import Space, find_kernel
from kernrec.measure.campaign.compile_queue import CompiledVariant, CompileQueue
from kernrec.measure.campaign.plan import PlannedProblem, Task, plan_library
from kernrec.measure.campaign.results import ProblemHistory
from kernrec.measure.campaign.schedule import Schedule, front_neighborhood, interleaved
from kernrec.measure.protocol import measure_config
from kernrec.op import find_op
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.context import Context
from tests.helpers.rig import KERNEL
from tests.helpers.sharing import measurement

GPU = find_gpu("h200")
MATVEC = find_op("matvec").problem(m=4096, n=1, k=4096)
SOFTMAX = find_op("softmax").problem(rows=64, columns=256)


def test_first_planned_config_is_the_top_recommendation():
    (target,) = plan_library([("gemv", MATVEC)], Context([]).on(GPU))
    best = Recommender([]).recommend("matvec", "h200", MATVEC.dim, query=Query(Objective.LATENCY)).best
    assert target.tasks[0].kernel_name == best.kernel.name
    assert target.tasks[0].config == dict(best.config)


def test_plan_contains_every_config_once():
    (target,) = plan_library([("gemv", MATVEC)], Context([]).on(GPU))
    kernels = [find_kernel(name) for name in ("matvec_rows", "matmul_skinny", "matmul_simt")]
    valid = {kernel.name: int(Space.of(kernel, MATVEC, GPU).at(MATVEC).valid.sum()) for kernel in kernels}
    keys = [task.key for task in target.tasks]
    assert len(keys) == len(set(keys))
    assert Counter(task.kernel_name for task in target.tasks) == valid


def test_limited_plan_begins_with_the_most_promising_config():
    (whole,), (few,) = (plan_library([("gemv", MATVEC)], Context([]).on(GPU), most) for most in (None, 7))
    assert few.tasks == whole.tasks
    assert (whole.most, few.most) == (None, 7)
    assert few.search is not None
    assert few.search.order(np.array([], dtype=int), np.array([]))[0] == 0


def test_random_plan_covers_the_space_with_equal_probability():
    problem = find_op("matmul").problem(m=1024, n=1024, k=1024)
    (whole,) = plan_library([("gemm", problem)], Context([]).on(GPU))
    (drawn,) = plan_library([("gemm", problem)], Context([]).on(GPU), 100, drawn=True)
    assert whole.probability is None
    assert drawn.probability == pytest.approx(100 / len(whole.tasks))
    places = [whole.tasks.index(task) for task in drawn.tasks]
    assert len(set(places)) == 100
    assert 0.35 < np.mean(places) / len(whole.tasks) < 0.65


def _used(ahead: CompileQueue, tasks: Sequence[Task]) -> list[CompiledVariant]:
    codes = []
    for task in tasks:
        deadline = time.monotonic() + 60.0
        while (code := ahead.ready(task)) is None:
            assert time.monotonic() < deadline
            ahead.wait(1.0)
        codes.append(code)
    return codes


def test_compile_error_is_stored_with_the_compilers_message(nvrtc):
    kernel = replace(find_kernel("softmax_rows"), source="this is no CUDA", hash="broken")
    (target,) = plan_library([("softmax", SOFTMAX)], Context([]).on(GPU), 1)
    task = Task(KERNEL[0], "broken", target.tasks[0].config, SOFTMAX, kernel)
    ahead = CompileQueue(GPU.sm, processes=1)
    ahead.want([task])
    (code,) = _used(ahead, [task])
    ahead.stop()
    assert code.error is not None
    assert code.error.startswith("kernel.cu:1: ")


PROBLEM = find_op("reduce").problem(rows=8, columns=256)
TASKS = tuple(Task("own", "hash", {"unroll": unroll}, PROBLEM) for unroll in range(20))


def screened(*, energy: bool) -> Schedule:
    """Return a schedule with a first measurement of each config. Later configs are slower but use less energy."""
    history = ProblemHistory()
    for number, task in enumerate(TASKS):
        subject = {"kernel": task.kernel_name, "kernel_hash": task.kernel_hash, "config": task.config}
        costs = {"latency_s": 1e-3 * (1 + number), "energy_j": 1.0 / (1 + number) if energy else None}
        history.add(measurement(problem=PROBLEM, tier="screen", **subject, **costs))
    return Schedule(PlannedProblem("reduce", PROBLEM, TASKS), history, np.random.default_rng(0))


@pytest.mark.parametrize("with_energy", [True, False])
def test_finalists_are_the_fastest_configs_if_energy_is_unknown(with_energy):
    finals = Counter(item.task.config["unroll"] for item in screened(energy=False).finals(4, with_energy=with_energy))
    assert set(finals) == {0, 1, 2, 3}
    assert set(finals.values()) == {measure_config.FINAL_ROUNDS}


COST = st.integers(1, 10_000).map(lambda microseconds: microseconds * 1e-6)


@given(st.lists(st.tuples(COST, COST), min_size=1, max_size=40), st.integers(1, 8))
def test_finalists_begin_with_pareto_optimal_configs(costs, count):
    latency, energy = zip(*costs, strict=True)
    chosen = front_neighborhood(latency, energy, count)
    assert len(chosen) == len(set(chosen)) <= count

    def beaten(i: int) -> bool:
        return any(t < latency[i] and e < energy[i] for t, e in costs)

    front = [i for i in range(len(costs)) if not beaten(i)]
    assert all(not beaten(i) for i in chosen[: len(front)])


@pytest.mark.parametrize(("count", "rounds"), [(8, 4), (1, 4), (0, 4)])
def test_every_final_round_measures_each_finalist_once(count, rounds):
    order = interleaved(count, rounds, np.random.default_rng(0))
    for turn in range(rounds):
        assert sorted(order[turn * count : (turn + 1) * count]) == list(range(count))
