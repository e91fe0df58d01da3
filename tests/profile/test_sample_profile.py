"""Test which blocks are sampled, how many blocks each represents, and that the sample gives the total."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.compile import compile_source
from kernrec.errors import KernrecError, UsageError
from kernrec.kernel import find_kernel, load_kernel
from kernrec.op import find_op
from kernrec.profile.launch_profile import ProfileTarget
from kernrec.profile.sample_profile import choose_blocks, profile_by_sampling
from kernrec.profile.tensor_values import Tensors, sample_tensors
from tests.helpers.kernel_code import written_kernel
from tests.helpers.paths import beside

extents = st.integers(1, 40)


@given(grid=st.tuples(extents, extents, st.integers(1, 5)))
def test_sampled_blocks_represent_every_block_of_the_grid_once(grid):
    sample = choose_blocks(grid)
    total = grid[0] * grid[1] * grid[2]
    assert sample.total == total
    assert sample.inner[0] not in sample.ends
    assert 1 <= total - sum(sample.ends.values()) <= total
    assert all(0 <= block < total for block in (*sample.inner, *sample.ends))
    assert len({*sample.inner, *sample.ends}) <= 16
    if max(grid) <= 3 and np.prod(grid) <= 9:
        assert {*sample.ends, sample.inner[0]} == set(range(total))


@given(grid=st.tuples(extents, extents, st.just(1)))
def test_block_sample_is_exact_if_only_edge_blocks_differ(grid):
    def work(x: int, y: int) -> int:
        return (3 if x == grid[0] - 1 else 7) * (2 if y == 0 else 5)

    sample = choose_blocks(grid)
    cost = {y * grid[0] + x: work(x, y) for x, y in product(range(grid[0]), range(grid[1]))}
    rest = sample.total - sum(sample.ends.values())
    estimate = cost[sample.inner[0]] * rest + sum(cost[block] * weight for block, weight in sample.ends.items())
    assert estimate == sum(cost.values())


SPEC = beside(__file__, "sample_profile.toml")
SOURCE = beside(__file__, "sample_profile.cu")


def metrics(
    tmp_path: Path, values: str, source: str = SOURCE, threads: int = 128, budget: int = 20_000
) -> dict[str, float]:
    kernel = written_kernel(tmp_path, source, SPEC.replace("VALUES", values))
    problem = kernel.definition.problem()
    compiled = compile_source(kernel.source, 86, kernel.defines({"threads": threads}, "f32", "any"), "shift.cu")
    tensors = Tensors(kernel, problem, tmp_path)
    target = ProfileTarget(problem, 86, budget=budget)
    (launch,) = profile_by_sampling(kernel, {"threads": threads}, target, compiled, tensors)
    return dict(zip(launch.profile.metrics, launch.profile.coefficients[:, 0].tolist(), strict=True))


def test_data_dependent_branches_use_declared_values_and_are_marked(nvrtc, tmp_path):
    every, none = metrics(tmp_path, "constant 1"), metrics(tmp_path, "constant -1")
    assert every["global.y.write_requests"] == 4
    assert "global.y.write_requests" not in none
    assert every["depends.branch"] == 1
    assert every["depends.load"] == 1


IDLE_END = beside(__file__, "idle_end.cu")


@pytest.mark.parametrize(("threads", "busy"), [(128, 31 / 32), (64, 63 / 64)])
def test_end_blocks_of_the_grid_are_counted_exactly(nvrtc, tmp_path, threads, busy):
    counts = metrics(tmp_path, "normal", IDLE_END, threads, 200_000)  # all 32 or 64 blocks are long
    assert counts["global.x.read_requests"] == pytest.approx(busy * 5000 * threads / 32)


PRODUCERS = beside(__file__, "producers.cu")


def test_waiting_time_is_equal_for_one_producer_warp_and_for_four(nvrtc, tmp_path):
    single, all_warps = (metrics(tmp_path, "normal", PRODUCERS.replace("BUSY", busy)) for busy in ("32", "THREADS"))
    assert single["global.where.read_requests"] == all_warps["global.where.read_requests"] / 4
    assert single["rounds"] == pytest.approx(all_warps["rounds"], rel=0.05)
    assert single["chain"] == pytest.approx(all_warps["chain"], rel=0.1)


def test_endless_loop_is_stopped_and_the_kernel_named(nvrtc, tmp_path):
    endless = SOURCE.replace("if (i < n", "while (((volatile float*) x)[i] > -9.0f) y[i] += 1;\n if (i < n")
    with pytest.raises(KernrecError, match=r"shift threads=128: .*20000 instructions.*endless"):
        metrics(tmp_path, "constant 1", endless)


def test_tensors_are_filled_as_the_spec_states(tmp_path):
    (tmp_path / "shift.cu").write_text(SOURCE)
    np.save(tmp_path / "v.npy", np.arange(4160, dtype=np.float32))
    (tmp_path / "kernel.toml").write_text(SPEC.replace("VALUES", "v.npy"))
    kernel = load_kernel(tmp_path / "kernel.toml")
    tensors = sample_tensors(kernel, kernel.definition.problem(), tmp_path)
    assert (tensors["x"] == np.arange(4160)).all()
    assert (tensors["where"] == np.arange(4096) * 5 % 32).all()
    assert not tensors["y"].any()
    with pytest.raises(UsageError, match=r"v\.npy holds 4160 of float32, expected 164"):
        sample_tensors(kernel, kernel.definition.problem(n=100), tmp_path)
    matmul = find_op("matmul").problem(m=8, n=8, k=8)
    assert set(sample_tensors(find_kernel("matmul_simt"), matmul)) == {"a", "b", "c"}
