"""Test the specifics of `matmul_mma` and `matmul_tf32` that test_kernels.py does not cover."""

from functools import partial

import numpy as np
import pytest

from kernrec.gpu import limits
from kernrec.kernel import find_kernel
from kernrec.op import inputs, reference
from tests.helpers.counted import profiled, unpredicted
from tests.helpers.kernel_code import mutants, not_assembled, source_of
from tests.helpers.narrow_floats import tf32_bits
from tests.helpers.products import awkward, bits, breaks, broken, exact, mma_config, named, run

pytestmark = pytest.mark.slow

KERNEL = find_kernel("matmul_mma")
SM = 86
LAYOUTS = pytest.mark.parametrize("layout", KERNEL.layouts)


_config = partial(mma_config, vector=8, stages=3)
CONFIGS = (
    _config(32, 32, 64, 16, 32, stages=4),
    _config(64, 64, 32, 32, 32, stages=4, split_k=4),
    _config(64, 128, 32, 32, 64, stages=4, fragments=1, raster=8),
    _config(128, 64, 32, 64, 32, stages=4, fragments=1, split_k=2),
    _config(128, 128, 32, 64, 64, stages=4, split_k=2, raster=8),
    _config(64, 256, 64, 64, 64, stages=2),
    _config(64, 128, 32, 32, 32, vector=2, split_k=2),
    _config(64, 64, 32, 32, 32, vector=1, stages=2, fragments=1, split_k=2),
)
TURING = (
    _config(64, 64, 32, 32, 32, stages=2, fragments=1),
    _config(64, 128, 32, 32, 64, stages=2, fragments=1, split_k=2),
    _config(64, 256, 32, 64, 64, stages=2, fragments=1, raster=8),
    _config(64, 128, 32, 32, 32, vector=1, stages=2, fragments=1, split_k=2),
)
ALL = [(SM, config) for config in CONFIGS] + [(75, config) for config in TURING]


