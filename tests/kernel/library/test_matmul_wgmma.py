"""`matmul_wgmma`: what holds of it beyond what every kernel of the library keeps (test_kernels.py)."""

import numpy as np
import pytest

from kernrec.kernel import bind_launches, find_kernel
from kernrec.kernel.tensor_map import MapHandle
from kernrec.op import encode_elements, reference
from kernrec.profile.probe_profile import profile_variant
from kernrec.ptx import EmulationError
from tests.helpers.kernel_code import assembled, not_assembled
from tests.helpers.products import bits, broken, matmul, run, whole_numbers

KERNEL, SM = find_kernel("matmul_wgmma"), 90
CONFIG = {
    "block_m": 128, "block_n": 128, "block_k": 64, "stages": 6, "cluster": 2, "raster": 1, "block_tiles": 1,
    "split_k": 1,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "block_tiles"), [("f16", 1), ("bf16", 2)])
def test_exact_sums_are_rounded_to_nearest_bit_for_bit_without_races(dtype: str, block_tiles: int) -> None:
    config = CONFIG | {"block_m": 64, "block_tiles": block_tiles}
    problem = matmul(dtype, "nt", m=200, n=264, k=72)
    given = whole_numbers(problem)
    expected = encode_elements(reference(problem, given)["c"], dtype)
    assert bits(run(KERNEL, config, problem, given, SM, check_races=True)) == bits(expected)


@pytest.mark.slow
def test_shares_of_the_reduction_add_up_to_the_same_bits() -> None:
    """Each of four shares of ten tiles, of which two are longer; sums of whole numbers are exact in any order."""
    problem = matmul("bf16", "nt", m=70, n=136, k=616, batch=2, bias=1)
    given = whole_numbers(problem)
    expected = encode_elements(reference(problem, given)["c"], "bf16")
    assert bits(run(KERNEL, CONFIG | {"split_k": 4}, problem, given, SM, check_races=True)) == bits(expected)


@pytest.mark.slow
def test_a_stage_that_the_other_block_of_a_cluster_still_reads_is_not_loaded_into() -> None:
    problem = matmul("f16", "nt", m=130, n=136, k=640)
    mutant = broken(KERNEL, "threadIdx.x % 32 < CLUSTER) barrier_arrive", "threadIdx.x % 32 < 1) barrier_arrive")
    with pytest.raises(EmulationError, match=r"deadlock|race"):
        run(mutant, CONFIG | {"block_m": 64}, problem, whole_numbers(problem), SM, check_races=True)


@pytest.mark.slow
def test_a_trip_multiplies_its_tiles_and_brings_each_byte_of_them_once() -> None:
    """Of a cluster of two blocks, each loads its tile of A and half of their tile of B."""
    code = not_assembled(KERNEL, CONFIG, "f16", "nt", SM)
    configs = [CONFIG | {"block_tiles": tiles} for tiles in (1, 2)]
    for launch in profile_variant(KERNEL, configs, "f16", "nt", SM, code):
        profile = launch.profile
        trip = dict(zip(profile.metrics, profile.coefficients[:, profile.terms.index("k_tiles")].tolist(), strict=True))
        assert trip["mma.f16"] == trip["wgmma.f16"] == 2 * 128 * 128 * 64
        assert trip["global.a.read_bytes"] == 128 * 64 * 2
        assert trip["global.b.read_bytes"] == 128 * 64 * 2 / 2
        assert trip["global.a.read_sectors"] * 32 == trip["global.a.read_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize(("block_m", "block_n"), [(64, 256), (128, 256)])
def test_registers_hold_the_largest_tiles_and_products_are_not_put_in_line(block_m: int, block_n: int) -> None:
    config = CONFIG | {"block_m": block_m, "block_n": block_n, "stages": 4}
    compiled = assembled(KERNEL, config, "bf16", "nt", SM)
    resources = compiled.resources["matmul_wgmma"]
    assert (resources.spill_store_bytes, resources.spill_load_bytes) == (0, 0)
    assert "serialized" not in compiled.log
    assert "setmaxnreg" not in compiled.log


def test_maps_have_the_boxes_of_the_config_and_the_axes_of_a_batch() -> None:
    problem = matmul("bf16", "nt", m=300, n=264, k=72, batch=3)
    a, b = (x for x in bind_launches(KERNEL, CONFIG, problem, SM)[0].arguments if isinstance(x, MapHandle))
    assert (a.extents, a.strides, a.box, a.swizzle) == ((72, 300, 3), (144, 43200), (64, 128, 1), 128)
    assert (b.extents, b.strides, b.box) == ((72, 264, 3), (144, 38016), (64, 64, 1))
    assert np.prod(a.extents) == problem.tensors["a"].elements
