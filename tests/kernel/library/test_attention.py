"""`attention_mma` and `attention_simt`, run by the emulator on awkward problems and held against the op's reference."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from kernrec.gpu import limits
from kernrec.kernel import Kernel, Space, bind_launches, find_kernel
from kernrec.op import Problem, decode_elements, encode_elements, find_op, inputs, reference
from kernrec.profile.probe_profile import emulate_config, profile_variant
from kernrec.ptx import EmulationError
from tests.helpers.kernel_code import Config, assembled, module_of, not_assembled
from tests.helpers.trial import execute

pytestmark = pytest.mark.slow

MMA, SIMT = find_kernel("attention_mma"), find_kernel("attention_simt")
UNIT = 2.0**-24
"""Half a unit in the last place of f32, relative."""
ROUNDING = {"f32": UNIT, "f16": 2.0**-11, "bf16": 2.0**-8}
LEAST = {"f32": 0.0, "f16": 2.0**-25, "bf16": 0.0}
"""Half the distance of subnormal numbers."""

Case = tuple[Kernel, dict[str, int], str, int]
"""A kernel, a config of it, a dtype, and a head_dim that the config's HEAD is for."""


def _sm(kernel: Kernel, dtype: str) -> int:
    """The architecture that a case is run for: halves without tensor cores are those of sm_75."""
    return 75 if kernel is SIMT and dtype != "f32" else 86


def _mma(head: int, *tile: int, dtype: str = "f16", dim: int = 0, pack: int = 0, split_keys: int = 1) -> Case:
    config = dict(zip(("block_q", "warp_q", "block_k", "stages"), tile, strict=True))
    few = {"warps_k": 1 if config["block_q"] > 16 else 4 if head < 256 else 2}
    return MMA, {"head": head} | config | few | {"pack": pack, "split_keys": split_keys}, dtype, dim or head


def _simt(head: int, *tile: int, dtype: str = "f32", dim: int = 0, pack: int = 0, split_keys: int = 1) -> Case:
    config = dict(zip(("threads", "rows", "columns", "vector"), tile, strict=True))
    return SIMT, {"head": head} | config | {"pack": pack, "split_keys": split_keys}, dtype, dim or head


CASES = (
    _mma(64, 16, 16, 64, 3, pack=1, split_keys=4),
    _mma(128, 16, 16, 64, 2, dtype="bf16", pack=1, split_keys=2),
    _mma(48, 64, 16, 64, 2, dim=40, pack=1),
    _mma(64, 64, 16, 128, 1, dtype="bf16"),
    _mma(80, 128, 32, 64, 2, pack=1),
    _mma(96, 128, 32, 64, 1, dim=88),
    _mma(128, 64, 16, 64, 1, dim=104, split_keys=2),
    _mma(128, 128, 32, 32, 2, pack=1),
    _mma(160, 64, 16, 32, 2, dtype="bf16", split_keys=4),
    _mma(256, 64, 16, 32, 2, dim=200),
    _mma(256, 16, 16, 32, 2, dtype="bf16", dim=176, split_keys=2),
    _mma(80, 16, 16, 64, 2, dim=72, pack=1),
    _simt(64, 128, 1, 4, 4, pack=1, split_keys=4),
    _simt(64, 128, 2, 4, 1, dim=37, split_keys=2),
    _simt(64, 128, 4, 8, 4, dim=40),
    _simt(64, 128, 8, 4, 4, pack=1),
    _simt(96, 256, 2, 4, 4, dim=80, pack=1),
    _simt(128, 128, 4, 2, 4, dtype="f16"),
    _simt(160, 128, 1, 4, 1, dtype="f16", dim=131, split_keys=4),
    _simt(256, 128, 1, 2, 4, dtype="bf16", pack=1),
)
EACH_CASE = pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, (c[0].name, *c[1].values(), c[2]))))

