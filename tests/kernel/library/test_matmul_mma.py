"""`matmul_mma`: what holds of it beyond what every kernel of the library keeps (test_kernels.py)."""

import dataclasses
from functools import cache

import numpy as np
import pytest

from kernrec.compile import Compiled, NoCompilerError, compile_source
from kernrec.compile.profiler import emulate_config, profile_code
from kernrec.errors import KernrecError
from kernrec.gpu import limits
from kernrec.kernel import Kernel, Space, bind_launches, find_kernel, workspaces
from kernrec.kernel.binding import Pointer
from kernrec.op import Problem, encode, find_op, inputs, reference
from kernrec.ptx import Module, emulate, parse

KERNEL = find_kernel("matmul_mma")
SM = 86
LAYOUTS = pytest.mark.parametrize("layout", KERNEL.layouts)
DTYPES = pytest.mark.parametrize("dtype", KERNEL.dtypes)


def _config(*tile: int, vector: int = 8, stages: int = 3, fragments: int = 2, **launch: int) -> dict[str, int]:
    names = ("block_m", "block_n", "block_k", "warp_m", "warp_n")
    fixed = dict(zip(names, tile, strict=True)) | {"vector": vector, "stages": stages, "fragments": fragments}
    return fixed | {"raster": 1, "split_k": 1} | launch


CONFIGS = (
    _config(32, 32, 64, 16, 32, stages=4),
    _config(64, 64, 32, 32, 32, split_k=4),
    _config(128, 64, 64, 32, 64, stages=2, fragments=1, raster=8),
    _config(64, 128, 32, 64, 32, stages=5, fragments=1, split_k=2),
    _config(128, 128, 32, 64, 64, stages=4, split_k=2, raster=8),
    _config(64, 256, 64, 64, 64, stages=2),
    _config(128, 64, 32, 32, 32, vector=2, split_k=2),
    _config(64, 64, 32, 32, 32, vector=1, stages=2, fragments=1, split_k=2),
)
EACH_CONFIG = pytest.mark.parametrize("config", CONFIGS, ids=lambda c: "-".join(map(str, c.values())))


@cache
def _compiled(kernel: Kernel, code: tuple[int, ...], dtype: str, layout: str, sm: int) -> tuple[Compiled, Module]:
    fixed = dict(zip(kernel.code_tunables, code, strict=True))
    try:
        compiled = compile_source(kernel.source, sm, kernel.defines(fixed, dtype, layout))
    except NoCompilerError as error:
        pytest.skip(str(error))
    return compiled, parse(compiled.ptx)


def _compile(
    config: dict[str, int], dtype: str, layout: str, kernel: Kernel = KERNEL, sm: int = SM
) -> tuple[Compiled, Module]:
    return _compiled(kernel, tuple(config[name] for name in kernel.code_tunables), dtype, layout, sm)


def _problem(dtype: str, layout: str, **dims: int) -> Problem:
    return find_op("matmul").problem(dtype=dtype, layout=layout, **dims)


def _awkward(config: dict[str, int], dtype: str, layout: str, **dims: int) -> Problem:
    """A problem of more than one tile each way whose sizes are no multiples of more than the config needs."""
    vector = config["vector"]
    sizes = {"m": config["block_m"] + 3 * vector, "n": config["block_n"] + 5 * vector, "k": 7 * 16 + 3 * vector}
    return _problem(dtype, layout, **(sizes | dims))


def _run(
    kernel: Kernel, config: dict[str, int], problem: Problem, given: dict[str, np.ndarray], check_races: bool = False
) -> np.ndarray:
    """c as the kernel leaves it in memory."""
    _, module = _compile(config, problem.dtype, problem.layout, kernel)
    c = encode(np.full(problem.tensors["c"].shape, np.nan), problem.dtype)
    scratch = {s.name: np.full(s.elements, np.nan, np.float32) for s in workspaces(kernel, config, problem, SM)}
    for bound in bind_launches(kernel, config, problem, SM):
        arguments = [
            (0 if a.null else a.name) if isinstance(a, Pointer) else np.uint32(a.value) for a in bound.arguments
        ]
        emulate(
            module,
            bound.entry,
            bound.grid,
            bound.block,
            arguments,
            buffers={**given, "c": c, **scratch},
            shared_bytes=bound.shared_bytes,
            check_races=check_races,
        )
    return c


def _whole_numbers(problem: Problem) -> dict[str, np.ndarray]:
    """Inputs whose products, and sums of them in any order, are exact in f32."""
    generator = np.random.default_rng(0)
    return {
        name: encode(generator.integers(-16, 17, tensor.shape).astype(np.float64), tensor.dtype)
        for name, tensor in problem.tensors.items()
        if tensor.role == "input"
    }


def _bits(values: np.ndarray) -> list[int]:
    return np.ascontiguousarray(values).view(np.uint16).ravel().tolist()


@EACH_CONFIG
def test_the_configs_shown_here_can_run(config: dict[str, int]) -> None:
    assert KERNEL.misfit(config, _awkward(config, "f16", "nn"), limits(SM)) is None


@pytest.mark.parametrize(("dtype", "layout"), [*(("f16", layout) for layout in KERNEL.layouts), ("bf16", "nn")])
@EACH_CONFIG
def test_exact_sums_are_rounded_to_nearest_bit_for_bit(config: dict[str, int], dtype: str, layout: str) -> None:
    problem = _awkward(config, dtype, layout)
    given = _whole_numbers(problem)
    expected = encode(reference(problem, given)["c"], dtype)
    assert _bits(_run(KERNEL, config, problem, given)) == _bits(expected)


