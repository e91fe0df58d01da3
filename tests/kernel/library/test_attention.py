"""Test the CUDA attention kernels in the emulator on awkward problems against the op's reference."""

import numpy as np
import pytest

from kernrec.gpu import limits
from kernrec.kernel import find_kernel
from kernrec.measure.device.correctness import compare, tolerance
from kernrec.op import inputs, reference
from tests.helpers.attention import (
    WGMMA,
    Case,
    code_of,
    count_wrong,
    fitting,
    is_noticed,
    problem_of,
    sm_of,
    wgmma_case,
)
from tests.helpers.counted import per_trip, profiled, unpredicted
from tests.helpers.kernel_code import mutants, not_assembled, source_of
from tests.helpers.on_gpu import Prepared

pytestmark = pytest.mark.slow

MMA, SIMT = find_kernel("attention_mma"), find_kernel("attention_simt")


def _mma(head: int, *tile: int, dtype: str = "f16", dim: int = 0, pack: int = 0, split_keys: int = 1) -> Case:
    config = dict(zip(("block_q", "warp_q", "block_k", "stages"), tile, strict=True))
    few = {"warps_k": 1 if config["block_q"] > 16 else 4 if head < 256 else 2}
    return MMA, {"head": head} | config | few | {"pack": pack, "split_keys": split_keys}, dtype, dim or head


def _simt(head: int, *tile: int, dtype: str = "f32", dim: int = 0, pack: int = 0, split_keys: int = 1) -> Case:
    config = dict(zip(("threads", "rows", "columns", "vector"), tile, strict=True))
    return SIMT, {"head": head} | config | {"pack": pack, "split_keys": split_keys}, dtype, dim or head


CASES = (
    _mma(64, 16, 16, 64, 3, pack=1, split_keys=4), _mma(128, 16, 16, 64, 2, dtype="bf16", pack=1, split_keys=2),
    _mma(48, 64, 16, 64, 2, dim=40, pack=1), _mma(64, 64, 16, 128, 1, dtype="bf16"), _mma(80, 128, 32, 64, 2, pack=1),
    _mma(96, 128, 32, 64, 1, dtype="bf16", dim=88), _mma(128, 64, 16, 64, 1, dim=104, split_keys=2),
    _mma(128, 128, 32, 32, 2, pack=1), _mma(160, 64, 16, 32, 2, dtype="bf16", split_keys=4),
    _mma(256, 64, 16, 32, 2, dim=200), _mma(256, 16, 16, 32, 2, dtype="bf16", dim=176, split_keys=2),
    _mma(80, 16, 16, 64, 2, dim=72, pack=1), _simt(64, 128, 1, 4, 4, pack=1, split_keys=4),
    _simt(64, 128, 2, 4, 1, dim=37, split_keys=2), _simt(64, 128, 4, 8, 4, dim=40), _simt(64, 128, 8, 4, 4, pack=1),
    _simt(96, 256, 2, 4, 4, dim=80, pack=1), _simt(128, 128, 4, 2, 4, dtype="f16"),
    _simt(160, 128, 1, 4, 1, dtype="f16", dim=131, split_keys=4), _simt(256, 128, 1, 2, 4, dtype="bf16", pack=1),
    wgmma_case(64, 64, 128, 3, 1, 0, dim=40), wgmma_case(64, 192, 128, 3, 1, 1, dtype="bf16"),
    wgmma_case(96, 128, 176, 2, 0, 0, dim=88), wgmma_case(128, 128, 128, 2, 1, 1, dim=104),
    wgmma_case(192, 128, 96, 2, 1, 0, dtype="bf16", dim=168), wgmma_case(256, 128, 80, 2, 1, 1),
    wgmma_case(64, 192, 128, 3, 1, 1, dtype="f8e4m3", dim=48), wgmma_case(64, 64, 192, 3, 1, 0, dtype="f8e4m3"),
    wgmma_case(128, 128, 128, 3, 1, 1, dtype="f8e4m3", dim=112),
    wgmma_case(128, 128, 192, 2, 1, 0, dtype="f8e4m3", dim=80),
    wgmma_case(192, 128, 128, 2, 0, 0, dtype="f8e4m3", dim=144),
    wgmma_case(256, 128, 64, 3, 1, 0, dtype="f8e4m3", dim=240), _mma(64, 16, 16, 128, 1, pack=1, split_keys=2),
    _mma(128, 16, 16, 128, 1, dim=120, split_keys=2), _mma(80, 128, 32, 64, 1, pack=1),
    _mma(160, 64, 16, 64, 1, dim=136), _mma(256, 64, 16, 32, 1, dim=200, pack=1),
)  # fmt: skip
EACH_CASE = pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, (c[0].name, *c[1].values(), c[2]))))

SHAPES = (
    {"batch": 2, "heads": 4, "kv_heads": 2, "queries": 1, "keys": 200},
    {"batch": 2, "heads": 2, "kv_heads": 1, "queries": 17, "keys": 33, "causal": 1},
    {"heads": 1, "queries": 70, "keys": 129},
    {"heads": 2, "kv_heads": 1, "queries": 70, "keys": 129, "causal": 1},
    {"heads": 1, "queries": 131, "keys": 150, "causal": 1},
    {"heads": 2, "queries": 5, "keys": 5, "causal": 1},
)
SCALED: tuple[dict[str, int], ...] = ({}, {"scales": 1}, {"output": 1})
"""Variants of 8-bit problems: one scale per tensor or per key head, and results in bf16 or f16."""


