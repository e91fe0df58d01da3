"""Test every library kernel in the emulator against the op's reference, and on a GPU if there is one."""

from functools import cache
from pathlib import Path

import pytest

from kernrec.gpu import limits
from kernrec.kernel import Kernel, Space, all_kernels, find_kernel
from kernrec.op.dtype import ELEMENT_BYTES as BYTES
from tests.helpers.counted import per_trip, profiled
from tests.helpers.depth import DEEP
from tests.helpers.kernel_code import Config, assembled, not_assembled
from tests.helpers.on_gpu import Prepared
from tests.helpers.trial import CASES, OPS, Case, flaws, given_inputs, per_case, run, runs, sample, space

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


@pytest.mark.slow
def test_every_op_with_a_kernel_is_tested():
    for op in {kernel.op for kernel in all_kernels()} - OPS.keys():
        assert Path(__file__).with_name(f"test_{op}.py").exists(), f"{op} has no problems in trial.OPS"


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.every(4)
@per_case()
def test_extreme_configs_compute_awkward_problems_without_races(case):
    for config, problem in runs(case):
        operands = given_inputs(problem)
        assert flaws(problem, operands, run(case, config, problem, operands)) == [], config


@pytest.mark.slow
@per_case(*PRODUCTS, tunable="block_k", without="cluster")
def test_shared_memory_is_read_and_written_without_bank_conflicts(case):
    for config, trip in _trips(case):
        for way in ("load", "store"):
            assert trip[f"shared.{way}_wavefronts"] == trip[f"shared.{way}_ideal"] > 0, config


@pytest.mark.slow
@per_case(*PRODUCTS, tunable="block_k", without="cluster")
def test_matmul_loop_has_one_barrier_or_two_if_unpipelined(case):
    for config, trip in _trips(case):
        assert trip["barriers"] == (2 if config["stages"] == 1 else 1), config


@pytest.mark.slow
@per_case(*PRODUCTS, tunable="block_k", without="cluster")
def test_main_loop_does_exactly_the_multiply_adds_of_its_tiles(case):
    for config, trip in _trips(case):
        # A warp's f32 instruction does 32 multiply-adds. On tensor cores, a multiply-add counts as two operations.
        done = 32 * trip.get("issue.fma32", 0) + sum(v for name, v in trip.items() if name.startswith("mma.")) / 2
        done *= 2 if case.dtype == "f8e4m3" else 1  # an 8-bit operation counts as half an f16 operation
        assert done == config["block_m"] * config["block_n"] * config["block_k"], config


@pytest.mark.slow
@per_case(*ALONG_ROWS)
def test_rows_are_reread_only_if_registers_cannot_hold_them(case):
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


PER_CASE = per_case("matvec", "transpose", "elementwise")


def _code(kernel: Kernel, config: dict[str, int]) -> tuple[int, ...]:
    return tuple(config[name] for name in kernel.compile_time_tunables)


@cache
def _profiles(case: Case) -> list[tuple[dict[str, int], str, dict[str, dict[str, float]]]]:
    """Return the config, entry point and event counts of every launch of some configs."""
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


@pytest.mark.slow
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
    """Return the loop in which an entry moves elements, the elements per trip, and the memory accesses for them."""
    if entry.startswith("matvec_rows"):
        rows = config["threads"] // config["row_threads"] * config["rows"]
        return "k_tiles", rows * config["row_threads"] * config["vector"] * config["unroll"], ["a.read"]
    if entry == "transpose_tiled":
        return "block", config["tile_rows"] * config["tile_columns"], ["x.read", "y.write"]
    term = "tiles" if entry.endswith("_loop") else "block"
    return term, config["threads"] * config["vector"] * config["packets"], ["x.read", "b.read", "y.write"]


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.kernel.name == "matvec_rows" and case.dtype in ("f32", "f16")], ids=str
)
def test_matvec_trip_does_exactly_its_multiply_adds(case):
    for config, entry, counts in _profiles(case):
        if entry in ("matvec_rows", "matvec_rows_partial"):
            _, elements, _ = _streamed(entry, config)
            assert 32 * counts["k_tiles"]["issue.fma32"] == elements * config["columns"], config


