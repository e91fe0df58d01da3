"""Test the alignment of swizzled tiles, which the emulator cannot check: its shared memory starts at address 0."""

import re

import pytest

from kernrec.kernel import find_kernel
from tests.helpers.kernel_code import not_assembled

_TILES = {"block_m": 128, "block_n": 128, "block_k": 64, "stages": 6, "cluster": 2, "raster": 1, "block_tiles": 1}


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
