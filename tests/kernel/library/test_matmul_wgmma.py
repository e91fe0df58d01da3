"""Test the specifics of `matmul_wgmma` and of tensor maps that test_kernels.py does not cover."""

import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.gpu import limits
from kernrec.kernel import Space, bind_launches, find_kernel
from kernrec.op import decode_elements, reference
from kernrec.profile.tensor_values import ELEMENTS
from kernrec.ptx import EmulationError
from tests.helpers.counted import counted, per_trip, profiled
from tests.helpers.kernel_code import assembled, not_assembled
from tests.helpers.products import broken, exact, matmul, run, whole_numbers

KERNEL, SM = find_kernel("matmul_wgmma"), 90
_TILES = {"block_m": 128, "block_n": 128, "block_k": 64, "stages": 6, "cluster": 2, "raster": 1, "block_tiles": 1}
CONFIG = _TILES | {"split_k": 1, "stream": 0}
SMALL = CONFIG | {"block_m": 64, "block_n": 64, "cluster": 1, "stream": 114}


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "block_tiles"), [("f16", 1), ("bf16", 2)])
def test_integer_matmul_is_exact_and_has_no_races(dtype, block_tiles):
    config = CONFIG | {"block_m": 64, "block_tiles": block_tiles}
    assert exact(KERNEL, config, matmul(dtype, "nt", m=200, n=264, k=72), SM)


@pytest.mark.slow
@pytest.mark.every(2)
@pytest.mark.parametrize(("change", "dims"), [
    ({}, {"m": 70, "n": 72, "k": 616}),  # 20 ranges in 4 tiles: each tile's owner adds up to five partial sums
    ({}, {"m": 200, "n": 200, "k": 424, "bias": 1, "activation": 2}),  # trips do not divide evenly into ranges
    ({"cluster": 2, "block_n": 128}, {"m": 128, "n": 14720, "k": 80, "bias": 1}),  # 57 of 115 tiles are not split
    ({"block_m": 128, "block_n": 256, "stages": 4, "cluster": 2}, {"m": 300, "n": 520, "k": 264, "batch": 3}),
])  # fmt: skip
def test_stream_k_split_of_the_last_tiles_gives_the_same_bits(change, dims):
    problem = matmul("bf16", "nt", **dims)
    if dims.get("activation"):
        operands = whole_numbers(problem)
        plain = reference(problem, operands)["c"]
        got = decode_elements(run(KERNEL, SMALL | change, problem, operands, SM, check_races=True), "bf16")
        assert np.allclose(got, plain, rtol=2.0**-8, atol=2.0**-8)
        return
    assert exact(KERNEL, SMALL | change, problem, SM)