SHAPES = (
    {"batch": 2, "heads": 4, "kv_heads": 2, "queries": 1, "keys": 200},
    {"batch": 2, "heads": 2, "kv_heads": 1, "queries": 17, "keys": 33, "causal": 1},
    {"heads": 1, "queries": 70, "keys": 129},
    {"heads": 2, "kv_heads": 1, "queries": 70, "keys": 129, "causal": 1},
    {"heads": 1, "queries": 131, "keys": 150, "causal": 1},
    {"heads": 2, "queries": 5, "keys": 5, "causal": 1},
)


def _code(kernel: Kernel, config: Config, dtype: str) -> tuple[Kernel, Config, str, str, int]:
    """What a config's code is made of; that of both layouts is the same."""
    return kernel, config, dtype, "bhsd", _sm(kernel, dtype)


def _problem(dtype: str, dim: int, shape: dict[str, int], layout: str = "bhsd") -> Problem:
    return find_op("attention").problem(dtype=dtype, layout=layout, head_dim=dim, **shape)


def _run(
    kernel: Kernel, config: dict[str, int], problem: Problem, given: dict[str, np.ndarray], check_races: bool = False
) -> np.ndarray:
    """The values of o as the kernel leaves them in memory."""
    module = module_of(*_code(kernel, config, problem.dtype))
    o = execute(kernel, config, problem, _sm(kernel, problem.dtype), module, given, check_races=check_races)["o"]
    return decode_elements(o, problem.dtype)


def _bound(kernel: Kernel, problem: Problem, given: dict[str, np.ndarray], expected: np.ndarray) -> np.ndarray:
    """How far roundings may take o from what it is in exact arithmetic.

    A score is a sum of head_dim products, scaled, in f32: its absolute error is the relative error of its weight. The
    weights are rounded to the dtype before tensor cores multiply them, and what is left of those below its least normal
    number. Then come the sums over the keys, rescaled once a tile, and the rounding of the result.
    """
    dim, dtype = problem.names, problem.dtype
    value = {name: decode_elements(tensor, dtype) for name, tensor in given.items()}
    size = problem.definition.reference(problem.sizes, problem.layout, value | {"v": np.abs(value["v"])})["o"]
    longest = [np.linalg.norm(value[name], axis=-1).max() for name in "qk"]
    of_score = (dim["head_dim"] + 8) * UNIT * longest[0] * longest[1] / np.sqrt(dim["head_dim"])
    of_weight = ROUNDING[dtype] if kernel is MMA else 0.0
    relative = of_weight + 2 * of_score + (3 * dim["keys"] + 32) * UNIT
    lost = dim["keys"] * LEAST[dtype] * np.abs(value["v"]).max() if kernel is MMA else 0.0
    return relative * size + ROUNDING[dtype] * np.abs(expected) + lost + LEAST[dtype]


def _wrong(kernel: Kernel, config: dict[str, int], problem: Problem, check_races: bool = False, seed: int = 0) -> int:
    """How many values of o are further from the reference than roundings take them."""
    given = inputs(problem, seed)
    expected = reference(problem, given)["o"]
    o = _run(kernel, config, problem, given, check_races)
    return int((~(np.abs(o - expected) <= _bound(kernel, problem, given, expected))).sum())


def _fitting(case: Case, problem: Problem) -> dict[str, int]:
    """The case's config as far as it fits the problem: run-time tunables fall back to their first values."""
    kernel, config, _, _ = case
    plain = {"pack": 0, "split_keys": 1}
    candidates = (config, config | {"split_keys": 1}, config | {"pack": 0}, config | plain)
    return next(c for c in candidates if kernel.fits(c, problem, limits(_sm(kernel, problem.dtype))))


