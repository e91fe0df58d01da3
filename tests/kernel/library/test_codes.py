"""Test the number of compiled variants per kernel and architecture, and that the largest variants do not spill."""

import pytest

from kernrec.gpu import limits
from kernrec.kernel import Space, find_kernel
from tests.helpers.kernel_code import assembled

CODES = {
    "matmul_mma": (30, 40), "matmul_tf32": (30, 50), "attention_mma": (5, 60), "attention_simt": (5, 40),
    "attention_wgmma": (10, 40), "conv2d_implicit_gemm_mma": (20, 120), "conv2d_direct": (20, 80),
    "conv2d_depthwise": (20, 80),
}  # fmt: skip
"""Minimum and maximum number of variants by kernel; on Turing, matmul_mma has 15 to 20 for half precision."""


@pytest.mark.parametrize("name", CODES)
def test_each_architecture_has_dozens_of_variants_with_fast_profiles(name):
    kernel = find_kernel(name)
    for sm in (75, 80, 86, 89, 90, 100, 120):
        least, most = CODES[name] if (name, sm) != ("matmul_mma", 75) else (15, 20)
        for dtype in kernel.dtypes:
            for layout in kernel.layouts if kernel.runs_on(dtype, sm) else ():
                assert least <= len(Space(kernel, sm, limits(sm), dtype, layout).variants.keys) <= most


HUNGRY = [
    # columns: kernel, values of its tunables, dtype, layout, sm, maximum registers
    *(
        ("matmul_mma", values, "f16", layout, 86, most)
        for layout in find_kernel("matmul_mma").layouts
        for values, most in (
            ((128, 128, 64, 64, 64, 8, 2, 2, 1, 1), 255),
            ((64, 256, 32, 32, 64, 8, 4, 1, 1, 1), 128),
        )
    ),
    ("conv2d_implicit_gemm_mma", (128, 256, 64, 64, 64, 8, 2, 2, 1, 1), "f16", "nhwc", 86, 255),
    ("conv2d_implicit_gemm_mma", (256, 64, 64, 64, 32, 8, 3, 1, 1, 1), "bf16", "nhwc", 86, 128),
    ("conv2d_implicit_gemm_mma", (128, 128, 32, 64, 64, 8, 2, 1, 1, 1), "f16", "nhwc", 75, 255),
    ("conv2d_direct", (4, 16, 4), "f16", "nchw", 75, 255),
    ("conv2d_depthwise", (3, 2, 8, 8, 16, 2, 4, 8, 0), "f16", "nhwc", 75, 255),
    ("attention_mma", (128, 128, 32, 1, 64, 2, 0, 1), "f16", "bhsd", 86, 255),
    ("attention_mma", (96, 128, 32, 1, 64, 1, 0, 1), "bf16", "bhsd", 86, 255),
    ("attention_mma", (80, 128, 32, 1, 64, 1, 0, 1), "f16", "bhsd", 75, 255),
    ("attention_mma", (128, 16, 16, 4, 128, 1, 0, 1), "f16", "bhsd", 75, 255),
    ("attention_mma", (64, 128, 32, 1, 128, 2, 0, 1), "f16", "bhsd", 86, 255),
    ("attention_simt", (160, 128, 4, 4, 4, 0, 1), "f32", "bhsd", 86, 255),
]


@pytest.mark.slow
@pytest.mark.every(4)
@pytest.mark.parametrize(("name", "values", "dtype", "layout", "sm", "most"), HUNGRY, ids=str)
def test_variants_with_the_most_registers_do_not_spill(name, values, dtype, layout, sm, most):
    kernel = find_kernel(name)
    config = dict(zip((tunable.name for tunable in kernel.tunables), values, strict=True))
    resources = assembled(kernel, config, dtype, layout, sm).resources[kernel.launches[0].entry]
    assert (resources.spill_store_bytes, resources.spill_load_bytes) == (0, 0)
    assert resources.registers <= most
