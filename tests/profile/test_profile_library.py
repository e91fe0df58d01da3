"""Test profiling the variants of a library kernel in parallel."""

import random
from collections import Counter

import numpy as np
import pytest

from kernrec.gpu import limits
from kernrec.kernel import Config, Kernel, find_kernel
from kernrec.op import Problem, find_op, inputs
from kernrec.profile.profile_library import Variant, VariantFailure, profile_variants, variants_of
from tests.helpers.counted import counted, profiled
from tests.helpers.depth import DEEP
from tests.helpers.kernel_code import not_assembled

SM = 86


def test_profiling_skips_stored_variants_and_continues_after_a_failure(nvrtc):
    kernel = find_kernel("matmul_simt")
    variants = [variant for variant in variants_of(kernel, [SM]) if variant.layout == "nn"]
    first, second = random.Random(0).sample(variants, 2)
    rows = [row for result in profile_variants(kernel, [first, second], stored={(first.key, SM)}) for row in result]  # type: ignore[union-attr]
    assert {row.variant_key for row in rows} == {second.key}
    assert {row.launch for row in rows} == {0, 1, 2}
    broken = Variant("broken", "f32", "nn", first.fixed, {SM: [{**first.configs[SM][0], "thread_m": 3}]})
    results = list(profile_variants(kernel, [broken, first]))
    failures = [r for r in results if isinstance(r, VariantFailure)]
    assert len(results) == 2
    assert len(failures) == 1
    assert failures[0].sm == SM
    assert "kernel.cu" in failures[0].message


pytestmark = pytest.mark.slow


SEVERAL = 4 if DEEP else 2
"""Number of variants per test."""


def sample(name: str, layout: str, count: int) -> list[Variant]:
    variants = [variant for variant in variants_of(find_kernel(name), [SM]) if variant.layout == layout]
    return random.Random(f"{name} {layout}").sample(variants, count)


def predicted_and_emulated(
    kernel: Kernel, variant: Variant, config: Config, problem: Problem
) -> tuple[Counter, Counter]:
    """Return a config's counts on a problem, predicted from its profile and from emulating every block."""
    compiled = not_assembled(kernel, config, variant.dtype, variant.layout, SM)
    profiles = {
        p.launch: p.profile for p in profiled(kernel, variant.configs[SM], variant.dtype, variant.layout, SM, compiled)
    }
    tensors = inputs(problem)
    outputs = {n: t for n, t in problem.tensors.items() if t.role == "output"}
    tensors |= {name: np.zeros(t.shape, np.float32) for name, t in outputs.items()}
    predicted: Counter = Counter()
    emulated: Counter = Counter()
    for bound, counts in counted(kernel, config, problem, SM, compiled.ptx, tensors):
        emulated.update(counts)
        predicted.update(profiles[bound.index].counts({"block": bound.blocks, **bound.trips}))
    return predicted, emulated


def config_with(variant: Variant, **launch: int) -> Config:
    return next(c for c in variant.configs[SM] if all(c[name] == value for name, value in launch.items()))


@pytest.mark.every(3)
@pytest.mark.parametrize(("split", "k_tiles"), [(1, 1), (1, 7), (4, 11)])
def test_full_tile_matmul_counts_are_predicted_exactly(nvrtc, split, k_tiles):
    kernel = find_kernel("matmul_simt")
    for variant in sample("matmul_simt", "nn", SEVERAL):
        config = config_with(variant, split_k=split, raster=1)
        # With four times the rows, the second pass of split-K also has no partial blocks.
        m, n = 2 * config["block_m"], 4 * config["block_n"]
        problem = find_op("matmul").problem(m=m * (4 if split > 1 else 1), n=n, k=k_tiles * config["block_k"])
        predicted, emulated = predicted_and_emulated(kernel, variant, config, problem)
        assert {m: c for m, c in predicted.items() if c} == {m: c for m, c in emulated.items() if c}, config


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_convolution_issues_the_predicted_instructions(nvrtc, layout):
    kernel = find_kernel("conv2d_implicit_gemm_simt")
    ran = 0
    for variant in sample("conv2d_implicit_gemm_simt", layout, 40):
        config = config_with(variant, split_k=1, raster=1)
        problem = find_op("conv2d").problem(None, layout, n=2, c=8, h=9, w=8, k=72, r=3, s=3, stride=2, padding=1)
        if kernel.misfit(config, problem, limits(SM)):
            continue  # this variant only supports 1 x 1 filters
        predicted, emulated = predicted_and_emulated(kernel, variant, config, problem)
        assert {m: c for m, c in predicted.items() if m.startswith("issue") and c} == {
            m: c for m, c in emulated.items() if m.startswith("issue") and c
        }
        assert predicted["barriers"] == emulated["barriers"]
        ran += 1
        if ran == SEVERAL:
            return
    pytest.fail(f"only {ran} variants of the sample can run the problem")