@pytest.mark.every(2)
@EACH_CASE
def test_attention_is_within_its_roundings_of_the_reference(case: Case) -> None:
    """On three of the shapes, each case beginning with another one; on more until its config fits as it is."""
    kernel, config, dtype, dim = case
    place = CASES.index(case)
    ran: list[dict[str, int]] = []
    for number in range(len(SHAPES)):
        if number >= 3 and config in ran:
            break
        layout = kernel.layouts[(number + place) % 2]
        problem = _problem(dtype, dim, SHAPES[(number + place) % len(SHAPES)], layout)
        ran.append(_fitting(case, problem))
        assert _wrong(kernel, ran[-1], problem, check_races=number == 0, seed=number) == 0, (ran[-1], problem.key)
    assert config in ran, "the config runs as it is on none of the shapes"


def test_every_value_of_every_tunable_is_among_the_cases_but_the_widest_splits() -> None:
    for kernel in (MMA, SIMT):
        for tunable in kernel.tunables:
            seen = {case[1][tunable.name] for case in CASES if case[0] is kernel}
            assert seen == {value for value in tunable.values if tunable.name != "split_keys" or value <= 4}


@pytest.mark.parametrize("split_keys", [8, 16, 32])
@pytest.mark.parametrize("case", [CASES[0], CASES[12]], ids=lambda case: case[0].name)
def test_shares_without_a_tile_of_keys_count_for_nothing(case: Case, split_keys: int) -> None:
    kernel, config, dtype, dim = case
    problem = _problem(dtype, dim, {"heads": 4, "kv_heads": 2, "queries": 3, "keys": 129, "causal": 1})
    assert _wrong(kernel, config | {"split_keys": split_keys}, problem) == 0


@pytest.mark.parametrize("case", CASES[::4], ids=lambda case: case[0].name)
def test_a_sequence_comes_out_alike_in_either_layout(case: Case) -> None:
    kernel, _, dtype, dim = case
    shape = {"heads": 4, "kv_heads": 2, "queries": 9, "keys": 65, "causal": 1}
    one, other = (_problem(dtype, dim, shape, layout) for layout in ("bhsd", "bshd"))
    config = _fitting(case, one)
    given = inputs(one)
    swapped = {name: np.ascontiguousarray(tensor.swapaxes(1, 2)) for name, tensor in given.items()}
    assert np.array_equal(_run(kernel, config, one, given), _run(kernel, config, other, swapped).swapaxes(1, 2))