@given(tiles=st.integers(1, 600), k_tiles=st.integers(1, 300), stream=st.sampled_from([114, 132]))
def test_stream_k_spec_states_the_work_of_the_busiest_block(tiles, k_tiles, stream):
    """Count the loop trips, the started tiles and the partial sums of each range, and compare them with the spec."""
    config = SMALL | {"stream": stream}
    problem = matmul("bf16", "nt", m=64, n=64 * tiles, k=64 * k_tiles)
    names = KERNEL.namespace(config, problem, SM)
    launch = next(x for x in KERNEL.launches if "partials" in x.trips)
    ranges, shared, whole = (names[name] for name in ("streams", "shared_tiles", "whole_tiles"))
    assert shared + whole * ranges == tiles
    assert whole == 0 or ranges < shared < 2 * ranges or tiles % ranges == 0
    starts = [number * shared * k_tiles // ranges for number in range(ranges + 1)]
    trips = {name: expression.evaluate(names) for name, expression in launch.trips.items()}
    depth = {name: expression.evaluate(names) for name, expression in launch.depth.items()}
    within = [start for start in starts[:-1] if start % k_tiles]
    assert trips == {"tiles": tiles, "k_tiles": tiles * k_tiles, "partials": len(within)}
    lengths = [end - start for start, end in pairwise(starts)]
    assert min(lengths) >= 1
    assert depth["k_tiles"] == whole * k_tiles + max(lengths)
    begun = [-(-end // k_tiles) - -(-start // k_tiles) for start, end in pairwise(starts)]
    assert depth["tiles"] == whole + max(begun)
    most = max(Counter(start // k_tiles for start in within).values(), default=0)
    assert names["helpers"] >= most
    assert 2 * depth["partials"] >= most + bool(within)


@pytest.mark.slow
@pytest.mark.parametrize("dims", [{"m": 64, "n": 1280, "k": 448}, {"m": 128, "n": 14720, "k": 64}])
def test_stream_k_counts_follow_from_the_profile(dims):
    """Compare traffic and tensor core counts on shapes that were not profiled, with split and with whole tiles."""
    config = SMALL if dims["m"] == 64 else SMALL | {"cluster": 2, "block_n": 128}
    code, problem = not_assembled(KERNEL, config, "bf16", "nt", SM), matmul("bf16", "nt", **dims)
    index = next(i for i, launch in enumerate(KERNEL.launches) if "partials" in launch.trips)
    profile = next(x for x in profiled(KERNEL, [config], "bf16", "nt", SM, code) if x.launch == index).profile
    bound = next(x for x in bind_launches(KERNEL, config, problem, SM) if x.index == index)
    zeros = {name: np.zeros(t.elements, ELEMENTS[t.dtype]) for name, t in problem.tensors.items()}
    every = {x.index: counts for x, counts in counted(KERNEL, config, problem, SM, code.ptx, zeros)}[index]
    predicted = profile.counts({"block": bound.blocks, **bound.trips})
    exact = [name for name in predicted if name.startswith(("global.", "mma.", "wgmma.", "bulk."))]
    assert "global.partial.read_bytes" in exact
    assert {name: predicted[name] for name in exact} == {name: every[name] for name in exact}
    assert predicted["issue"] == pytest.approx(every["issue"], rel=0.02)


@pytest.mark.slow
def test_stage_is_not_overwritten_while_the_cluster_peer_reads_it():
    problem = matmul("f16", "nt", m=130, n=136, k=640)
    mutant = broken(KERNEL, "threadIdx.x % 32 < CLUSTER) barrier_arrive", "threadIdx.x % 32 < 1) barrier_arrive")
    with pytest.raises(EmulationError, match=r"deadlock|race"):
        run(mutant, CONFIG | {"block_m": 64}, problem, whole_numbers(problem), SM, check_races=True)


@pytest.mark.slow
def test_matmul_loop_loads_each_byte_of_its_tiles_once():
    """Each block of a two-block cluster loads its tile of A and half of the shared tile of B."""
    code = not_assembled(KERNEL, CONFIG, "f16", "nt", SM)
    configs = [CONFIG | {"block_tiles": tiles} for tiles in (1, 2)]
    for launch in profiled(KERNEL, configs, "f16", "nt", SM, code):
        trip = per_trip(launch)
        assert trip["mma.f16"] == trip["wgmma.f16"] == 2 * 128 * 128 * 64
        assert trip["global.a.read_bytes"] == 128 * 64 * 2
        assert trip["global.b.read_bytes"] == 128 * 64 * 2 / 2
        assert trip["global.a.read_sectors"] * 32 == trip["global.a.read_bytes"]


@pytest.mark.slow
@pytest.mark.every(3)
@pytest.mark.parametrize(("block_m", "dtype"), [(64, "bf16"), (128, "bf16"), (64, "f8e4m3"), (128, "f8e4m3")])
@pytest.mark.parametrize("cluster", [1, 2])
def test_largest_tiles_fit_in_registers_and_wgmma_stays_asynchronous(block_m, dtype, cluster):
    deep = {"block_k": 128 if dtype == "f8e4m3" else 64, "stages": 4 if block_m == 128 else 6, "cluster": cluster}
    compiled = assembled(KERNEL, CONFIG | {"block_m": block_m, "block_n": 256} | deep, dtype, "nt", SM)
    resources = compiled.resources["matmul_wgmma"]
    assert (resources.spill_store_bytes, resources.spill_load_bytes) == (0, 0)
    assert "serialized" not in compiled.log
    assert "setmaxnreg" not in compiled.log


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sm", "layout", "config"), [
    ("matmul_wgmma", 90, "nt", _TILES | {"split_k": 1}),
    ("matmul_tcgen05", 100, "nt", _TILES),
    (
        "attention_wgmma",
        90,
        "bhsd",
        {"head": 64, "block_q": 64, "block_k": 128, "stages": 3, "overlap": 1, "turns": 0},
    ),
])  # fmt: skip
def test_swizzled_shared_memory_is_declared_aligned(name, sm, layout, config):
    """The pattern of a 128-byte swizzle repeats every 1024 bytes."""
    ptx = not_assembled(find_kernel(name), config, "f16", layout, sm).ptx
    assert re.findall(r"\.extern \.shared \.align (\d+) ", ptx) == ["1024"]


@pytest.mark.parametrize(("name", "sm", "config"), [("matmul_wgmma", 90, CONFIG), ("matmul_tcgen05", 100, _TILES)])
def test_rows_that_a_tensor_map_cannot_describe_are_refused(name, sm, config):
    kernel = find_kernel(name)
    space = Space(kernel, sm, limits(sm), "bf16", "nt")
    assert len(space.at(matmul("bf16", "nt", m=300, n=264, k=72)).rows)
    for dims in ({"m": 300, "n": 264, "k": 68}, {"m": 300, "n": 262, "k": 72}):
        assert not len(space.at(matmul("bf16", "nt", **dims)).rows)
    with pytest.raises(UsageError, match=r"map a: strides are 136, 40800 bytes and the box .*; expected multiples"):
        bind_launches(kernel, config, matmul("bf16", "nt", m=300, n=264, k=68), sm)
