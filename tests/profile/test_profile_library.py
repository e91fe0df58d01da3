"""Test profiling the variants of a library kernel in parallel."""

import random

from kernrec.kernel import find_kernel
from kernrec.profile.probe_profile import Variant
from kernrec.profile.profile_library import VariantFailure, profile_variants, variants_of

SM = 86


def test_known_variants_are_skipped_and_a_failure_loses_only_itself(nvrtc):
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