EACH = pytest.mark.parametrize(("sm", "config"), ALL, ids=named)
SPREAD = [(*case, KERNEL.layouts[(i + step) % 4]) for i, case in enumerate(ALL) for step in (0, 2 - i // 4 % 2)]
"""Each config with two of the layouts, so that each layout has six configs."""


@pytest.mark.every(3)
@pytest.mark.parametrize(("sm", "config", "layout"), SPREAD, ids=named)
def test_integer_matmul_is_exact_and_has_no_races(sm, config, layout):
    problem = awkward(config, "f16", layout, k=5 * config["block_k"] + 3 * config["vector"])
    assert exact(KERNEL, config, problem, sm)


@pytest.mark.parametrize("number", range(4))
def test_batched_matmul_equals_separate_matmuls(number):
    """The four cases cover whole tiles, split sums and unaligned split sums, each in a different layout."""
    config, layout = CONFIGS[(0, 1, -1, 3)[number]], KERNEL.layouts[number]
    problem = awkward(config, "f16", layout, batch=3)
    operands = inputs(problem, seed=1)
    together = run(KERNEL, config, problem, operands, SM)
    alone = awkward(config, "f16", layout)
    for i, c in enumerate(together):
        assert bits(c) == bits(run(KERNEL, config, alone, {name: value[i] for name, value in operands.items()}, SM))


@pytest.mark.every(3)
@EACH
def test_partial_tiles_issue_the_same_instructions_as_full_tiles(sm, config):
    """Each config runs in one layout, so that each layout has three configs."""
    layout = KERNEL.layouts[ALL.index((sm, config)) % len(KERNEL.layouts)]
    code = not_assembled(KERNEL, config, "f16", layout, sm)
    configs = [config | {"split_k": split_k} for split_k in (1, 2, 4, 8)]
    problem = awkward(config, "f16", layout)
    assert unpredicted(KERNEL, configs, config, problem, sm, code, "issue shared barriers") == []


@pytest.mark.every(3)
@LAYOUTS
@pytest.mark.parametrize("config", [c for c in CONFIGS if c["vector"] == 8 and c["split_k"] == 1], ids=str)
def test_wide_loads_and_stores_move_whole_sectors(config, layout):
    code = not_assembled(KERNEL, config, "f16", layout, SM)
    profile = profiled(KERNEL, [config], "f16", layout, SM, code)[0].profile
    counts = profile.counts({"block": 1, "k_tiles": 10})
    for tensor, way in (("a", "read"), ("b", "read"), ("c", "write")):
        assert counts[f"global.{tensor}.{way}_sectors"] * 32 == counts[f"global.{tensor}.{way}_bytes"] > 0


@pytest.mark.every(8)
@pytest.mark.parametrize("mutant", mutants(KERNEL.name), ids=source_of)
def test_suite_detects_an_error_inserted_in_the_kernel(mutant):
    sm, configs = (75, TURING) if "turing" in mutant else (SM, CONFIGS)
    config = configs[mutant["turing" if "turing" in mutant else "config"]]
    config = config | {"split_k": mutant.get("split_k", config["split_k"])}
    kernel = broken(KERNEL, mutant["old"], mutant["new"])
    assert breaks(kernel, config, awkward(config, "f16", "nn"), sm)


TF32 = find_kernel("matmul_tf32")


_tf32 = partial(mma_config, vector=4, stages=4)
TF32_CONFIGS = (
    _tf32(32, 32, 32, 16, 32, stages=3), _tf32(64, 64, 16, 32, 32, split_k=4),
    _tf32(64, 128, 16, 32, 64, fragments=1, raster=8), _tf32(128, 64, 16, 64, 32, fragments=1, split_k=2),
    _tf32(128, 128, 16, 64, 64, split_k=2, raster=8), _tf32(64, 256, 32, 64, 64, stages=2),
    _tf32(64, 64, 16, 32, 32, vector=1, split_k=2), _tf32(32, 128, 16, 32, 32, vector=1, raster=8),
)  # fmt: skip
TF32_SPREAD = [
    (config, TF32.layouts[(i + step) % 4]) for i, config in enumerate(TF32_CONFIGS) for step in (0, 2 - i // 4)
]
"""Each config with two of the layouts, so that each layout has four configs."""


@pytest.mark.every(3)
@pytest.mark.parametrize(("config", "layout"), TF32_SPREAD, ids=named)
def test_integers_are_multiplied_exactly_without_races(config, layout):
    problem = awkward(config, "tf32", layout, k=5 * config["block_k"] + 3 * config["vector"])
    assert TF32.misfit(config, problem, limits(SM)) is None
    assert exact(TF32, config, problem, SM)


@pytest.mark.parametrize("layout", TF32.layouts)
def test_tf32_matmul_rounds_operands_to_ten_bits(layout):
    config = TF32_CONFIGS[1]
    problem = awkward(config, "tf32", layout)
    operands = inputs(problem, seed=3)
    rounded = {name: tf32_bits(value, "rna").view(np.float32) for name, value in operands.items()}
    expected = reference(problem, rounded)["c"]
    size = reference(problem, {name: np.abs(value) for name, value in rounded.items()})["c"]
    c = run(TF32, config, problem, operands, SM)
    assert (np.abs(c - expected) <= (problem.sizes["k"] + 1) * 2.0**-24 * size).all()
    assert (np.abs(c - reference(problem, operands)["c"]) > 2.0**-16 * size).any(), "it is not the product of f32"
    assert bits(run(TF32, config, problem, rounded, SM)) == bits(c)


@pytest.mark.every(8)
@pytest.mark.parametrize("mutant", mutants(TF32.name), ids=source_of)
def test_suite_detects_an_error_inserted_in_the_tf32_kernel(mutant):
    config, layout = TF32_CONFIGS[mutant["config"]], mutant["layout"]
    kernel = broken(TF32, mutant["old"], mutant["new"])
    problem = awkward(config, "tf32", layout, k=156)  # k is split into four parts of 2 or 3 tiles
    if not breaks(kernel, config, problem, SM):
        # The results stay correct, but the broken swizzle must cause bank conflicts.
        code = not_assembled(kernel, config, "tf32", layout, SM)
        counts = profiled(kernel, [config | {"split_k": 1}], "tf32", layout, SM, code)[0].profile.counts(
            {"block": 1, "k_tiles": 1}
        )
        assert counts["shared.load_wavefronts"] > counts["shared.load_ideal"]
