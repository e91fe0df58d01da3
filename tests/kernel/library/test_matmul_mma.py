"""Test the specifics of `matmul_mma` and `matmul_tf32` that test_kernels.py does not cover."""

from functools import partial

import numpy as np
import pytest

from kernrec.gpu import limits
from kernrec.kernel import find_kernel
from kernrec.op import inputs, reference
from tests.helpers.counted import profiled, unpredicted
from tests.helpers.kernel_code import not_assembled
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
def test_exact_sums_round_to_nearest_bit_for_bit_without_races(sm, config, layout):
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
@pytest.mark.parametrize(
    ("replacement", "config"),
    [
        (("__syncthreads();", ""), CONFIGS[0]),
        (("__syncthreads();", ""), CONFIGS[3]),
        (("__syncthreads();", ""), CONFIGS[-1]),
        (("wait_for_copies<STAGES - 2>();", ""), CONFIGS[1]),
        (("wait_for_copies<STAGES - 2>();", "wait_for_copies<STAGES - 1>();"), CONFIGS[2]),
        (("commit_copies();\n", "\n"), CONFIGS[1]),
        (("< rows_left &&", "<= rows_left &&"), CONFIGS[0]),
        (("columns_left > 0", "true"), CONFIGS[0]),
        (("inside && columns_left > 1", "inside"), CONFIGS[-1]),
        (("columns_left -= BLOCK_K", "columns_left -= 0"), CONFIGS[0]),
        (("row < m && column < n", "column < n"), CONFIGS[0]),
        (("row < m && column < n", "row < m"), CONFIGS[0]),
        ((">> 16), target.holds(at + 1)", ">> 16), target.holds(at)"), CONFIGS[-1] | {"split_k": 1}),
        (("min(blockIdx.y, longer_shares)", "0"), CONFIGS[1] | {"split_k": 2}),
        (("T::exchange(i * ROW_STEP)", "0"), CONFIGS[5]),
        (("const bool inside = first < elements;\n#if", "const bool inside = true;\n#if"), CONFIGS[1]),
        (("d[1]), \"+f\"(d[2])", "d[2]), \"+f\"(d[1])"), CONFIGS[0]),
        (("__syncthreads();", ""), TURING[0]),
        (("staged[i].start(row, inside);", "staged[i].start(row, true);"), TURING[0]),
        (("\"r\"(a[0][half]), \"r\"(a[1][half])", "\"r\"(a[1][half]), \"r\"(a[0][half])"), TURING[1]),
        (("read = SLOT - read;", ""), TURING[2]),
        (("low, %1; cvt.rn.f16.f32 high, %2", "low, %2; cvt.rn.f16.f32 high, %1"), TURING[0]),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)  # fmt: skip
def test_mutated_source_fails(replacement, config):
    kernel, sm = broken(KERNEL, *replacement), 75 if config in TURING else SM
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
def test_operands_round_to_nearest_ten_bits(layout):
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


TF32_BREAKS = [
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
@pytest.mark.parametrize(("number", "layout", "old", "new"), TF32_BREAKS, ids=[f"{b[1]} {b[2]}" for b in TF32_BREAKS])
def test_mutated_tf32_source_fails(number, layout, old, new):
    config, kernel = TF32_CONFIGS[number], broken(TF32, old, new)
    problem = awkward(config, "tf32", layout, k=156)  # four shares have 2 or 3 tiles each
    if not breaks(kernel, config, problem, SM):
        # The results stay correct, but the broken swizzle must cause bank conflicts.
        code = not_assembled(kernel, config, "tf32", layout, SM)
        counts = profiled(kernel, [config | {"split_k": 1}], "tf32", layout, SM, code)[0].profile.counts(
            {"block": 1, "k_tiles": 1}
        )
        assert counts["shared.load_wavefronts"] > counts["shared.load_ideal"]
