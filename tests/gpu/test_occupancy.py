"""Test that occupancy follows NVIDIA's rules on every architecture, and that its two implementations agree."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.gpu import LIMITERS, l1_bytes, limits, occupancy
from tests.helpers.paths import beside

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)

sms = st.sampled_from(ARCHITECTURES)
threads = st.integers(-40, 1100)
registers = st.integers(-2, 260)
smem = st.one_of(st.integers(-200, 240_000), st.sampled_from([0, 65536, 65537, 101376, 101377, 166912, 232448, 232449]))


@pytest.mark.parametrize(("sm", "block", "blocks", "limiter"), [
    (86, (256, 128, 0), 2, "registers"),  # 4,096 registers per warp allow 16 warps per SM
    (86, (256, 32, 0), 6, "warps"),
    (86, (32, 32, 0), 16, "blocks"),
    (89, (32, 32, 0), 24, "blocks"),
    (120, (32, 32, 0), 24, "blocks"),
    (80, (32, 32, 0), 32, "blocks"),
    (75, (256, 64, 0), 4, "warps"),  # registers also allow 4 blocks; the first limit is reported
    (75, (128, 32, 32768), 2, "shared memory"),  # before compute capability 8.0, no shared memory is reserved
    (86, (128, 32, 49152), 2, "shared memory"),  # two blocks of 48 KB, each plus 1 KB reserved, fill 98 of 100 KB
    (86, (128, 32, 50176), 2, "shared memory"),  # two blocks of 49 KB, each plus 1 KB reserved, fill exactly 100 KB
    (86, (128, 32, 50177), 1, "shared memory"),
    (80, (1024, 33, 0), 1, "registers"),  # 40 registers per thread are 1,280 per warp, so 48 warps fit
    (90, (128, 168, 0), 3, "registers"),
    (90, (384, 168, 0), 1, "registers"),
    (90, (256, 64, 232448), 1, "shared memory"),
    (100, (512, 32, 0), 4, "warps"),
])  # fmt: skip
def test_occupancy_matches_known_block_counts(sm, block, blocks, limiter):
    result = occupancy(limits(sm), *block)
    assert (result.blocks, LIMITERS[result.limiter]) == (blocks, limiter)
    assert result.warps == blocks * -(-block[0] // 32)
    assert result.fraction == result.warps / limits(sm).max_warps_per_sm


@pytest.mark.parametrize(
    "block", [(0, 32, 0), (-1, 32, 0), (1025, 32, 0), (128, 256, 0), (1024, 65, 0), (992, 72, 0), (32, 32, 101377)]
)
def test_impossible_block_has_no_occupancy_and_no_limiter(block):
    result = occupancy(limits(86), *block)
    assert (result.blocks, result.warps, result.fraction, result.limiter) == (0, 0, 0.0, -1)


@given(sm=sms, rows=st.lists(st.tuples(threads, registers, smem), min_size=1, max_size=50))
def test_arrays_and_single_values_give_equal_results(sm, rows):
    many = occupancy(limits(sm), *np.array(rows).T)
    for i, row in enumerate(rows):
        single = occupancy(limits(sm), *row)
        assert (single.blocks, single.warps, single.fraction, single.limiter) == (
            many.blocks[i], many.warps[i], many.fraction[i], many.limiter[i],
        )  # fmt: skip


@given(
    sm=sms,
    threads=st.integers(1, 1024),
    registers=st.integers(0, 255),
    smem=st.integers(0, 232448),
    more=st.tuples(st.integers(0, 64), st.integers(0, 32), st.integers(0, 8192)),
)
def test_larger_resource_use_never_fits_more_blocks(sm, threads, registers, smem, more):
    before = occupancy(limits(sm), threads, registers, smem)
    after = occupancy(limits(sm), threads + more[0], registers + more[1], smem + more[2])
    assert after.blocks <= before.blocks
    assert 0 <= before.fraction <= 1


HEADER = next(Path(sysconfig.get_path("purelib")).glob("nvidia/**/cuda_occupancy.h"), None)

ORACLE = beside(__file__, "oracle.cu")


@pytest.mark.skipif(HEADER is None, reason="no CUDA runtime wheel: pip install '.[cuda13]'")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_block_counts_match_the_cuda_toolkit(tmp_path):
    assert HEADER is not None
    (tmp_path / "oracle.c").write_text(ORACLE)
    program = tmp_path / "oracle"
    subprocess.run(["cc", "-w", f"-I{HEADER.parent}", "-o", program, tmp_path / "oracle.c"], check=True)

    draw = np.random.default_rng(2)
    count = 5_000
    for sm in ARCHITECTURES:
        of_sm = limits(sm)
        block = np.stack(
            [
                draw.integers(1, 1025, count),
                draw.integers(1, 256, count),
                draw.integers(0, of_sm.smem_per_block + 1, count) // draw.integers(1, 64, count),
            ]
        )
        device = (
            f"{sm} {of_sm.max_warps_per_sm} {of_sm.smem_per_sm} {of_sm.smem_per_block} {of_sm.smem_reserved_per_block}"
        )
        rows = "\n".join(f"{device} {t} {r} {s}" for t, r, s in block.T)
        answer = subprocess.run([program], input=rows, capture_output=True, text=True, check=True).stdout
        np.testing.assert_array_equal(
            occupancy(of_sm, *block).blocks, np.array(answer.split(), int), err_msg=f"sm_{sm}"
        )


def test_l1_gets_the_cache_that_shared_memory_leaves():
    ampere, turing = limits(86), limits(75)
    blocks = np.array([1, 1, 6, 16])
    assert l1_bytes(ampere, blocks, np.array([0, 48 << 10, 8 << 10, 6 << 10])).tolist() == [
        size << 10 for size in (128, 64, 64, 28)
    ]
    assert l1_bytes(turing, np.array([1]), np.array([0])).tolist() == [64 << 10]
