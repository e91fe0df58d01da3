"""Test that memory-bound kernels never diverge, and move every byte once, in whole sectors."""

from functools import cache

import pytest

from kernrec.kernel import Kernel
from kernrec.op.dtype import ELEMENT_BYTES as BYTES
from tests.helpers.counted import profiled
from tests.helpers.kernel_code import not_assembled
from tests.helpers.trial import CASES, Case, per_case, sample, space

pytestmark = pytest.mark.slow

PER_CASE = per_case("matvec", "transpose", "elementwise")


def _code(kernel: Kernel, config: dict[str, int]) -> tuple[int, ...]:
    return tuple(config[name] for name in kernel.compile_time_tunables)


@cache
def _profiles(case: Case) -> list[tuple[dict[str, int], str, dict[str, dict[str, float]]]]:
    """Return (config, entry, counts by term) for every launch of the sampled codes."""
    kernel, configs = case.kernel, list(map(space(case).config, range(len(space(case)))))
    profiles = []
    for config in sample(case):
        compiled = not_assembled(kernel, config, case.dtype, case.layout, case.sm)
        same = [other for other in configs if _code(kernel, other) == _code(kernel, config)]
        for launch in profiled(kernel, same, case.dtype, case.layout, case.sm, compiled):
            columns = zip(launch.profile.terms, launch.profile.coefficients.T.tolist(), strict=True)
            counts = {term: dict(zip(launch.profile.metrics, column, strict=True)) for term, column in columns}
            profiles.append((config, launch.entry, counts))
    return profiles


@pytest.mark.every(2)
@PER_CASE
def test_warps_never_diverge_and_shared_memory_has_no_bank_conflicts(case):
    for config, entry, counts in _profiles(case):
        for term, seen in counts.items():
            assert seen["lanes"] == 32 * seen["issue"], (config, entry, term)
            for way in ("load", "store"):
                passes = seen.get(f"shared.{way}_wavefronts", 0)
                assert passes == seen.get(f"shared.{way}_ideal", 0), (config, entry, term)
                assert (passes > 0) == (entry == "transpose_tiled"), (config, entry, term)


def _streamed(entry: str, config: dict[str, int]) -> tuple[str, int, list[str]]:
    """Return the profile term in which an entry moves elements, their number, and the accesses that move them."""
    if entry.startswith("matvec_rows"):
        rows = config["threads"] // config["row_threads"] * config["rows"]
        return "k_tiles", rows * config["row_threads"] * config["vector"] * config["unroll"], ["a.read"]
    if entry == "transpose_tiled":
        return "block", config["tile_rows"] * config["tile_columns"], ["x.read", "y.write"]
    term = "tiles" if entry.endswith("_loop") else "block"
    return term, config["threads"] * config["vector"] * config["packets"], ["x.read", "b.read", "y.write"]


@pytest.mark.every(2)
@PER_CASE
def test_full_tile_moves_every_element_once_in_whole_sectors(case):
    for config, entry, counts in _profiles(case):
        if entry == "matvec_rows_reduce":
            continue
        term, elements, ways = _streamed(entry, config)
        for way in ways:
            assert counts[term][f"global.{way}_bytes"] == elements * BYTES[case.dtype], (config, entry, way)
            assert counts[term][f"global.{way}_sectors"] * 32 == elements * BYTES[case.dtype], (config, entry, way)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.kernel.name == "matvec_rows" and case.dtype in ("f32", "f16")], ids=str
)
def test_matvec_trip_does_exactly_its_multiply_adds(case):
    for config, entry, counts in _profiles(case):
        if entry in ("matvec_rows", "matvec_rows_partial"):
            _, elements, _ = _streamed(entry, config)
            assert 32 * counts["k_tiles"]["issue.fma32"] == elements * config["columns"], config