@for_all(data=st.data())
def test_the_trips_of_the_spec_are_those_that_the_blocks_make(data: st.DataObject) -> None:
    kernel, config, dtype, dim = data.draw(st.sampled_from(CASES))
    keys = data.draw(st.integers(1, 700))
    shape = {
        "heads": (group := data.draw(st.integers(1, 9))) * 2,
        "kv_heads": 2,
        "queries": data.draw(st.integers(1, keys)),
        "keys": keys,
        "causal": data.draw(st.integers(0, 1)),
    }
    problem = _problem(dtype, dim, shape)
    config = _fitting((kernel, config, dtype, dim), problem)
    sm = _sm(kernel, dtype)
    names = kernel.namespace(config, problem, sm)
    packed = group if config["pack"] else 1
    tile, block_k, queries = names["block_q"] // packed, names["block_k"], shape["queries"]
    older = keys - queries if shape["causal"] else keys
    total = unmasked = 0
    for before in range(0, queries, tile):
        total += -(-min(keys, min(before + tile, queries) + older) // block_k)
        unmasked += min(keys, before + 1 + older) // block_k
    blocks = 2 * group // packed
    main = bind_launches(kernel, config, problem, sm)[0]
    assert main.trips == {"k_tiles": blocks * total, "masked": blocks * (total - unmasked)}
    launch = kernel.launches[main.index]
    assert {n: launch.depth[n].evaluate(names) for n in launch.depth}["k_tiles"] == -(
        -names["k_tiles"] // config["split_keys"]
    )


@pytest.mark.every(2)
@pytest.mark.parametrize("case", [*CASES[:8:2], *CASES[12:17:2]], ids=lambda case: case[0].name)
def test_every_block_issues_what_its_profile_says_whatever_the_edges(case: Case) -> None:
    kernel, config, dtype, dim = case
    sm = _sm(kernel, dtype)
    code = _code(kernel, config, dtype)
    compiled, module = not_assembled(*code), module_of(*code)
    configs = [config | {"pack": 0, "split_keys": split_keys} for split_keys in (1, 2, 4, 8)]
    profiles = {p.launch: p.profile for p in profile_variant(kernel, configs, dtype, "bhsd", sm, compiled)}
    for shape in SHAPES[:4]:
        problem = _problem(dtype, dim, shape)
        buffers = {**inputs(problem), "o": encode_elements(np.zeros(problem.tensors["o"].shape), dtype)}
        for bound, counts in emulate_config(kernel, _fitting(case, problem), problem, sm, module, buffers):
            expected = profiles[bound.index].counts({"block": bound.blocks, **bound.trips})
            for metric, count in expected.items():
                if metric.startswith(("issue", "shared", "barriers", "mma")):
                    assert counts.get(metric, 0) == count, (bound.entry, metric, problem.key)


@pytest.mark.every(2)
@pytest.mark.parametrize("case", CASES[1::2], ids=lambda case: case[0].name)
def test_a_trip_has_no_bank_conflicts_and_exactly_the_products_of_its_tile(case: Case) -> None:
    kernel, config, dtype, _ = case
    sm = _sm(kernel, dtype)
    compiled = not_assembled(*_code(kernel, config, dtype))
    profile = profile_variant(kernel, [config | {"pack": 0, "split_keys": 1}], dtype, "bhsd", sm, compiled)[0].profile
    trip = dict(zip(profile.metrics, profile.coefficients[:, profile.terms.index("k_tiles")].tolist(), strict=True))
    for way in ("load", "store"):
        assert trip[f"shared.{way}_wavefronts"] == trip[f"shared.{way}_ideal"] > 0
    names = kernel.namespace(config, _problem(dtype, config["head"], SHAPES[0]), sm)
    products = 2 * names["block_q"] * names["block_k"] * config["head"]
    if kernel is MMA:
        assert trip["issue.mma"] * 16 * 8 * 16 == products
        assert trip["barriers"] == (2 if config["stages"] == 1 else 1)
    else:
        assert products <= trip["issue.fma32"] * 32 <= 1.25 * products
        assert trip["barriers"] == 2


@pytest.mark.parametrize(
    ("kernel", "dtype", "most"), [(MMA, "f16", 60), (MMA, "bf16", 60), (SIMT, "f32", 40), (SIMT, "f16", 40)]
)
def test_a_few_dozen_codes_on_every_architecture(kernel: Kernel, dtype: str, most: int) -> None:
    for sm in (75, 80, 86, 89, 90, 100, 120):
        if sm >= kernel.min_sm:
            for layout in kernel.layouts:
                assert 5 <= len(Space(kernel, sm, limits(sm), dtype, layout).variants.keys) <= most


@pytest.mark.parametrize(
    "case", [_mma(128, 128, 32, 64, 2), _mma(96, 128, 32, 64, 1), _mma(64, 128, 32, 128, 2), _simt(160, 128, 4, 4, 4)]
)
def test_the_codes_hungriest_for_registers_do_not_spill(case: Case) -> None:
    resources = assembled(*_code(*case[:3])).resources[case[0].name]
    assert (resources.spill_store_bytes, resources.spill_load_bytes) == (0, 0)


DECODE = {"heads": 4, "kv_heads": 2, "queries": 3, "keys": 300}
PROMPT = {"heads": 2, "kv_heads": 1, "queries": 70, "keys": 140, "causal": 1}

MUTANTS: list[tuple[str, str, Case, dict[str, int]]] = [
    # barriers and copies
    ("        wait_for_copies<STAGES - 2>();\n", "", CASES[2], PROMPT),
    ("        __syncthreads();  // this tile has landed for all", "        //", CASES[2], PROMPT),
    ("        __syncthreads();  // the values have landed for all", "        //", CASES[3], PROMPT),
    ("        __syncthreads();  // the keys have landed for all", "        //", CASES[3], PROMPT),
    ("        __syncthreads();  // q has landed", "        //", CASES[3], PROMPT),
    ("        __syncthreads();  // values and weights are there", "        //", CASES[15], PROMPT),
    ("        __syncthreads();  // the next keys are there", "        //", CASES[15], PROMPT),
    ("    __syncthreads();  // all have done with the last tile", "    //", CASES[0], DECODE),
    ("    __syncthreads();  // the others' results are there", "    //", CASES[0], DECODE),
    # guards
    ("int(step) < left", "true", CASES[2], PROMPT),
    ("query < queries;", "true;", CASES[2], PROMPT),
    ("in_tile < tile_queries &&", "true ||", CASES[2], {**PROMPT, "heads": 3}),
    ("inside && (g * EXCHANGED + chunk) * CHUNK < head_dim", "inside", CASES[2], PROMPT),
    ("Packet<4>{words[j]}, inside && at < head_dim)", "Packet<4>{words[j]}, inside)", CASES[2], PROMPT),
    ("int(i * GROUPS) < left ? columns : 0", "columns", CASES[12], DECODE),
    ("const bool inside = at < elements;", "const bool inside = true;", CASES[12], DECODE),
    # masks
    ("if (unmasked < int(BLOCK_K))", "if (false)", CASES[3], PROMPT),
    ("int(j * 8 + e % 2) < met[i][e / 2]", "int(j * 8 + e % 2) <= met[i][e / 2]", CASES[3], PROMPT),
    ("int(j * LANES) < met[i]", "int(j * LANES) <= met[i]", CASES[15], PROMPT),
    ("met[i][h] -= BLOCK_K", "met[i][h] -= 0", CASES[2], PROMPT),
    ("MASKED = -0x1p100f", "MASKED = -1e30f", CASES[0], {"heads": 2, "queries": 9, "keys": 9, "causal": 1}),
    # indices
    ("row - in_tile * packed", "0", CASES[0], DECODE),
    ("blockIdx.y * packed / group", "blockIdx.y", CASES[3], PROMPT),
    ("min(split, longer_shares)", "0", CASES[0], DECODE),
    ("(2 * i + half) ^ exchange(row)", "2 * i + half", CASES[2], PROMPT),
    ("2 * step + e / 2", "2 * step + e % 2", CASES[3], PROMPT),
    # the running sums
    ("value = value * own", "value = value", CASES[0], DECODE),
    ("                sum[i][h] *= rescale;\n", "", CASES[2], PROMPT),
    ("result[i][j][2 * h] *= rescale;", "", CASES[2], PROMPT),
    ("            sum[i] *= rescale;\n", "", CASES[15], PROMPT),
    ("result[i][p][e] *= rescale;", ";", CASES[15], PROMPT),
    ("weight = weight * old_scale + its_weight * scale;", "weight = weight + its_weight;", CASES[0], DECODE),
    ("sum[i] = sum[i] * old_scale + value[i] * scale;", "sum[i] = sum[i] + value[i];", CASES[0], DECODE),
]  # fmt: skip


@pytest.mark.every(4)
@pytest.mark.parametrize(("old", "new", "case", "shape"), MUTANTS, ids=[f"{old.strip()[:60]}" for old, *_ in MUTANTS])
def test_breaking_one_thing_in_the_source_is_noticed(old: str, new: str, case: Case, shape: dict[str, int]) -> None:
    kernel, _, dtype, dim = case
    assert kernel.source.count(old) == 1
    broken = dataclasses.replace(kernel, source=kernel.source.replace(old, new))
    problem = _problem(dtype, dim, shape, "bshd")
    config = _fitting(case, problem)
    given = inputs(problem)
    expected = reference(problem, given)["o"]
    try:
        o = _run(broken, config, problem, given, check_races=True)
    except EmulationError:
        return
    assert not (np.abs(o - expected) <= _bound(kernel, problem, given, expected)).all()