@LAYOUTS
@EACH_CONFIG
def test_no_two_warps_race_for_shared_memory(config: dict[str, int], layout: str) -> None:
    problem = _awkward(config, "f16", layout, k=5 * config["block_k"])
    _run(KERNEL, config, problem, _whole_numbers(problem), check_races=True)


@LAYOUTS
@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[1], CONFIGS[-1]], ids=["whole", "split", "unaligned split"])
def test_products_of_a_batch_are_those_of_each_pair(config: dict[str, int], layout: str) -> None:
    problem = _awkward(config, "f16", layout, batch=3)
    given = inputs(problem, seed=1)
    together = _run(KERNEL, config, problem, given)
    alone = _awkward(config, "f16", layout)
    for i, c in enumerate(together):
        assert _bits(c) == _bits(_run(KERNEL, config, alone, {name: value[i] for name, value in given.items()}))


@pytest.mark.parametrize("dims", [{"m": 1}, {"n": 8}, {"k": 8}, {"m": 1, "n": 8, "k": 8}], ids=str)
@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[2], CONFIGS[4]], ids=["2 warps", "8 warps", "4 warps"])
def test_slivers_far_below_one_tile_come_out_right(config: dict[str, int], dims: dict[str, int]) -> None:
    problem = _awkward(config, "f16", "nt", **dims)
    config = config | {"split_k": 1}
    given = _whole_numbers(problem)
    assert _bits(_run(KERNEL, config, problem, given)) == _bits(encode(reference(problem, given)["c"], "f16"))


@LAYOUTS
@EACH_CONFIG
def test_partial_tiles_issue_exactly_what_full_ones_do(config: dict[str, int], layout: str) -> None:
    compiled, module = _compile(config, "f16", layout)
    configs = [config | {"split_k": split_k} for split_k in (1, 2, 4, 8)]
    profiles = {p.launch: p.profile for p in profile_code(KERNEL, configs, "f16", layout, SM, compiled)}
    problem = _awkward(config, "f16", layout)
    given = inputs(problem)
    buffers = {**given, "c": encode(np.zeros(problem.tensors["c"].shape), "f16")}
    for bound, counts in emulate_config(KERNEL, config, problem, SM, module, buffers):
        expected = profiles[bound.index].counts({"block": bound.blocks, **bound.trips})
        for metric, count in expected.items():
            if metric.startswith(("issue", "shared", "barriers")):
                assert counts[metric] == count, (bound.entry, metric)


@LAYOUTS
@pytest.mark.parametrize("config", [c for c in CONFIGS if c["vector"] == 8 and c["split_k"] == 1], ids=str)
def test_wide_loads_and_stores_move_whole_sectors(config: dict[str, int], layout: str) -> None:
    compiled, _ = _compile(config, "f16", layout)
    profile = profile_code(KERNEL, [config], "f16", layout, SM, compiled)[0].profile
    counts = profile.counts({"block": 1, "k_tiles": 10})
    for tensor, way in (("a", "read"), ("b", "read"), ("c", "write")):
        assert counts[f"global.{tensor}.{way}_sectors"] * 32 == counts[f"global.{tensor}.{way}_bytes"] > 0


@DTYPES
@pytest.mark.parametrize("sm", [80, 86, 89, 90, 100, 120])
def test_a_few_hundred_codes_on_every_architecture(sm: int, dtype: str) -> None:
    for layout in KERNEL.layouts:
        assert 200 <= len(Space(KERNEL, sm, limits(sm), dtype, layout).codes.keys) <= 300


@LAYOUTS
def test_the_codes_hungriest_for_registers_do_not_spill(layout: str) -> None:
    hungry = (_config(128, 128, 64, 64, 64, stages=2), _config(64, 256, 64, 32, 64, stages=2, fragments=1))
    for config in hungry:
        resources = _compile(config, "f16", layout)[0].resources["matmul_mma"]
        assert (resources.spill_store_bytes, resources.spill_load_bytes) == (0, 0)
        assert resources.registers <= (128 if config["fragments"] == 1 else 255)


def _changed(old: str, new: str) -> Kernel:
    """A copy of the kernel with one thing changed in its source."""
    assert old in KERNEL.source
    return dataclasses.replace(KERNEL, source=KERNEL.source.replace(old, new))


def test_without_the_exchange_of_chunks_banks_conflict() -> None:
    config = CONFIGS[4] | {"split_k": 1}
    kernel = _changed("(CHUNKS >= 8 ? row % 8 : row / 2 % 4) * CHUNK_BYTES", "0")
    for candidate, clean in ((KERNEL, True), (kernel, False)):
        compiled, _ = _compile(config, "f16", "nn", candidate)
        profile = profile_code(candidate, [config], "f16", "nn", SM, compiled)[0].profile
        counts = profile.counts({"block": 1, "k_tiles": 1})
        assert (counts["shared.load_wavefronts"] == counts["shared.load_ideal"]) is clean


def test_the_counts_of_a_loop_that_skips_its_edge_fit_no_profile() -> None:
    kernel = _changed("fetch(slots + previous(read));", "if (trip + STAGES <= trips) fetch(slots + previous(read));")
    config = CONFIGS[0]
    compiled, _ = _compile(config, "f16", "nn", kernel)
    with pytest.raises(KernrecError, match="not linear"):
        profile_code(kernel, [config], "f16", "nn", SM, compiled)
