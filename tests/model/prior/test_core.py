"""The prior's core as Python and compiled: equal results."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernrec.gpu import find_gpu
from kernrec.model.prior import dram_traffic, launch_time, power
from kernrec.model.prior.core import CONCURRENT, OVERLAPPED, PREFETCH
from kernrec.model.prior.demand import BETWEEN_GROUPS, IN_TURN, PIPES, PORT, QUANTITIES, Demand
from kernrec.model.prior.dram_traffic import TensorAccess
from kernrec.model.prior.launch_time import LaunchWork
from kernrec.model.prior.power import PowerModel
from tests.helpers.core_forms import draws, in_both_forms
from tests.helpers.depth import few_examples

GPUS = st.sampled_from(("t4", "a100-sxm4-80gb", "rtx4090", "h200-sxm", "b200", "rtx5090"))


@few_examples(40)
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


@few_examples(30)
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


@few_examples(30)
@given(draws, GPUS)
def test_power_limits_leave_the_same_clock_in_both_forms(draw: np.random.Generator, name: str) -> None:
    model = PowerModel.for_gpu(find_gpu(name))
    core_s, dram_s = 10.0 ** draw.uniform(-7, -1, (2, 50))
    core_j, dram_j = core_s * model.tdp_w * draw.uniform(0, 5, 50), dram_s * model.tdp_w * draw.uniform(0, 0.5, 50)
    launches = np.stack([core_s, dram_s, np.full(50, 5e-6), core_j, dram_j])
    limits_w = draw.uniform(model.power_min_w, model.tdp_w, 3)
    points = [(float(limit_w), draw.choice([None, 0.7 * model.boost_hz])) for limit_w in limits_w]
    in_both_forms(power, lambda: [model.limit_launches(launches, points).costs])


def test_rows_of_the_core_are_those_of_the_demand() -> None:
    from kernrec.model.prior import core

    names = "f64", "shared memory", "port", "sectors", "barriers", "core_j", "between", "between_groups", "alone"
    rows = core.F64, core.SHARED, core.PORT, core.SECTORS, core.BARRIERS, core.CORE_J, core.BETWEEN
    assert (*rows, core.BETWEEN_GROUPS, core.ALONE) == tuple(map(QUANTITIES.index, names))
    assert QUANTITIES[core.IN_TURN :] == ("in_turn",)
    assert len(PIPES) == core.PIPES == PORT


def launches_of(draw: np.random.Generator, count: int, most: float) -> tuple[Demand, LaunchWork]:
    """The demand of three variants, and launches of them with one loop; most: logarithm of the largest figure."""
    demand = Demand(("block", "k"), tuple(10.0 ** draw.uniform(-1, 5, (2, len(QUANTITIES), 3))))
    work = LaunchWork.empty(count, 1)
    work.variants[:] = draw.integers(0, 3, count)
    work.rows[:] = np.ceil(10.0 ** draw.uniform(0, most, work.rows.shape))
    work.rows[OVERLAPPED] = np.nan
    return demand, work


@few_examples(30)
@given(draws, GPUS)
def test_a_launch_that_is_like_another_takes_the_same_time(draw: np.random.Generator, name: str) -> None:
    demand, some = launches_of(draw, 5, 5.0)
    order, gpu = draw.integers(0, 5, 300), find_gpu(name)
    repeated = LaunchWork(some.variants[order], some.rows[:, order].copy())
    alone, together = (launch_time.launch_time(gpu, demand, work) for work in (some, repeated))
    np.testing.assert_array_equal(together.rows, alone.rows[:, order])
    np.testing.assert_array_equal(together.pipe_clk, alone.pipe_clk[:, order])


@few_examples(40)
@given(draws, GPUS)
def test_the_bottleneck_is_the_resource_that_takes_longest(draw: np.random.Generator, name: str) -> None:
    demand, work = launches_of(draw, 30, 6.0)
    times = launch_time.launch_time(find_gpu(name), demand, work)
    for launch in range(30):
        parts = times.parts(launch)
        assert parts[times.bottleneck(launch)] >= (1.0 - 1e-12) * max(parts.values())