@pytest.mark.every(12)
@EACH_CASE
def test_attention_matches_the_reference_within_its_rounding(case):
    """Each case runs on at least three shapes, and on more until its config fits a shape without changes."""
    kernel, config, dtype, dim = case
    place = CASES.index(case)
    ran: list[dict[str, int]] = []
    for number in range(len(SHAPES)):
        if number >= 3 and config in ran:
            break
        layout = kernel.layouts[(number + place) % 2]
        shape = SHAPES[(number + place) % len(SHAPES)]
        if dtype == "f8e4m3":
            shape = shape | SCALED[number % len(SCALED)]
        problem = problem_of(dtype, dim, shape, layout)
        ran.append(fitting(case, problem))
        assert count_wrong(kernel, ran[-1], problem, check_races=number == 0, seed=number) == 0, (ran[-1], problem.key)
    assert config in ran, "the config runs as it is on none of the shapes"


@pytest.mark.every(4)
@pytest.mark.gpu
@EACH_CASE
def test_attention_on_a_gpu_is_within_the_measurement_tolerance(gpu, case):
    kernel, config, dtype, dim = case
    if not kernel.runs_on(dtype, gpu.sm):
        pytest.skip(f"the GPU {gpu.name}, sm_{gpu.sm}, does not run {kernel.name} in {dtype}")
    code = gpu.code(kernel, config, dtype, "bhsd")
    for number, shape in enumerate(SHAPES[: 1 if gpu.emulated else None]):
        problem = problem_of(dtype, dim, shape, kernel.layouts[number % 2])
        if kernel.misfit(config, problem, limits(gpu.sm)):
            continue
        operands = inputs(problem, number)
        prepared = Prepared(kernel, config, problem, gpu.sm, code, operands)
        prepared.launch()
        o, output = prepared.outputs()["o"].reshape(-1), problem.tensors["o"].dtype
        error = compare(o, output, reference(problem, operands)["o"], np, tolerance(problem), "reference")
        assert (error.unwritten, error.largest <= error.tolerance) == (0, True), (problem.key, error)


@pytest.mark.parametrize("split_keys", [8, 16, 32])
@pytest.mark.parametrize("case", [CASES[0], CASES[12]], ids=lambda case: case[0].name)
def test_attention_split_without_keys_does_not_change_the_result(case, split_keys):
    kernel, config, dtype, dim = case
    problem = problem_of(dtype, dim, {"heads": 4, "kv_heads": 2, "queries": 3, "keys": 129, "causal": 1})
    assert count_wrong(kernel, config | {"split_keys": split_keys}, problem) == 0


@pytest.mark.every(6)
@pytest.mark.parametrize("case", [*CASES[:8:2], *CASES[12:17:2], *CASES[21::2]], ids=lambda case: case[0].name)
def test_profile_predicts_instructions_of_every_block_including_edges(case):
    kernel, config, dtype, dim = case
    sm = sm_of(kernel, dtype, config)
    compiled = not_assembled(*code_of(kernel, config, dtype))
    splits = (1, 2, 4, 8) if "split_keys" in config else ()
    configs = [config | {"pack": 0, "split_keys": split_keys} for split_keys in splits] or [config]
    for shape in SHAPES[:4]:
        if kernel is WGMMA and shape["keys"] <= 2 * config["block_k"]:
            shape = shape | {"keys": shape["keys"] + 2 * config["block_k"]}  # WGMMA profiles hold only beyond two tiles
        problem = problem_of(dtype, dim, shape)
        chosen = fitting(case, problem)
        assert unpredicted(kernel, configs, chosen, problem, sm, compiled, "issue shared barriers mma") == []


@pytest.mark.every(2)
@pytest.mark.parametrize("case", CASES[1:20:2], ids=lambda case: case[0].name)
def test_attention_loop_has_no_bank_conflicts_and_no_extra_matmuls(case):
    kernel, config, dtype, _ = case
    sm = sm_of(kernel, dtype, config)
    compiled = not_assembled(*code_of(kernel, config, dtype))
    trip = per_trip(profiled(kernel, [config | {"pack": 0, "split_keys": 1}], dtype, "bhsd", sm, compiled)[0])
    for way in ("load", "store"):
        assert trip[f"shared.{way}_wavefronts"] == trip[f"shared.{way}_ideal"] > 0
    names = kernel.namespace(config, problem_of(dtype, config["head"], SHAPES[0]), sm)
    products = 2 * names["block_q"] * names["block_k"] * config["head"]
    if kernel is MMA:
        assert trip["issue.mma"] * 16 * 8 * (8 if sm == 75 else 16) == products
        assert trip["barriers"] == (2 if config["stages"] == 1 else 1)
    else:
        assert products <= trip["issue.fma32"] * 32 <= 1.25 * products
        assert trip["barriers"] == 2


@pytest.mark.every(8)
@pytest.mark.parametrize("mutant", [*mutants(MMA.name), *mutants(SIMT.name)], ids=source_of)
def test_suite_detects_an_error_inserted_in_the_kernel(mutant):
    assert is_noticed(mutant["old"], mutant["new"], CASES[mutant["case"]], mutant["shape"])
