"""Test the number of bytes between L2 and DRAM, computed by walking over tiles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.model.prior.dram_traffic import (
    Footprint,
    Rereads,
    TensorAccess,
    covered,
    dram_bytes,
    sampled_dram_bytes,
)

READS = {"a": "m", "b": "n"}
WRITES = ("c",)
SIZES = {"a": 64e6, "b": 64e6, "c": 64e6}
counts = st.integers(1, 64)


def moved(tiles_m: int, tiles_n: int, group: int, wave: int, l2_bytes: float) -> float:
    extents = float(min(group, tiles_m)), float(tiles_n), float(np.ceil(tiles_m / group))
    blocks, together = np.array([float(tiles_m * tiles_n)]), np.array([float(wave)])
    access = TensorAccess("mnm", READS, WRITES)
    return float(dram_bytes(access, extents, list(SIZES.values()), blocks, together, l2_bytes)[0])


def test_wave_covers_the_fastest_axis_first():
    order = [("m", 8.0), ("n", 16.0), ("m", 4.0)]
    assert [float(c) for c in covered(order, np.array(4.0))] == [4, 1, 1]
    assert [float(c) for c in covered(order, np.array(32.0))] == [8, 4, 1]
    assert [float(c) for c in covered(order, np.array(256.0))] == [8, 16, 2]


@given(counts, counts, counts, st.integers(1, 512))
def test_every_byte_moves_at_least_once(tiles_m, tiles_n, group, wave):
    assert moved(tiles_m, tiles_n, group, wave, 0.0) >= sum(SIZES.values()) * 0.999


@given(counts, counts, counts, st.integers(1, 512))
def test_data_that_fits_in_l2_moves_once(tiles_m, tiles_n, group, wave):
    assert moved(tiles_m, tiles_n, group, wave, 1e9) == pytest.approx(sum(SIZES.values()))


def test_single_resident_block_reloads_its_rows_and_columns():
    # 16 x 16 tiles: each block reads a sixteenth of a and of b; 256 of them read each tensor sixteen times.
    assert moved(16, 16, 1, 1, 0.0) == pytest.approx(16 * SIZES["a"] + 16 * SIZES["b"] + SIZES["c"])


def test_grouped_order_shares_more_within_a_wave():
    assert moved(64, 64, 8, 64, 0.0) < moved(64, 64, 1, 64, 0.0)


def test_scratch_tensor_that_fits_in_l2_never_reaches_dram():
    blocks, wave = np.array([4.0]), np.array([4.0])
    access = TensorAccess("m", {"partial": "m"}, "c", scratch={"partial"})
    assert dram_bytes(access, (4.0,), (4e6, 1e6), blocks, wave, 1e9) == 1e6
    assert dram_bytes(access, (4.0,), (4e6, 1e6), blocks, wave, 0.0) == 5e6


@given(
    grid=st.tuples(st.integers(1, 200), st.integers(1, 200)),
    wave=st.integers(1, 5000),
    l2=st.floats(1e3, 1e9),
    tile=st.floats(32, 1e5),
)
def test_sampled_tiles_move_like_declared_tiles(grid, wave, l2, tile):
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


def test_halo_is_reread_only_after_it_left_the_cache():
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
def test_second_pass_over_a_row_is_free_only_if_the_rows_of_all_blocks_fit_in_l2(shared, l2, passes):
    """64 of 256 blocks run at a time. Each has a row of its own, or all have the same row."""
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
