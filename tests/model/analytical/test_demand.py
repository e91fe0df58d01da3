"""Test the conversion of event counts to pipe clocks, energy and bytes between L2 and DRAM."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.gpu import find_gpu
from kernrec.model.analytical.demand import QUANTITIES, demand, events
from kernrec.model.analytical.dram_traffic import Footprint, Rereads, TensorAccess, covered, sampled_dram_bytes
from kernrec.model.analytical.microarchitecture import microarchitecture
from kernrec.model.analytical.power import PowerModel
from tests.helpers.engine_objects import dram_bytes


def rates(gpu: str, bf16: bool = False, **counts: float) -> dict[str, float]:
    card = find_gpu(gpu)
    names = tuple(name.replace("__", ".") for name in counts)
    coefficients = np.array([[[0.0, count] for count in counts.values()]])
    demands = demand(card, PowerModel.for_gpu(card), names, coefficients, bf16)
    assert not demands.rates[0].any()
    return dict(zip(QUANTITIES, demands.rates[1][:, 0].tolist(), strict=True))


@pytest.mark.parametrize(("gpu", "lanes"), [("a100", 64), ("rtx3090", 128), ("rtx4090", 128), ("t4", 64)])
def test_fma_time_is_instructions_divided_by_lanes(gpu, lanes):
    assert rates(gpu, issue=64, issue__fma32=64)["fma"] == 64 * 32 / lanes


@pytest.mark.parametrize(
    ("gpu", "bf16", "per_clk"),
    [("a100", False, 256), ("a100", True, 128), ("h200-sxm", True, 256), ("rtx3090", False, 128), ("t4", True, 128)],
)
def test_half_precision_arithmetic_runs_at_the_documented_rate(gpu, bf16, per_clk):
    assert rates(gpu, bf16, issue=64, issue__f16=64)["fma"] == 64 * 2 * 32 / per_clk  # two numbers in each of 32 lanes


def test_f64_pipe_takes_20_clocks_per_instruction_with_two_lanes():
    counts = {"issue": 8.0, "issue__f64": 4.0, "issue__cvt64": 2.0, "issue__mufu": 2.0}
    few, many = rates("rtx3090", **counts), rates("a100", **counts)
    assert few["f64"] == pytest.approx((4 + 2) * 20.0)
    assert few["special"] == 2 * 2.0
    assert many["f64"] == 4 * 1.0
    assert many["special"] == 2 * 2.0 + 2 * 2.0  # the special function units also convert numbers


@pytest.mark.parametrize(
    ("gpu", "slow"),
    [("rtx2080ti", {"cvt", "i2f", "f2i"}), ("a100", {"i2f", "f2i"}), ("rtx3090", {"f2i"}), ("h100", {"f2i"})],
)
def test_slow_conversions_use_the_special_function_units(gpu, slow):
    for name in ("cvt", "i2f", "f2i"):
        taken = rates(gpu, issue=4, **{f"issue__{name}": 4})
        assert (taken["special"], taken["int"]) == ((8.0, 0.0) if name in slow else (0.0, 2.0))


def test_register_moves_in_ptx_take_no_time():
    assert rates("a100", issue=100, issue__mov=60)["issue"] == pytest.approx(rates("a100", issue=40)["issue"])


def test_integer_additions_leave_the_float_pipe_free_but_multiplications_use_it():
    floats = {"issue": 96.0, "issue__fma32": 64.0}
    for gpu in ("a100", "rtx3090", "t4"):
        alone = rates(gpu, **floats)
        assert rates(gpu, **floats, issue__alu=32.0)["fma"] == alone["fma"]
        assert rates(gpu, **floats, issue__alu=32.0)["int"] > alone["int"] == 0
        assert rates(gpu, **floats, issue__imad=32.0)["fma"] > alone["fma"]
        assert rates(gpu, **floats, issue__imad=32.0)["int"] == 0


def test_integer_multiply_runs_at_half_rate_on_sms_with_128_float_lanes():
    assert rates("rtx3090", issue=64, issue__imad=64)["fma"] == 2 * rates("rtx3090", issue=64, issue__fma32=64)["fma"]
    assert rates("t4", issue=64, issue__imad=64)["fma"] == rates("t4", issue=64, issue__fma32=64)["fma"]
    # Half of the lanes multiply integers while the other half computes floats.
    mixed = rates("rtx3090", issue=96, issue__fma32=64, issue__imad=32)["fma"]
    assert mixed == pytest.approx(rates("rtx3090", issue=96, issue__fma32=96)["fma"])


def test_float_arithmetic_issues_less_often_than_other_instructions():
    floats, others = rates("rtx3090", issue=64, issue__fma32=64), rates("rtx3090", issue=64, issue__alu=64)
    assert floats["issue"] > others["issue"] > 64 / 4


def test_tensor_instruction_occupies_the_tensor_cores_at_their_rate():
    flops = 2 * 16 * 8 * 16
    per_clock = rates("rtx3090", issue=1, issue__mma=1, mma__f16=flops)
    assert per_clock["tensor"] == flops / 2 / find_gpu("rtx3090").tensor_fma_per_clk_sm["f16"]
    assert per_clock["core_j"] > rates("rtx3090", issue=1, issue__mma=1)["core_j"]


@pytest.mark.parametrize(("gpu", "family"), [("h200", "wgmma"), ("b200", "tcgen05")])
def test_tensor_cores_read_128_bytes_of_shared_memory_per_clock(gpu, family):
    card = find_gpu(gpu)
    operations = 2.0 * 128 * 128 * 16
    counts = {"mma__f16": operations, f"{family}__f16": operations, f"{family}__shared_bytes": 2.0 * 128 * 32}
    took = rates(gpu, **counts)
    assert took["shared memory"] == 64.0
    at_boost = card.tensor_fma_per_clk_sm["f16"] * card.tensor_clock_hz / card.boost_clock_hz
    assert took["tensor"] == pytest.approx(operations / 2 / at_boost)


def test_tensor_memory_load_takes_one_clock_per_column():
    assert rates("b200", tensor_memory__load_bytes=128 * 64 * 4)["LSU"] == 64.0


def test_mma_sync_reaches_under_70_percent_of_peak_on_hopper():
    gpu = find_gpu("h100")
    assert microarchitecture(gpu).mma_sync_share < 0.7
    per_clock = rates("h100", issue=1, issue__mma=1, mma__bf16=4096)
    per_s = gpu.peak_flops("bf16", tensor=True) / gpu.sms
    assert per_clock["tensor"] / gpu.boost_clock_hz == pytest.approx(
        4096 / per_s / microarchitecture(gpu).mma_sync_share
    )


@pytest.mark.parametrize(("gpu", "clk"), [("a100", 1), ("h100", 1), ("rtx-a4000", 2), ("rtx4090", 2), ("t4", 2)])
def test_load_store_unit_time_does_not_depend_on_width(gpu, clk):
    narrow = rates(gpu, issue=1, issue__ld_shared=1, shared__load_wavefronts=1)
    wide = rates(gpu, issue=1, issue__ld_shared=1, shared__load_wavefronts=4)
    assert narrow["LSU"] == wide["LSU"] == clk
    wavefront_clk = 2 if gpu == "t4" else 1  # Turing moves 64 bytes a clock
    assert wide["shared memory"] == 4 * wavefront_clk
    assert rates(gpu, issue=1, issue__atomic=1, shared__atomic_wavefronts=4)["shared memory"] == 4 * wavefront_clk


def test_atomic_increments_of_one_word_are_serialized_only_before_ampere():
    merged = {"issue": 1.0, "issue__atomic": 1.0, "shared__atomic_wavefronts": 1.0, "shared__atomic_repeats": 31.0}
    assert rates("a100", **merged)["shared memory"] == 1.0
    assert rates("t4", **merged)["shared memory"] == 32 * 2.0


def test_pipe_times_overlap_only_within_a_code_section():
    counts = {"issue": 80.0, "issue__fma32": 64.0, "issue__f64": 16.0}
    apart = rates("rtx3090", **counts, stretch__0__fma32=64.0, stretch__1__f64=16.0)
    mixed = rates("rtx3090", **counts, stretch__0__fma32=64.0, stretch__0__f64=16.0)
    assert apart["in_turn"] == pytest.approx(apart["f64"] + max(apart["fma"], apart["issue"]), rel=0.1)
    assert apart["f64"] <= mixed["in_turn"] <= 1.1 * apart["f64"]
    assert rates("rtx3090", **counts)["in_turn"] == 0.0
    ahead = {"stretch__0__fma32": 64.0, "stretch__1__f64": 16.0, "issue__cp_async": 1.0}
    assert rates("rtx3090", **counts, **ahead)["in_turn"] == 0.0


def test_float_and_tensor_instructions_overlap_partly():
    softmax = {"issue": 24.0, "issue__fma32": 16.0, "issue__mufu": 8.0}
    assert rates("a100", **softmax)["between"] == 0
    assert rates("a100", mma__f16=4096, **softmax)["between"] == 16 * 32 / 64 + 8 * 32 / 16
    # Operands are converted before the products, not between them.
    assert rates("a100", issue=8, issue__cvt=8, mma__tf32=4096)["between"] == 0


def test_l1_hits_use_only_l1():
    per_clock = rates("a100", issue=1, issue__ld_global=1, l1__wavefronts=2)
    assert (per_clock["L1"], per_clock["sectors"]) == (2, 0)


LOADS = {"issue": 1.0, "issue__ld_global": 1.0, "global__x__read_bytes": 512.0, "global__x__read_passes": 4.0}


def test_l1_delivers_64_bytes_per_clock_and_shares_its_port_with_shared_memory():
    assert rates("a100", **LOADS)["L1"] == 512 / 64
    assert rates("a100", **LOADS | {"global__x__read_passes": 16.0})["L1"] == 16
    assert rates("t4", **LOADS | {"global__x__read_passes": 16.0})["L1"] == 32


@pytest.mark.parametrize(("gpu", "clk"), [("gtx1650", 62), ("rtx2070", 36)])
def test_turings_l1_takes_the_published_clocks_for_32_lines(gpu, clk):
    scattered = {"issue": 1.0, "issue__ld_global": 1.0, "global__x__read_bytes": 128.0, "global__x__read_passes": 32.0}
    assert rates(gpu, **scattered)["L1"] == pytest.approx(clk, rel=0.04)


def test_l1_and_shared_memory_take_turns_at_their_port():
    per_clock = rates("a100", **LOADS, shared__load_wavefronts=5)
    assert per_clock["port"] == per_clock["L1"] + per_clock["shared memory"] == 8 + 5


def test_asynchronous_copy_uses_the_l1_port_only_once():
    copy = {"issue": 1.0, "issue__cp_async": 1.0, "global__x__read_bytes": 512.0, "global__x__read_sectors": 16.0}
    per_clock = rates("a100", **copy, shared__store_wavefronts=4)  # the emulator counts these copies as stores
    assert (per_clock["shared memory"], per_clock["L1"]) == (4, 16 / 2)
    assert per_clock["port"] == per_clock["L1"]


def test_arithmetic_of_wgmma_kernels_is_counted_separately():
    softmax = {"issue": 8.0, "issue__mufu": 4.0, "issue__mma": 1.0, "mma__f16": 4096.0}
    warps, groups = rates("h200", **softmax), rates("h200", **softmax, wgmma__f16=4096.0)
    assert (warps["between"], warps["between_groups"]) == (groups["between_groups"], groups["between"]) == (8.0, 0.0)


def test_memory_counts_become_events_of_the_power_model():
    counts = {
        "issue.fma32": 3, "shared.load_wavefronts": 4, "shared.store_wavefronts": 1, "global.a.read_sectors": 8,
        "global.c.write_sectors": 2, "global.a.read_requests": 2, "barriers": 1,
        "local.write_sectors": 64, "local.l2_sectors": 32,
    }  # fmt: skip
    assert events(counts) == {"issue.fma32": 3, "shared.wavefronts": 5, "l2.sectors": 42, "l1.requests": 2}


def test_shared_memory_energy_includes_wgmma_and_bulk_copies():
    counts = {"shared.load_wavefronts": 2.0, "wgmma.shared_bytes": 640.0, "bulk.shared_write_bytes": 256.0}
    assert events(counts)["shared.wavefronts"] == 2.0 + 640.0 / 128 + 256.0 / 128


SIZES = {"a": 64e6, "b": 64e6, "c": 64e6}
counts = st.integers(1, 64)


def moved(tiles_m: int, tiles_n: int, group: int, wave: int, l2_bytes: float) -> float:
    extents = float(min(group, tiles_m)), float(tiles_n), float(np.ceil(tiles_m / group))
    blocks, together = np.array([float(tiles_m * tiles_n)]), np.array([float(wave)])
    access = TensorAccess("mnm", {"a": "m", "b": "n"}, ("c",))
    return float(dram_bytes(access, extents, list(SIZES.values()), blocks, together, l2_bytes)[0])


def test_wave_of_blocks_covers_the_fastest_grid_axis_first():
    order = [("m", 8.0), ("n", 16.0), ("m", 4.0)]
    assert [float(c) for c in covered(order, np.array(4.0))] == [4, 1, 1]
    assert [float(c) for c in covered(order, np.array(32.0))] == [8, 4, 1]
    assert [float(c) for c in covered(order, np.array(256.0))] == [8, 16, 2]


@given(counts, counts, counts, st.integers(1, 512))
def test_dram_traffic_is_at_least_the_size_of_all_tensors(tiles_m, tiles_n, group, wave):
    assert moved(tiles_m, tiles_n, group, wave, 0.0) >= sum(SIZES.values()) * 0.999


@given(counts, counts, counts, st.integers(1, 512))
def test_tensors_that_fit_in_l2_are_read_from_dram_once(tiles_m, tiles_n, group, wave):
    assert moved(tiles_m, tiles_n, group, wave, 1e9) == pytest.approx(sum(SIZES.values()))


def test_blocks_without_l2_reuse_read_their_inputs_from_dram():
    # Each of 16 x 16 blocks reads 1/16 of `a` and 1/16 of `b`, so each tensor is read 16 times.
    assert moved(16, 16, 1, 1, 0.0) == pytest.approx(16 * SIZES["a"] + 16 * SIZES["b"] + SIZES["c"])


def test_grouped_block_order_reduces_dram_traffic():
    assert moved(64, 64, 8, 64, 0.0) < moved(64, 64, 1, 64, 0.0)


def test_scratch_tensor_that_fits_in_l2_never_reaches_dram():
    blocks, wave = np.array([4.0]), np.array([4.0])
    access = TensorAccess("m", {"partial": "m"}, "c", scratch={"partial"})
    assert dram_bytes(access, (4.0,), (4e6, 1e6), blocks, wave, 1e9) == 1e6
    assert dram_bytes(access, (4.0,), (4e6, 1e6), blocks, wave, 0.0) == 5e6


def test_partly_written_scratch_in_l2_causes_no_dram_traffic():
    row, blocks = np.ones(1), np.array([4.0])
    partly = Footprint(1e6 * row, (row, row, row), 4e6 * row, True, scratch=True, stored_bytes=1e6 / 8 * row)
    grid = (blocks, row, row)
    assert sampled_dram_bytes(grid, [partly], blocks, 1e9) == 0.0
    assert sampled_dram_bytes(grid, [partly], blocks, 0.0) == 8e6


@given(
    grid=st.tuples(st.integers(1, 200), st.integers(1, 200)),
    wave=st.integers(1, 5000),
    l2=st.floats(1e3, 1e9),
    tile=st.floats(32, 1e5),
)
def test_dram_traffic_from_footprints_equals_traffic_from_tensor_accesses(grid, wave, l2, tile):
    x, y = map(float, grid)
    sizes = {"a": tile * y, "b": tile * x, "c": tile * x * y}
    access = TensorAccess("xy", {"a": "y", "b": "x"}, "c")
    declared = dram_bytes(access, (x, y), list(sizes.values()), np.array([x * y]), np.array([float(wave)]), l2)
    footprints = [
        Footprint(tile, (0.0, 1.0, 1.0), sizes["a"], False),
        Footprint(tile, (1.0, 0.0, 1.0), sizes["b"], False),
        Footprint(tile, (1.0, 1.0, 1.0), sizes["c"], True),
    ]
    seen = sampled_dram_bytes((x, y, 1.0), footprints, float(wave), l2)
    assert float(seen) == pytest.approx(float(declared[0]), rel=1e-6)


def test_partly_written_sectors_are_read_from_dram_first():
    def moved(stored_bytes: float) -> float:
        written = Footprint(8192.0, (1.0, 1.0, 1.0), 1e9, True, stored_bytes=stored_bytes)
        return float(sampled_dram_bytes((1000.0, 1.0, 1.0), [written], 10.0, 0.0))

    whole = 8192.0 * 1000.0
    assert moved(8192.0) == moved(np.inf) == whole
    assert moved(1024.0) == pytest.approx(2.0 * whole)  # a stride of one float per sector
    assert whole < moved(4096.0) < 2.0 * whole


def test_halo_is_read_from_dram_again_only_after_eviction():
    halo = Footprint(100.0, (0.8, 1.0, 1.0), 1e9, False)
    once = 100.0 * (1 + 0.8 * 999)
    assert sampled_dram_bytes((1000.0, 1.0, 1.0), [halo], 10.0, 1e9) == pytest.approx(once)
    without_cache = sampled_dram_bytes((1000.0, 1.0, 1.0), [halo], 10.0, 0.0)
    assert without_cache == pytest.approx(100 * 100.0 * (1 + 0.8 * 9))


ROW = 2.0**20
"""Bytes of a row that a block reads twice."""


@pytest.mark.parametrize(("shared", "l2", "passes"), [
    (False, 2.0**27, 1.0), (False, 2.0**24, 2.0), (True, 2.0**24, 1.0), (True, 2.0**18, 2.0),
])  # fmt: skip
def test_second_pass_is_free_only_if_all_rows_in_use_fit_in_l2(shared, l2, passes):
    """64 of 256 blocks run at a time. Each block has its own row, or all blocks share a row."""
    blocks, size = 256.0, ROW if shared else 256.0 * ROW
    rows = Footprint(np.full(1, ROW), (np.full(1, 0.0 if shared else 1.0), np.ones(1), np.ones(1)), size, False)
    far = tuple(np.full(1, ROW if 2.0**power < ROW else 0.0) for power in range(13, 25))
    rereads = Rereads(far, 2.0**13, np.full(1, 2.0**12))
    flat = np.ones(1)
    moved = sampled_dram_bytes((np.full(1, blocks), flat, flat), [rows], np.full(1, 64.0), l2, rereads)
    once = sampled_dram_bytes((np.full(1, blocks), flat, flat), [rows], np.full(1, 64.0), l2)
    waves = blocks / 64.0 if shared else blocks
    assert moved - once == pytest.approx((passes - 1.0) * ROW * waves)


def test_second_pass_within_l1_does_not_reach_dram():
    rereads = Rereads((np.full(1, ROW), np.full(1, ROW), np.zeros(1)), 2.0**14, np.full(1, 2.0**16))
    assert rereads.beyond(np.zeros(1)) == 0.0
