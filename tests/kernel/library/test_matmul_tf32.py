"""Test the specifics of `matmul_tf32` that test_kernels.py does not cover."""

from functools import partial

import numpy as np
import pytest

from kernrec.gpu import limits
from kernrec.kernel import find_kernel
from kernrec.op import inputs, reference
from tests.helpers.counted import profiled
from tests.helpers.kernel_code import not_assembled
from tests.helpers.narrow_floats import tf32_bits
from tests.helpers.products import awkward, bits, breaks, broken, exact, mma_config, named, run

pytestmark = pytest.mark.slow

KERNEL = find_kernel("matmul_tf32")
SM = 86
LAYOUTS = pytest.mark.parametrize("layout", KERNEL.layouts)


_config = partial(mma_config, vector=4, stages=4)
CONFIGS = (
    _config(32, 32, 32, 16, 32, stages=3), _config(64, 64, 16, 32, 32, split_k=4),
    _config(64, 128, 16, 32, 64, fragments=1, raster=8), _config(128, 64, 16, 64, 32, fragments=1, split_k=2),
    _config(128, 128, 16, 64, 64, split_k=2, raster=8), _config(64, 256, 32, 64, 64, stages=2),
    _config(64, 64, 16, 32, 32, vector=1, split_k=2), _config(32, 128, 16, 32, 32, vector=1, raster=8),
)  # fmt: skip
SPREAD = [(config, KERNEL.layouts[(i + step) % 4]) for i, config in enumerate(CONFIGS) for step in (0, 2 - i // 4)]
"""Each config with two of the layouts, so that each layout has four configs."""


@pytest.mark.every(3)
@pytest.mark.parametrize(("config", "layout"), SPREAD, ids=named)
def test_integers_are_multiplied_exactly_without_races(config, layout):
    problem = awkward(config, "tf32", layout, k=5 * config["block_k"] + 3 * config["vector"])
    assert KERNEL.misfit(config, problem, limits(SM)) is None
    assert exact(KERNEL, config, problem, SM)


@LAYOUTS
def test_operands_round_to_nearest_ten_bits(layout):
    config = CONFIGS[1]
    problem = awkward(config, "tf32", layout)
    operands = inputs(problem, seed=3)
    rounded = {name: tf32_bits(value, "rna").view(np.float32) for name, value in operands.items()}
    expected = reference(problem, rounded)["c"]
    size = reference(problem, {name: np.abs(value) for name, value in rounded.items()})["c"]
    c = run(KERNEL, config, problem, operands, SM)
    assert (np.abs(c - expected) <= (problem.sizes["k"] + 1) * 2.0**-24 * size).all()
    assert (np.abs(c - reference(problem, operands)["c"]) > 2.0**-16 * size).any(), "it is not the product of f32"
    assert bits(run(KERNEL, config, problem, rounded, SM)) == bits(c)


BREAKS = [
    (0, "nn", "__syncthreads();", ""), (2, "tt", "__syncthreads();", ""),
    (1, "nt", "wait_for_copies<STAGES - 2>();", ""), (1, "nn", "commit_copies();\n", "\n"),
    (0, "nn", "< rows_left &&", "<= rows_left &&"), (6, "nn", "columns_left > 0", "true"),
    (0, "tn", "rows_left -= BLOCK_K", "rows_left -= 0"),
    (7, "nn", "sum + 1, target.holds(at + 1)", "sum + 1, target.holds(at)"),
    (0, "nn", "row < m && column < n", "column < n"), (1, "nn", "min(blockIdx.y, longer_shares)", "0"),
    (2, "tn", "row % 4 * 2", "row % 4"), (2, "nn", "i % 2 * 4;", "i % 2 * 2;"),
    (2, "nn", "extent + lane / 4)", "extent + lane / 8)"), (1, "nt", "lane / 16 * WORDS", "lane / 8 % 2 * WORDS"),
    (5, "nn", "T::exchange(i * ROW_STEP)", "0"), (1, "nt", '"r"(a[1][0]), "r"(a[0][1])', '"r"(a[0][1]), "r"(a[1][0])'),
]  # fmt: skip


@pytest.mark.every(8)
@pytest.mark.parametrize(("number", "layout", "old", "new"), BREAKS, ids=[f"{b[1]} {b[2]}" for b in BREAKS])
def test_mutated_source_fails(number, layout, old, new):
    config, kernel = CONFIGS[number], broken(KERNEL, old, new)
    problem = awkward(config, "tf32", layout, k=156)  # four shares have 2 or 3 tiles each
    if not breaks(kernel, config, problem, SM):
        # The results stay correct, but the broken swizzle must cause bank conflicts.
        code = not_assembled(kernel, config, "tf32", layout, SM)
        counts = profiled(kernel, [config | {"split_k": 1}], "tf32", layout, SM, code)[0].profile.counts(
            {"block": 1, "k_tiles": 1}
        )
        assert counts["shared.load_wavefronts"] > counts["shared.load_ideal"]
