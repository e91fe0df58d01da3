"""`attention_wgmma`: what holds of it beyond what every attention kernel keeps (test_attention.py); broken copies."""

import pytest

from kernrec.gpu import limits
from kernrec.kernel import Space, bind_launches, find_kernel
from kernrec.kernel.tensor_map import MapHandle
from kernrec.profile.probe_profile import profile_variant
from tests.helpers.attention import Case, code_of, is_noticed, problem_of, wgmma_case
from tests.helpers.kernel_code import assembled, not_assembled

pytestmark = pytest.mark.slow

WGMMA = find_kernel("attention_wgmma")
NARROW = wgmma_case(64, 64, 128, 3, 1, 0, dim=40)
THREE = wgmma_case(64, 192, 128, 3, 1, 1, dtype="bf16")
PLAIN = wgmma_case(96, 128, 176, 2, 0, 0, dim=88)
TURNS = wgmma_case(128, 128, 128, 2, 1, 1, dim=104)
WIDE = wgmma_case(256, 128, 80, 2, 1, 1)
SHAPE = {"heads": 2, "kv_heads": 1, "queries": 70, "keys": 129, "causal": 1}


@pytest.mark.parametrize("case", [PLAIN, WIDE], ids=lambda case: "-".join(map(str, case[1].values())))
def test_a_trip_of_warpgroups_brings_each_byte_once_and_multiplies_its_tiles(case: Case) -> None:
    kernel, config, dtype, _ = case
    compiled = not_assembled(*code_of(kernel, config, dtype))
    profile = profile_variant(kernel, [config], dtype, "bhsd", 90, compiled)[0].profile
    trip = dict(zip(profile.metrics, profile.coefficients[:, profile.terms.index("k_tiles")].tolist(), strict=True))
    tile = config["block_k"] * config["head"]
    assert trip["mma.f16"] == trip["wgmma.f16"] == 2 * 2 * config["block_q"] * tile
    # queries and keys of the first product of each warpgroup, values of the second
    of_warpgroup = 2 * (64 * config["head"] + 2 * tile)
    assert trip["wgmma.shared_bytes"] == config["block_q"] // 64 * of_warpgroup
    for name in "kv":
        assert trip[f"global.{name}.read_bytes"] == trip[f"global.{name}.read_sectors"] * 32 == 2 * tile
    assert trip["barriers"] == (config["block_q"] // 64 if config["turns"] else 0)


@pytest.mark.parametrize("case", [THREE, TURNS, WIDE], ids=lambda case: "-".join(map(str, case[1].values())))
def test_warpgroups_have_registers_enough_and_their_products_are_not_put_in_line(case: Case) -> None:
    compiled = assembled(*code_of(*case[:3]))
    resources = compiled.resources["attention_wgmma"]
    assert (resources.spill_store_bytes, resources.spill_load_bytes) == (0, 0)
    assert "serialized" not in compiled.log
    assert "setmaxnreg" not in compiled.log


def test_warpgroups_are_those_of_one_architecture() -> None:
    """wgmma is of sm_90a alone."""
    for sm in (100, 120):
        assert not len(Space(WGMMA, sm, limits(sm), "f16", "bhsd"))
    for dtype in WGMMA.dtypes:
        assert 10 <= len(Space(WGMMA, 90, limits(90), dtype, "bshd").variants.keys) <= 40


def test_rows_that_no_tensor_map_describes_get_no_config_of_warpgroups() -> None:
    space = Space(WGMMA, 90, limits(90), "f16", "bhsd")
    assert len(space.at(problem_of("f16", 72, SHAPE)).rows)
    assert not len(space.at(problem_of("f16", 68, SHAPE)).rows)
    assert not len(space.at(problem_of("f16", 264, SHAPE)).rows)


@pytest.mark.parametrize("layout", WGMMA.layouts)
def test_boxes_of_warpgroups_are_tokens_of_one_head_in_either_layout(layout: str) -> None:
    problem = problem_of("bf16", 88, {"batch": 2, "heads": 6, "kv_heads": 3, "queries": 70, "keys": 90}, layout)
    arguments = bind_launches(WGMMA, PLAIN[1], problem, 90)[0].arguments
    q, k, _ = (argument for argument in arguments if isinstance(argument, MapHandle))
    tokens = 1 if layout == "bhsd" else 2
    assert (q.swizzle, q.extents[0], q.extents[tokens], k.extents[tokens]) == (64, 88, 70, 90)
    assert q.box == tuple({0: 32, tokens: 128}.get(axis, 1) for axis in range(4))
    assert k.box == tuple({0: 32, tokens: 176}.get(axis, 1) for axis in range(4))


PROMPT = {"heads": 2, "kv_heads": 1, "queries": 70, "keys": 140, "causal": 1}
LONG = {"heads": 1, "queries": 70, "keys": 600}

MUTANTS: list[tuple[str, str, Case, dict[str, int]]] = [
    ("    barrier_wait(q_full, 0);\n", "", NARROW, PROMPT),
    ("    barrier_wait(k_full(0), 0);\n", "", NARROW, PROMPT),
    ("        barrier_wait(v_full(now.number), now.parity);\n", "", NARROW, PROMPT),
    (
        "barrier_wait(v_full(now.number), now.parity);",
        "barrier_wait(v_full(now.number), now.parity ^ 1);",
        NARROW,
        PROMPT,
    ),
    ("barrier_wait(k_empty(stage.number), stage.parity ^ 1);", "", TURNS, LONG),
    (
        "barrier_wait(v_empty(stage.number), stage.parity ^ 1);",
        "barrier_wait(v_empty(stage.number), stage.parity);",
        TURNS,
        LONG,
    ),
    ("barrier_start(v_empty(stage), READERS * (GROUP / 32));", "barrier_start(v_empty(stage), READERS);", TURNS, LONG),
    ("barrier_expect(barrier, BOXES * box_bytes);", "barrier_expect(barrier, box_bytes);", TURNS, PROMPT),
    ("        release(v_empty(now.number));\n", "", TURNS, LONG),
    (
        "        wait_for_products<0>();\n        hold(result);\n        release(v_empty(now.number));",
        "        release(v_empty(now.number));\n        wait_for_products<0>();\n        hold(result);",
        TURNS,
        LONG,
    ),
    ("    __syncthreads();  // the barriers are there for all", "    //", NARROW, PROMPT),
    (
        "        products_fence();\n        multiply_queries(stage.number);\n        barrier_wait",
        "        multiply_queries(stage.number);\n        barrier_wait",
        NARROW,
        PROMPT,
    ),
    ("        wait_for_products<1>();\n", "", NARROW, PROMPT),
    (
        "        wait_for_products<0>();\n        hold(result);\n    };",
        "        wait_for_products<1>();\n        hold(result);\n    };",
        NARROW,
        PROMPT,
    ),
    (
        "        wait_for_products<0>();\n        hold(score);",
        "        wait_for_products<1>();\n        hold(score);",
        PLAIN,
        PROMPT,
    ),
    ("reader * 64 * ROW_BYTES", "0", TURNS, PROMPT),
    ("ROW_BYTES == 128 ? 1 : 2;", "ROW_BYTES == 128 ? 2 : 1;", NARROW, PROMPT),
    ("described<ROW_BYTES, K_BOX>", "described<ROW_BYTES, Q_BOX>", WIDE, PROMPT),
    ("v_tile + step * ROW_BYTES", "v_tile + step * STEP_BYTES", NARROW, PROMPT),
    ("box + step > 0", "1", NARROW, PROMPT),
    ('v_place ", p, 1, 1, 1; }"', 'v_place ", p, 1, 1, 0; }"', NARROW, PROMPT),
    ("origin.token += BLOCK_K;", "origin.token += BLOCK_K - 1;", NARROW, PROMPT),
    ("origin.inner ? origin.token : origin.head", "origin.token", NARROW, PROMPT),
    ("{tiles.first, blockIdx.y / group,", "{tiles.first, blockIdx.y,", NARROW, PROMPT),
    ("int(j * 8 + e % 2) < met[e / 2]", "int(j * 8 + e % 2) <= met[e / 2]", NARROW, PROMPT),
    ("            met[h] -= BLOCK_K;\n", "", NARROW, PROMPT),
    ("            sum[h] *= rescale[h];\n", "", NARROW, PROMPT),
    ("result[j][e] *= rescale[e / 2];", "", NARROW, PROMPT),
    ("        pass_turn(reader);\n", "", TURNS, PROMPT),
    ("    if (reader == READERS - 1) pass_turn(reader);\n", "", TURNS, PROMPT),
]  # fmt: skip


@pytest.mark.every(4)
@pytest.mark.parametrize(("old", "new", "case", "shape"), MUTANTS, ids=[f"{old.strip()[:60]}" for old, *_ in MUTANTS])
def test_breaking_one_thing_in_the_source_is_noticed(old: str, new: str, case: Case, shape: dict[str, int]) -> None:
    assert is_noticed(old, new, case, shape)
