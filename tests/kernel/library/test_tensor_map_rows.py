"""Test that kernels with tensor maps refuse matrices whose rows a map cannot describe."""

import pytest

from kernrec.errors import UsageError
from kernrec.gpu import limits
from kernrec.kernel import Space, bind_launches, find_kernel
from tests.helpers.products import matmul

TILES = {"block_m": 128, "block_n": 128, "block_k": 64, "stages": 6, "cluster": 2, "raster": 1, "block_tiles": 1}


@pytest.mark.parametrize(
    ("name", "sm", "config"),
    [("matmul_wgmma", 90, TILES | {"split_k": 1, "stream": 0}), ("matmul_tcgen05", 100, TILES)],
)
def test_rows_that_a_tensor_map_cannot_describe_are_refused(name, sm, config):
    kernel = find_kernel(name)
    space = Space(kernel, sm, limits(sm), "bf16", "nt")
    assert len(space.at(matmul("bf16", "nt", m=300, n=264, k=72)).rows)
    for dims in ({"m": 300, "n": 264, "k": 68}, {"m": 300, "n": 262, "k": 72}):
        assert not len(space.at(matmul("bf16", "nt", **dims)).rows)
    with pytest.raises(UsageError, match=r"map a: strides are 136, 40800 bytes and the box .*; expected multiples"):
        bind_launches(kernel, config, matmul("bf16", "nt", m=300, n=264, k=68), sm)
