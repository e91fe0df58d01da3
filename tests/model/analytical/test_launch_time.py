"""Test that the analytical model obeys physical laws on the shipped kernels."""

from bisect import insort
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.compile import compile_source
from kernrec.gpu import GPU, find_gpu
from kernrec.kernel import Space, find_kernel
from kernrec.model.analytical.demand import PIPES, QUANTITIES, Demand
from kernrec.model.analytical.launch_costs import LimitedCosts, NominalCosts
from kernrec.model.analytical.launch_time import RESOURCES, Array, LaunchWork, alone_clk, launch_time
from kernrec.model.analytical.microarchitecture import OVERLAPPED, TIMES, WARPS, microarchitecture
from kernrec.op import Problem, encode_elements, find_op, inputs
from kernrec.profile.emulated_launch import emulate_config
from kernrec.ptx import parse
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.estimate.space import costs_of_rows
from kernrec.recommender.estimate.static_table import StaticTable
from kernrec.store import shipped_profiles
from kernrec.util.engine import query
from tests.helpers.depth import few_examples

KERNELS = {"matmul_simt": ("matmul", "nn"), "conv2d_implicit_gemm_simt": ("conv2d", "nchw")}
sizes = st.integers(1, 4096)


def table_of(kernel: str, gpu: GPU, problem: Problem) -> StaticTable:
    spec = find_kernel(kernel)
    return StaticTable.of(spec, problem, gpu, shipped_profiles(kernel, spec.hash, gpu.sm))


def costs(table: StaticTable, problem: Problem, limit_w: float | None = None) -> LimitedCosts:
    problem_space = table.space.at(problem)
    nominal = NominalCosts(*costs_of_rows(table, problem_space, table.runnable(problem_space)).nominal)
    return table.power.apply_power_limit(nominal, limit_w)


def changed(base: GPU, **change: float) -> GPU:
    return replace(base, name="changed", **change)  # type: ignore[arg-type]


def latency_s(kernel: str, gpu: GPU, problem: Problem, limit_w: float | None = None) -> np.ndarray:
    return costs(table_of(kernel, gpu, problem), problem, limit_w).latency_s


ADA = find_gpu("rtx4090")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("better", [
    lambda g: changed(g, sms=g.sms * 2), lambda g: changed(g, memory_bandwidth=g.memory_bandwidth * 2),
    lambda g: changed(g, l2_bytes=g.l2_bytes * 2),
], ids=["SMs", "bandwidth", "L2"])  # fmt: skip
def test_more_resource_use_is_never_faster(kernel, better):
    op = find_op(KERNELS[kernel][0])
    shapes: list[dict[str, int]] = {
        "matmul": [{"m": 4096, "n": 4096, "k": 4096}, {"m": 64, "n": 8192, "k": 512}, {"m": 333, "n": 77, "k": 1000}],
        "conv2d": [{"n": 8, "c": 64, "h": 56, "w": 56, "k": 128, "padding": 1}, {"c": 3, "h": 224, "w": 224, "k": 64}],
    }[op.name]
    for dims in shapes:
        problem = op.problem(**dims)
        # A power limit far above any load makes this a comparison of time only.
        base = changed(ADA, tdp_w=5000.0, power_max_w=5000.0)
        before, after = latency_s(kernel, base, problem), latency_s(kernel, better(base), problem)
        assert (after <= before * 1.0000001).all()


@few_examples(12)
@given(sizes, sizes, sizes, st.sampled_from("mnk"))
def test_doubling_the_work_takes_no_less_time(m, n, k, dim):
    op = find_op("matmul")
    dims = {"m": m, "n": n, "k": k}
    small, large = op.problem(**dims), op.problem(**{**dims, dim: dims[dim] * 2})
    table = table_of("matmul_simt", ADA, small)
    at_small, at_large = table.space.at(small), table.space.at(large)
    rows = np.intersect1d(table.runnable(at_small), table.runnable(at_large))
    p, q = (NominalCosts(*costs_of_rows(table, problem, rows).nominal) for problem in (at_small, at_large))
    assert (q.core_s >= p.core_s * 0.999).all()
    assert (q.core_j >= p.core_j * 0.999).all()


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_on_the_a100_matches_published_speeds(causal):
    """FlashAttention-2 reaches up to 73 % of 312 TFLOP/s (arXiv 2307.08691)."""
    dims = {"heads": 32, "kv_heads": 8, "queries": 4096, "head_dim": 128, "causal": causal}
    problem = find_op("attention").problem("f16", **dims)
    best_s = costs(table_of("attention_mma", find_gpu("a100-sxm4-80gb"), problem), problem).latency_s.min()
    assert 175e12 <= problem.flops / best_s <= 230e12