@pytest.mark.every(4)
@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kernel", "dtype", "layout"),
    list(dict.fromkeys((case.kernel, case.dtype, case.layout) for case in CASES)),
    ids=lambda value: getattr(value, "name", value),
)
def test_extreme_configs_compute_the_op_on_the_gpu(gpu, kernel, dtype, layout):
    if not kernel.runs_on(dtype, gpu.sm):
        pytest.skip(f"the GPU {gpu.name}, sm_{gpu.sm}, does not run {kernel.name} in {dtype}")
    chosen = runs(Case(kernel, dtype, layout, gpu.sm))
    if gpu.emulated:  # Other tests run all configs in the emulator. This test checks their launches.
        chosen = sorted(chosen, key=lambda run: run[1].flops)[:2]
    codes = {}
    for config, problem in chosen:
        key = tuple(config[name] for name in kernel.compile_time_tunables)
        if key not in codes:
            codes[key] = gpu.code(kernel, config, dtype, layout)
        operands = given_inputs(problem)
        prepared = Prepared(kernel, config, problem, gpu.sm, codes[key], operands)
        prepared.launch()
        assert flaws(problem, operands, prepared.outputs()) == [], config


THOROUGH = pytest.mark.parametrize("case", [case for case in CASES if case.thorough], ids=str)


@THOROUGH
def test_compiled_kernel_contains_every_launched_entry_point(case):
    compiled = assembled(case.kernel, runs(case)[0][0], case.dtype, case.layout, case.sm)
    assert compiled.cubin[:4] == b"\x7fELF"
    assert {launch.entry for launch in case.kernel.launches} <= compiled.resources.keys()


CODES = {
    "matmul_mma": (30, 40), "matmul_tf32": (30, 50), "attention_mma": (5, 60), "attention_simt": (5, 40),
    "attention_wgmma": (10, 40), "conv2d_implicit_gemm_mma": (20, 120), "conv2d_direct": (20, 80),
    "conv2d_depthwise": (20, 80), "conv2d_implicit_gemm_tf32": (20, 120),
}  # fmt: skip
"""Minimum and maximum number of variants by kernel. On Turing, matmul_mma has 15 to 20."""


@pytest.mark.parametrize("name", CODES)
def test_each_architecture_has_dozens_of_compiled_variants(name):
    kernel = find_kernel(name)
    for sm in (75, 80, 86, 89, 90, 100, 120):
        least, most = CODES[name] if (name, sm) != ("matmul_mma", 75) else (15, 20)
        for dtype in kernel.dtypes:
            for layout in kernel.layouts if kernel.runs_on(dtype, sm) else ():
                assert least <= len(Space(kernel, sm, limits(sm), dtype, layout).variants.keys) <= most


HUNGRY = [
    # columns: kernel, tunable values, dtype, layout, sm, maximum registers
    *(
        ("matmul_mma", values, "f16", layout, 86, most)
        for layout in find_kernel("matmul_mma").layouts
        for values, most in (((128, 128, 64, 64, 64, 8, 2, 2, 1, 1), 255), ((64, 256, 32, 32, 64, 8, 4, 1, 1, 1), 128))
    ),
    ("conv2d_implicit_gemm_mma", (128, 256, 64, 64, 64, 8, 2, 2, 1, 1), "f16", "nhwc", 86, 255),
    ("conv2d_implicit_gemm_mma", (256, 64, 64, 64, 32, 8, 3, 1, 1, 1), "bf16", "nhwc", 86, 128),
    ("conv2d_implicit_gemm_mma", (128, 128, 32, 64, 64, 8, 2, 1, 1, 1), "f16", "nhwc", 75, 255),
    ("conv2d_implicit_gemm_tf32", (256, 128, 16, 64, 64, 4, 4, 2, 1, 1), "tf32", "nhwc", 86, 255),
    ("conv2d_implicit_gemm_tf32", (256, 64, 16, 64, 32, 4, 4, 1, 1, 1), "tf32", "nhwc", 86, 128),
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
