"""Test the specifics of `matmul_tcgen05` that test_kernels.py does not cover."""

import pytest

from kernrec.kernel import find_kernel
from kernrec.ptx import EmulationError
from tests.helpers.counted import per_trip, profiled
from tests.helpers.kernel_code import assembled, not_assembled
from tests.helpers.products import broken, exact, matmul, run, whole_numbers

KERNEL, SM = find_kernel("matmul_tcgen05"), 100
CONFIG = {"block_m": 128, "block_n": 128, "block_k": 64, "stages": 6, "cluster": 2, "raster": 1, "block_tiles": 1}


LONG = CONFIG | {"block_tiles": 4}, {"m": 200, "n": 1032, "k": 72}
"""Each pair of blocks computes three tiles. The third tile reuses the tensor memory of the first tile."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "config", "dims"),
    [("f16", *LONG), ("bf16", CONFIG | {"cluster": 1, "block_tiles": 2}, {"m": 200, "n": 264, "k": 72})],
)
def test_integer_matmul_is_exact_and_has_no_races(dtype, config, dims):
    assert exact(KERNEL, config, matmul(dtype, "nt", **dims), SM)


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), [
    ("CLUSTER * (BLOCK_M / 32)", "BLOCK_M / 32"), ("barrier_wait(drained(number), parity ^ 1);", ""),
    ("barrier_arrive(drained(number), 0);", "barrier_arrive(drained(number), rank);"),
])  # fmt: skip
def test_race_check_detects_sums_overwritten_too_early(old, new):
    config, dims = LONG
    problem = matmul("f16", "nt", **dims)
    with pytest.raises(EmulationError, match=r"tensor memory|deadlock"):
        run(broken(KERNEL, old, new), config, problem, whole_numbers(problem), SM, check_races=True)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [1, 2])
def test_matmul_loop_loads_each_byte_of_its_tiles_once(cluster):
    """Each block of a pair loads its tile of A and half of B. Tensor cores read both tiles once per product."""
    config = CONFIG | {"cluster": cluster}
    code = not_assembled(KERNEL, config, "f16", "nt", SM)
    [launch] = profiled(KERNEL, [config], "f16", "nt", SM, code)
    trip = per_trip(launch)
    assert trip["mma.f16"] == trip["tcgen05.f16"] == 2 * 128 * 128 * 64
    assert trip["global.a.read_bytes"] == 128 * 64 * 2
    assert trip["global.b.read_bytes"] == 128 * 64 * 2 / cluster
    assert trip["tcgen05.shared_bytes"] == (128 + 128 / cluster) * 64 * 2
    assert trip["global.a.read_sectors"] * 32 == trip["global.a.read_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "block_n", "cluster"), [("bf16", 256, 1), ("f8e4m3", 256, 2)])
def test_assembler_reports_no_spill_or_warning(dtype, block_n, cluster):
    block_k, stages = 128 if dtype == "f8e4m3" else 64, 4 if block_n // cluster == 256 else 6
    config = CONFIG | {"block_n": block_n, "block_k": block_k, "stages": stages, "cluster": cluster}
    compiled = assembled(KERNEL, config, dtype, "nt", SM)
    resources = compiled.resources["matmul_tcgen05"]
    assert (resources.spill_store_bytes, resources.spill_load_bytes) == (0, 0)
    assert "warning" not in compiled.log