def launch(codes: int = 1, **change: Array) -> LaunchWork:
    """Return a launch of 1,000 blocks of four warps, with 100 trips each and two blocks per SM."""
    blocks = np.full(codes, 1000.0)
    usual = {
        "variants": np.arange(codes), "terms": (blocks, blocks * 100.0), "depth": (np.full(codes, 100.0),),
        "concurrent": np.full(codes, 2.0), "warps": np.full(codes, 4.0), "prefetch": np.full(codes, 1.0),
        "dram_bytes": blocks, "rounds": np.full(codes, 100.0),
    }  # fmt: skip
    return LaunchWork.of(**{**usual, **change})  # type: ignore[arg-type]


def work(**per_trip: float) -> Demand:
    rates = np.array([[per_trip.get(name, 0.0)] for name in QUANTITIES])
    return Demand((np.zeros_like(rates), rates))


@pytest.mark.parametrize(("name", "shared"), [("rtx4090", True), ("a100", False)])
def test_uneven_warps_per_scheduler_do_not_slow_down_a_shared_pipe(name, shared):
    """The four schedulers of an RTX 4090 SM share two f64 lanes. On the A100, each scheduler has eight f64 lanes."""
    gpu = find_gpu(name)

    def busy_s(warps: float, pipe: str) -> float:
        blocks = np.array([warps * gpu.sms])
        lone = launch(
            terms=(blocks, blocks * 100.0), concurrent=np.array([warps]), warps=np.ones(1), prefetch=np.zeros(1)
        )
        return float(launch_time(gpu, work(**{pipe: 1000.0, "issue": 10.0}), lone).busy_s[0]) / warps

    assert busy_s(5.0, "f64") / busy_s(8.0, "f64") == pytest.approx(1.0 if shared else 1.6, rel=0.02)
    assert busy_s(5.0, "fma") / busy_s(8.0, "fma") == pytest.approx(1.6, rel=0.02)


def test_two_blocks_per_sm_halve_the_time_of_code_between_matmuls():
    """Each SM runs 8 of the 1,000 blocks: 2 at a time, in 4 rounds."""
    products, softmax = 1000.0, 300.0
    core_s = {
        between: launch_time(ADA, work(tensor=products, issue=100.0, between=between), launch()).core_s[0]
        for between in (0.0, softmax)
    }
    added = (core_s[softmax] - core_s[0.0]) * ADA.boost_clock_hz
    assert added == pytest.approx(4 * 100 * softmax, rel=0.05)
    assert 4 * 2 * 100 * softmax > added  # both blocks would add this time without overlap


def test_several_warpgroups_halve_the_time_of_code_between_matmuls():
    hopper, products, softmax = find_gpu("h200"), 1000.0, 300.0
    blocks = np.full(1, float(hopper.sms))
    for warps in (8.0, 16.0):
        shape = {"concurrent": np.ones(1), "warps": np.full(1, warps), "prefetch": np.full(1, 2.0)}
        lone = launch(terms=(blocks, blocks * 100.0), **shape)
        core_s = {
            between: launch_time(hopper, work(tensor=products, issue=100.0, between_groups=between), lone).core_s[0]
            for between in (0.0, softmax)
        }
        added = (core_s[softmax] - core_s[0.0]) * hopper.boost_clock_hz
        start = microarchitecture(hopper).dram_latency_clk + 900
        assert added == pytest.approx(100 * softmax / 2 + softmax / 2 + start, rel=0.03)


def test_longest_block_delays_a_launch_only_once():
    """The launch waits for its longest block once, not in every round."""
    demand, even = work(fma=100.0, issue=300.0), launch()
    uneven = launch(depth=(np.full(1, 200.0),))
    more = launch_time(ADA, demand, uneven).core_s - launch_time(ADA, demand, even).core_s
    alone = alone_clk(demand.rates[1], even.rows[WARPS], even.variants)
    assert 0 < more * ADA.boost_clock_hz <= 100 * np.maximum(alone, microarchitecture(ADA).dram_latency_clk) * 1.001


