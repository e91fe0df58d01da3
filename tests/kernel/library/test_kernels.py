"""Test every library kernel in the emulator on small awkward problems against the op's reference."""

from functools import cache
from pathlib import Path

import pytest

from kernrec.kernel import all_kernels
from tests.helpers.counted import per_trip, profiled
from tests.helpers.depth import DEEP
from tests.helpers.kernel_code import Config, assembled, not_assembled
from tests.helpers.trial import CASES, OPS, Case, flaws, given_inputs, per_case, run, runs, sample

pytestmark = pytest.mark.slow

PRODUCTS = ("matmul", "conv2d")
ALONG_ROWS = ("softmax", "layernorm", "rmsnorm", "reduce")


def _profiled(case: Case) -> list[Config]:
    """Return the sample configs whose profiles are tested: every second, or all in the deep profile."""
    return sample(case)[:: 1 if DEEP else 2]


@cache
def _trips(case: Case) -> list[tuple[Config, dict[str, float]]]:
    """Return each profiled config with the counts of one main loop iteration of one block."""
    kernel, dtype, layout, sm = case.kernel, case.dtype, case.layout, case.sm
    per_config = []
    for config in _profiled(case):
        compiled = not_assembled(kernel, config, dtype, layout, sm)
        main = profiled(kernel, [config | {"split_k": 1}], dtype, layout, sm, compiled)[0]
        per_config.append((config, per_trip(main)))
    return per_config


def test_every_op_with_a_kernel_is_tested():
    for op in {kernel.op for kernel in all_kernels()} - OPS.keys():
        assert Path(__file__).with_name(f"test_{op}.py").exists(), f"{op} has no problems in trial.OPS"


def test_every_problem_is_run_by_a_kernel_of_its_op():
    run_by: dict[tuple[str, str, str], set[str]] = {}
    for case in CASES:
        # Ignore layout and architecture, because some kernels support only certain shapes.
        own = case.kernel.name if case.kernel.name in OPS[case.kernel.op].own else ""
        run = run_by.setdefault((case.kernel.op, case.dtype, own), set())
        run.update(str(problem.dims) for problem in case.problems)
        assert len(case.problems) >= 4, f"{case} is tried on too few problems"
    for (op, dtype, own), problems in run_by.items():
        assert len(problems) == len(OPS[op].dims(own, dtype)), (op, dtype)


@pytest.mark.every(4)
@per_case()
def test_extreme_configs_compute_awkward_problems_without_races(case):
    for config, problem in runs(case):
        operands = given_inputs(problem)
        assert flaws(problem, operands, run(case, config, problem, operands)) == [], config


NOWHERE = {("conv2d_implicit_gemm_simt", "block_n", 256)}
"""Tunable values that no config can use; remove them from their specs when the profiles are renewed."""


@per_case(*PRODUCTS, tunable="block_k", without="cluster")
def test_shared_memory_is_read_and_written_without_bank_conflicts(case):
    for config, trip in _trips(case):
        for way in ("load", "store"):
            assert trip[f"shared.{way}_wavefronts"] == trip[f"shared.{way}_ideal"] > 0, config


@per_case(*PRODUCTS, tunable="block_k", without="cluster")
def test_main_loop_trip_has_one_barrier_or_two_with_one_stage(case):
    for config, trip in _trips(case):
        assert trip["barriers"] == (2 if config["stages"] == 1 else 1), config


@per_case(*PRODUCTS, tunable="block_k", without="cluster")
def test_main_loop_does_exactly_the_multiply_adds_of_its_tiles(case):
    for config, trip in _trips(case):
        # A warp's f32 instruction does 32 multiply-adds; each multiply-add on tensor cores counts as two operations.
        done = 32 * trip.get("issue.fma32", 0) + sum(v for name, v in trip.items() if name.startswith("mma.")) / 2
        done *= 2 if case.dtype == "f8e4m3" else 1  # an 8-bit operation counts as half an f16 one
        assert done == config["block_m"] * config["block_n"] * config["block_k"], config


@per_case(*ALONG_ROWS)
def test_rows_move_in_whole_sectors_and_are_reread_only_without_enough_registers(case):
    kernel, dtype, layout, sm = case.kernel, case.dtype, case.layout, case.sm
    whole = {t.name: t.values[0] for t in kernel.tunables if t.launch}
    for config in _profiled(case):
        compiled = assembled(kernel, config, dtype, layout, sm)
        profile = profiled(kernel, [config | whole], dtype, layout, sm, compiled)[0].profile
        chunk = dict(zip(profile.metrics, profile.coefficients[:, -1].tolist(), strict=True))
        columns = config["threads_per_row"] * config["vector"] * config["packets"]
        size = config["rows_per_block"] * columns * (4 if dtype == "f32" else 2)
        assert chunk["global.x.read_bytes"] == size * (1 if config.get("resident", 1) else 2), config
        moved = ("x.read", "y.write") if kernel.op != "reduce" else ("x.read",)
        for way in moved:
            assert 32 * chunk[f"global.{way}_sectors"] == chunk[f"global.{way}_bytes"] > 0, config
        for resources in compiled.resources.values():
            assert resources.stack_bytes == resources.spill_store_bytes == 0, config
