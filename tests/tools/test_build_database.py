"""What the check of the shipped database lets pass, and what it does not."""

from dataclasses import replace

import build_database
import numpy as np
import pytest

from kernrec.kernel import find_kernel
from kernrec.profile.profile_library import variants_of
from kernrec.store import ProfileRow

METRICS = ("barriers", "global.a.read_sectors", "issue", "issue.alu", "issue.fma32", "lanes")
COUNTS = np.array([[0, 1], [0, 256], [800, 2500], [300, 40], [0, 2048], [25600, 80000]], dtype=np.float64)
ROW = ProfileRow("k", "h", "c", 86, 0, "k", {}, 104, 0, 0, 0, "one", "nvrtc 13.5", METRICS, ("block", "trips"), COUNTS)


def changed(metric: str, term: int, by: float, **fields: int) -> ProfileRow:
    counts = COUNTS.copy()
    counts[METRICS.index(metric), term] += by
    return replace(ROW, counts=counts, **fields)  # type: ignore[arg-type]


def test_other_moves_before_the_loop_are_the_compilers_business() -> None:
    assert build_database.within_compiler_variation(ROW, changed("issue.alu", 0, 50, registers=112))


@pytest.mark.parametrize(
    ("metric", "by"), [("issue.fma32", 1), ("global.a.read_sectors", -1), ("barriers", 1), ("issue.alu", 500)]
)
def test_other_arithmetic_or_memory_is_a_difference(metric: str, by: float) -> None:
    assert not build_database.within_compiler_variation(ROW, changed(metric, 1, by))


def test_so_are_far_more_registers_and_other_loops() -> None:
    assert not build_database.within_compiler_variation(ROW, replace(ROW, registers=200))
    assert not build_database.within_compiler_variation(ROW, replace(ROW, terms=("block", "tiles")))


def test_a_sample_takes_the_architectures_in_turn_each_with_another_variant() -> None:
    sms = build_database.ARCHITECTURES
    variants = variants_of(find_kernel("softmax_rows"), sms)
    sample = build_database._sample(variants, 2 * len(sms), "seed")
    assert sorted(sm for variant in sample for sm in variant.configs) == sorted(2 * sms)
    assert len({variant.key for variant in sample}) == 2 * len(sms)
    assert sample[:3] == build_database._sample(variants, 3, "seed")


def test_a_sample_of_more_than_there_is_has_every_variant_once() -> None:
    variants = variants_of(find_kernel("softmax_rows"), (86,))
    assert len(build_database._sample(variants, 10_000, "seed")) == len(variants)


def test_only_what_is_named_is_built() -> None:
    variants = variants_of(find_kernel("softmax_rows"), (80, 86))
    only = build_database.Only(frozenset({86}), frozenset({"f16"}))
    chosen = only.of(variants)
    assert {(variant.dtype, *variant.configs) for variant in chosen} == {("f16", 86)}
    assert build_database.Only().of(variants) == variants