def round_clk(together: float, **change: Array) -> float:
    """Return the clocks of each of ten rounds. In each round, an SM runs `together` blocks."""
    blocks = np.full(1, ADA.sms * together * 10)
    shape = {"terms": (blocks, blocks * 100.0), "concurrent": np.full(1, together), "prefetch": np.zeros(1)}
    demand = work(barriers=1.0, fma=1000.0, issue=1000.0, alone=1000.0)
    times = launch_time(ADA, demand, launch(**{**shape, **change}))
    return float(times.core_s[0] * ADA.boost_clock_hz / 10)


def test_concurrent_blocks_overlap_waiting_and_computing():
    waits = 100 * microarchitecture(ADA).dram_latency_clk
    busy = 100 * 1000.0 * 2 ** (1 / 8)
    assert round_clk(1) == pytest.approx(busy + waits, rel=0.05)
    assert max(2 * busy, busy + waits) <= round_clk(2) <= 1.2 * max(2 * busy, busy + waits)
    assert round_clk(8) == pytest.approx(8 * busy, rel=0.05)


def turns_clk(own: float, wait: float, customers: int) -> float:
    """Return the clocks of a round of `customers` blocks. Each uses a pipe for `own` clocks, then waits `wait`."""
    blocks, times, start_clk = np.full(1, float(customers)), np.empty((TIMES, 1)), 300.0
    shape = launch(
        terms=(blocks, blocks), depth=(np.ones(1),), concurrent=blocks, prefetch=np.zeros(1), overlapped=np.zeros(1)
    )
    device = query.Device(1.0, 1.0, 1.0, 0.0, wait - start_clk, 0.0, 0.0, False, 1.0, 1.0)
    demand, pipe_clk = work(fma=own).by_variant, np.empty((len(PIPES), 1))
    query.launch_times(demand, device, 1, shape.variants, shape.rows, pipe_clk, times)
    return float(times[0, 0])


def simulated_round_clk(customers: int, service_clk: float, mean_wait_clk: float) -> float:
    """Simulate a queue, and return the average number of clocks in which each customer is served once."""
    draw = np.random.default_rng(customers)
    arrivals = sorted(draw.exponential(mean_wait_clk, customers).tolist())
    free, rounds = 0.0, 4000
    for _ in range(rounds * customers):
        free = max(free, arrivals.pop(0)) + service_clk
        insort(arrivals, free + draw.exponential(mean_wait_clk))
    return free / rounds


@pytest.mark.parametrize("customers", [1, 2, 3, 6, 12, 32])
@pytest.mark.parametrize("load", [0.25, 0.5, 1.0, 2.0, 4.0])
def test_round_time_formula_matches_a_queue_simulation(customers, load):
    """`load` is the pipe time of all customers, divided by one customer's wait."""
    wait = customers / load
    assert turns_clk(1e6, 1e6 * wait, customers) / 1e6 == pytest.approx(
        simulated_round_clk(customers, 1.0, wait), rel=0.06
    )


@given(st.floats(1.0, 1e6), st.floats(300.0, 1e7), st.integers(1, 100))
def test_round_time_lies_between_full_overlap_and_no_overlap(own, wait, customers):
    busy = own * customers
    clk = turns_clk(own, wait, customers)
    assert max(busy, own + wait) * (1 - 1e-9) <= clk <= (busy + wait) * (1 + 1e-9)


def test_waiting_time_decreases_with_the_overlapped_fraction():
    def waiting(share: float) -> float:
        return round_clk(1, warps=np.full(1, 32.0), overlapped=np.full(1, share))

    assert waiting(np.nan) == waiting(0.0)
    assert waiting(1.0) < waiting(0.5) < waiting(0.0)


def test_without_barriers_warps_overlap_within_a_block():
    many = round_clk(1, warps=np.full(1, 32.0), rounds=np.full(1, 1e9))
    assert many < 0.75 * round_clk(1, warps=np.full(1, 32.0))


def test_serial_clocks_and_dram_slowdown_add_time():
    serial = launch_time(ADA, work(fma=1.0), launch(serial_clk=np.full(1, 1e9)))
    assert serial.core_s[0] * ADA.boost_clock_hz == pytest.approx(1e9, rel=0.01)
    plain, scattered = (launch_time(ADA, work(fma=1.0), launch(dram_slowdown=np.full(1, s))) for s in (1.0, 2.0))
    assert scattered.dram_s == pytest.approx(2 * plain.dram_s)
    assert (scattered.dram_bytes == plain.dram_bytes).all()


def test_wait_for_another_block_costs_one_l2_latency():
    gpu = find_gpu("h200")
    demand = work(issue=100.0, alone=400.0)
    without, with_waits = (
        launch_time(gpu, demand, launched).core_s for launched in (launch(), launch(waits=np.full(1, 7.0)))
    )
    assert (with_waits - without) * gpu.boost_clock_hz == pytest.approx(7 * microarchitecture(gpu).l2_latency_clk)


def test_stream_k_moves_no_more_dram_bytes_than_one_tile_per_block():
    """The matrices of 8,192 x 8,192 exceed L2. Configs that split their last tiles also move partial sums."""
    gpu, problem = find_gpu("h200"), find_op("matmul").problem("bf16", "nt", m=8192, n=8192, k=8192)
    table = table_of("matmul_wgmma", gpu, problem)
    on_problem = table.space.at(problem)
    rows = table.runnable(on_problem)
    configs = [table.space.config(int(row)) for row in rows]
    dram_s = costs_of_rows(table, on_problem, rows).nominal[1]
    tile = {"block_m": 128, "block_n": 256, "cluster": 2, "raster": 8}
    own = {"block_tiles": 1, "split_k": 1, "stream": 0}

    def moved(**change: int) -> float:
        return float(dram_s[next(i for i, c in enumerate(configs) if (tile | own | change).items() <= c.items())])

    assert moved(block_tiles=4) == pytest.approx(moved(), rel=0.02)
    left_s = 132 * 128 * 256 * 4 * 2 / gpu.memory_bandwidth
    assert moved() < moved(stream=132) < moved() + 3 * left_s


def clk_per_block(resident: float, work_of_code: Demand, **change: Array) -> float:
    fields = {"concurrent": np.full(1, resident), "prefetch": np.zeros(1), **change}
    times = launch_time(ADA, work_of_code, launch(**fields))
    latency_s = (times.core_s**4 + times.dram_s**4) ** 0.25
    return float(latency_s[0]) * ADA.boost_clock_hz * ADA.sms / 1000.0


def test_gaps_between_code_sections_shrink_with_more_resident_blocks():
    at_once = work(fma=100.0, f64=100.0, barriers=1.0)
    apart = work(fma=100.0, f64=100.0, barriers=1.0, in_turn=200.0)
    blocks = np.full(1, ADA.sms * 960.0)
    many = {"terms": (blocks, blocks * 100.0), "dram_bytes": blocks}
    lost = [
        clk_per_block(resident, apart, **many) - clk_per_block(resident, at_once, **many)
        for resident in (1.0, 2.0, 8.0)
    ]
    assert lost[0] > 2 * lost[1] > 4 * lost[2] >= 0.0
    alone = launch_time(ADA, apart, launch(concurrent=np.ones(1), **many))
    assert alone.in_turn_s[0] > 0.1 * alone.core_s[0]  # type: ignore[index]
    assert launch_time(ADA, at_once, launch(**many)).in_turn_s == 0.0


def test_single_resident_block_does_not_overlap_loads_and_computation():
    """A block loads a tile and then computes on it, with two barriers and one wait."""
    clocks = {"f64": 3000.0, "in_turn": 3200.0, "barriers": 1.0}
    computes = Demand((np.array([[clocks.get(name, 0.0)] for name in QUANTITIES]),))
    blocks = np.full(1, ADA.sms * 960.0)
    bytes_per_clk = ADA.memory_bandwidth * microarchitecture(ADA).dram_efficiency / ADA.boost_clock_hz / ADA.sms

    def clk(dram_clk: float, resident: float) -> float:
        moved = blocks * dram_clk * bytes_per_clk
        tiles = LaunchWork.of(
            variants=np.zeros(1, np.int64), terms=(blocks,), depth=(), concurrent=np.full(1, resident),
            warps=np.full(1, 32.0), prefetch=np.zeros(1), dram_bytes=moved, dram_slowdown=np.ones(1),
            serial_clk=0.0, rounds=np.ones(1), overlapped=np.zeros(1),
        )  # fmt: skip
        times = launch_time(ADA, computes, tiles)
        total_s = (times.core_s**4 + times.dram_s**4) ** 0.25
        return float(total_s[0]) * ADA.boost_clock_hz / 960.0

    latency = clk(1.0, 1.0) - 3200.0
    assert latency < 700.0
    assert clk(2000.0, 1.0) == pytest.approx(3200.0 + 2000.0, rel=0.01)
    assert clk(0.5 * latency, 1.0) == pytest.approx(clk(1.0, 1.0), rel=0.01)
    assert clk(2000.0, 6.0) < 3000.0 * 1.1


def launches_of(draw: np.random.Generator, count: int, most: float) -> tuple[Demand, LaunchWork]:
    """Return random demands of three kernel variants, and `count` random launches with one loop."""
    demand = Demand(tuple(10.0 ** draw.uniform(-1, 5, (2, len(QUANTITIES), 3))))
    work = LaunchWork.empty(count, 1)
    work.variants[:] = draw.integers(0, 3, count)
    work.rows[:] = np.ceil(10.0 ** draw.uniform(0, most, work.rows.shape))
    work.rows[OVERLAPPED] = np.nan
    return demand, work


@pytest.mark.parametrize("name", ["t4", "a100", "rtx4090", "h200", "b200"])
def test_equal_launches_take_equal_time(name):
    draw, gpu = np.random.default_rng(1), find_gpu(name)
    demand, some = launches_of(draw, 5, 5.0)
    order = draw.integers(0, 5, 300)
    repeated = LaunchWork(some.variants[order], some.rows[:, order].copy())
    alone, together = (launch_time(gpu, demand, work) for work in (some, repeated))
    for each, other in zip(together[:-1], alone[:-1], strict=True):
        np.testing.assert_array_equal(each, other[..., order])


@pytest.mark.parametrize("name", ["t4", "a100", "rtx4090", "h200", "b200"])
def test_bottleneck_is_the_slowest_resource(name):
    demand, work = launches_of(np.random.default_rng(2), 100, 6.0)
    times = launch_time(find_gpu(name), demand, work)
    for launch, resource in enumerate(times.resource.astype(int)):
        parts = times.parts(launch)
        assert parts[RESOURCES[resource]] >= (1.0 - 1e-12) * max(parts.values())


A100 = find_gpu("a100")
MATMUL = find_op("matmul")


@pytest.mark.parametrize(("name", "dtype"), [("matmul_simt", "f32"), ("matmul_mma", "f16"), ("matmul_tf32", "tf32")])
def test_predicted_epilogue_instructions_equal_the_emulated_instructions(name, dtype, nvrtc):
    kernel = find_kernel(name)
    space = Space(kernel, A100.sm, A100.limits, dtype, "nn")
    config = space.config(0)
    module = parse(compile_source(kernel.source, A100.sm, kernel.defines(config, dtype, "nn")).ptx)

    def counted(bias: int, activation: int) -> dict[str, float]:
        problem = MATMUL.problem(dtype, "nn", m=64, n=64, k=32, bias=bias, activation=activation)
        outputs = {
            n: encode_elements(np.zeros(t.shape), dtype) for n, t in problem.tensors.items() if t.role == "output"
        }
        total: dict[str, float] = {}
        for _, counts in emulate_config(kernel, config, problem, A100.sm, module, {**inputs(problem), **outputs}):
            for metric, count in counts.items():
                total[metric] = total.get(metric, 0.0) + count * 32 / (64 * 64)
        return total

    plain = counted(0, 0)
    for way in [(1, 0), (0, 1), (0, 2), (0, 3), (1, 2)]:
        executed = counted(*way)
        stated = MATMUL.finishing({"scaled": 0} | dict(zip(("bias", "activation"), way, strict=True)))
        for metric in ("issue.fma32", "issue.mufu", "issue.ld_global"):
            assert executed.get(metric, 0) - plain.get(metric, 0) == pytest.approx(stated.get(metric, 0.0)), (
                way,
                metric,
            )
        issued = sum(count for metric, count in stated.items() if metric.startswith("issue."))
        assert executed["issue"] - plain["issue"] == pytest.approx(issued, abs=1.2), way


def test_relative_cost_of_an_activation_falls_with_k():
    recommender = Recommender([])

    def share(k: int, cost: str, **finishing: int) -> float:
        def best(**more: int) -> float:
            dims = {"m": 4096, "n": 4096, "k": k} | more
            query = Query(Objective.LATENCY, source="predicted")
            answer = recommender.recommend("matmul", "a100", dims, "f16", query=query)
            return float(getattr(answer.best, cost).value)

        return best(**finishing) / best() - 1.0

    for cost in ("latency_s", "energy_j"):
        long, short = share(4096, cost, bias=1, activation=2), share(256, cost, bias=1, activation=2)
        assert 0.0 < long < 0.05
        assert long < short < 0.6
        assert share(256, cost, activation=1) < short
