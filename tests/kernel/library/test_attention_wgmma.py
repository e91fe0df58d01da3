"""Test the specifics of `attention_wgmma` that test_attention.py does not cover, and broken copies of the kernel."""

import pytest

from kernrec.kernel import find_kernel
from tests.helpers.attention import Case, code_of, is_noticed, wgmma_case
from tests.helpers.counted import per_trip, profiled
from tests.helpers.kernel_code import assembled, not_assembled

pytestmark = pytest.mark.slow

WGMMA = find_kernel("attention_wgmma")
NARROW = wgmma_case(64, 64, 128, 3, 1, 0, dim=40)
THREE = wgmma_case(64, 192, 128, 3, 1, 1, dtype="bf16")
PLAIN = wgmma_case(96, 128, 176, 2, 0, 0, dim=88)
TURNS = wgmma_case(128, 128, 128, 2, 1, 1, dim=104)
WIDE = wgmma_case(256, 128, 80, 2, 1, 1)
NARROW_8BIT = wgmma_case(64, 64, 192, 3, 1, 0, dtype="f8e4m3", dim=48)
THREE_8BIT = wgmma_case(64, 192, 128, 3, 1, 1, dtype="f8e4m3")
TURNS_8BIT = wgmma_case(128, 128, 128, 3, 1, 1, dtype="f8e4m3", dim=112)
NARROW_TILE = wgmma_case(256, 128, 64, 3, 1, 0, dtype="f8e4m3")
WIDE_8BIT = wgmma_case(256, 128, 128, 2, 0, 0, dtype="f8e4m3")
SHAPE = {"heads": 2, "kv_heads": 1, "queries": 70, "keys": 129, "causal": 1}


@pytest.mark.parametrize(
    "case", [PLAIN, WIDE, NARROW_8BIT, TURNS_8BIT], ids=lambda case: "-".join(map(str, case[1].values()))
)
def test_warpgroup_trip_loads_each_byte_once_and_multiplies_its_tiles(case):
    kernel, config, dtype, _ = case
    compiled = not_assembled(*code_of(kernel, config, dtype))
    trip = per_trip(profiled(kernel, [config], dtype, "bhsd", 90, compiled)[0])
    tile = config["block_k"] * config["head"]
    size = 1 if dtype == "f8e4m3" else 2
    # 8-bit products run at twice the rate.
    assert trip["mma.f16"] == trip["wgmma.f16"] == 2 * size * config["block_q"] * tile
    # Each warpgroup reads queries and keys for its first product, and values for its second.
    of_warpgroup = size * (64 * config["head"] + 2 * tile)
    assert trip["wgmma.shared_bytes"] == config["block_q"] // 64 * of_warpgroup
    for name in "kv":
        assert trip[f"global.{name}.read_bytes"] == trip[f"global.{name}.read_sectors"] * 32 == size * tile
    assert trip["barriers"] == (config["block_q"] // 64 if config["turns"] else 0)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "case",
    [THREE, TURNS, WIDE, THREE_8BIT, TURNS_8BIT, WIDE_8BIT],
    ids=lambda case: "-".join(map(str, (case[2], *case[1].values()))),
)
def test_warpgroups_have_enough_registers_and_products_stay_asynchronous(case):
    compiled = assembled(*code_of(*case[:3]))
    resources = compiled.resources["attention_wgmma"]
    assert (resources.spill_store_bytes, resources.spill_load_bytes) == (0, 0)
    assert "serialized" not in compiled.log
    assert "setmaxnreg" not in compiled.log


PROMPT = {"heads": 2, "kv_heads": 1, "queries": 70, "keys": 140, "causal": 1}
LONG = {"heads": 1, "queries": 70, "keys": 600}
LONG_8BIT = {"heads": 1, "queries": 70, "keys": 1100}
EACH = {"batch": 2, "heads": 4, "kv_heads": 2, "queries": 20, "keys": 130, "scales": 1, "output": 1}

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
        "barrier_wait(turned(stage.number), stage.parity ^ 1);",
        "barrier_wait(turned(stage.number), stage.parity);",
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
    ("{ return key * ROW_BYTES; }", "{ return key * STEP_BYTES; }", NARROW, PROMPT),
    ("box + step > 0", "1", NARROW, PROMPT),
    ('RESULTS_END ", p, 1, 1, 1; }"', 'RESULTS_END ", p, 1, 1, 0; }"', NARROW, PROMPT),
    ("origin.token += BLOCK_K;", "origin.token += BLOCK_K - 1;", NARROW, PROMPT),
    ("origin.inner ? origin.token : origin.head", "origin.token", NARROW, PROMPT),
    ("{tiles.first, blockIdx.y / group,", "{tiles.first, blockIdx.y,", NARROW, PROMPT),
    ("int(j * 8 + e % 2) < met[e / 2]", "int(j * 8 + e % 2) <= met[e / 2]", NARROW, PROMPT),
    ("            met[h] -= BLOCK_K;\n", "", NARROW, PROMPT),
    ("            sum[h] *= rescale[h];\n", "", NARROW, PROMPT),
    ("result[j][e] *= rescale[e / 2];", "", NARROW, PROMPT),
    ("        pass_turn(reader);\n", "", TURNS, PROMPT),
    ("    if (reader == READERS - 1) pass_turn(reader);\n", "", TURNS, PROMPT),
    ("const __grid_constant__ TensorMap q,", "const TensorMap q,", NARROW, PROMPT),
    ('asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");', "", TURNS, PROMPT),
    ("setmaxnreg.dec.sync.aligned.u32 24;", "setmaxnreg.dec.sync.aligned.u32 32;", TURNS, PROMPT),
    ("setmaxnreg.inc.sync.aligned.u32 240;", "setmaxnreg.inc.sync.aligned.u32 248;", TURNS, PROMPT),
    ('asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");', "", THREE, PROMPT),
    ("setmaxnreg.dec.sync.aligned.u32 32;", "setmaxnreg.dec.sync.aligned.u32 40;", THREE, PROMPT),
    ("setmaxnreg.inc.sync.aligned.u32 160;", "setmaxnreg.inc.sync.aligned.u32 168;", THREE, PROMPT),
    # mutants of 8-bit kernels without barriers or fences
    ("            barrier_wait(copied(last.number), last.parity);\n", "", TURNS_8BIT, LONG_8BIT),
    ("            barrier_wait(v_empty(last.number), last.parity ^ 1);\n", "", TURNS_8BIT, LONG_8BIT),
    ("barrier_wait(turned(stage.number), stage.parity ^ 1);", "", TURNS_8BIT, LONG_8BIT),
    ("            release(turned(last.number));\n", "", TURNS_8BIT, LONG_8BIT),
    ("barrier_start(turned(stage), GROUP / 32);", "barrier_start(turned(stage), 1);", TURNS_8BIT, LONG_8BIT),
    ("barrier_start(v_full(stage), GROUP / 32);", "barrier_start(v_full(stage), 1);", TURNS_8BIT, PROMPT),
    (
        '            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // tensor cores',
        "            //",
        NARROW_8BIT,
        PROMPT,
    ),
    ("stage * STAGE_BARRIERS : v_full(stage); };", "stage * 32 : v_full(stage); };", TURNS_8BIT, PROMPT),
    ("setmaxnreg.dec.sync.aligned.u32 40;", "setmaxnreg.dec.sync.aligned.u32 48;", TURNS_8BIT, PROMPT),
    ("setmaxnreg.inc.sync.aligned.u32 232;", "setmaxnreg.inc.sync.aligned.u32 240;", TURNS_8BIT, PROMPT),
    # mutants of 8-bit kernels with wrongly transposed values
    ("i % 2 ? 0x7531 : 0x6420", "i % 2 ? 0x6420 : 0x7531", NARROW_8BIT, PROMPT),
    ("pairs[i / 2 * 2 + 1], i % 2", "pairs[i / 2 * 2], i % 2", NARROW_8BIT, PROMPT),
    ("m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\"\n                         : \"=r\"(pairs[0])",
     "m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\"\n                         : \"=r\"(pairs[0])", NARROW_8BIT, PROMPT),
    ("lane / 16 * 16 ^ swizzle(row, VALUES_ROW)", "lane / 16 * 16", NARROW_8BIT, PROMPT),
    ("warp * 16 ^ swizzle(lane, ROW_BYTES)", "warp * 16", NARROW_8BIT, PROMPT),
    ("(from_piece ^ column % ROW_BYTES)", "from_piece", TURNS_8BIT, PROMPT),
    ("column / ROW_BYTES * K_BOX", "column / ROW_BYTES * Q_BOX", NARROW_TILE, PROMPT),
    ("key / VALUES_ROW * VALUES_BOX + (to_piece", "key / 128 * VALUES_BOX + (to_piece", NARROW_8BIT, PROMPT),
    ("return key / VALUES_ROW * VALUES_BOX + key % VALUES_ROW;", "return key;", NARROW_8BIT, PROMPT),
    # mutants of 8-bit kernels with wrong weights, scales or results
    ("satfinite.e4m3x2.f32 low, %2, %1;", "satfinite.e4m3x2.f32 low, %1, %2;", NARROW_8BIT, PROMPT),
    ("4 * step + e / 2 * 2, h = e % 2 * 2;", "4 * step + e % 2 * 2, h = e / 2 * 2;", NARROW_8BIT, PROMPT),
    ("WEIGHT_SHIFT = 8;", "WEIGHT_SHIFT = 0;", NARROW_8BIT, PROMPT),
    ("WEIGHT_SHIFT = 8;", "WEIGHT_SHIFT = 9;", NARROW_8BIT, PROMPT),
    ("const float scaled = over * v_scale[scale];", "const float scaled = over;", NARROW_8BIT, PROMPT),
    ("(q_scale[scale] * k_scale[scale])", "k_scale[scale]", NARROW_8BIT, PROMPT),
    ("blockIdx.z * (heads / group) + blockIdx.y / group : 0", "blockIdx.y / group : 0", NARROW_8BIT, EACH),
    ("blockIdx.z * (heads / group) + blockIdx.y / group : 0", "blockIdx.z * heads + blockIdx.y : 0", NARROW_8BIT, EACH),
    ("each_scale ? blockIdx.z", "0 ? blockIdx.z", NARROW_8BIT, EACH),
    ("        if (halves)\n", "        if (!halves)\n", NARROW_8BIT, EACH),
    ("j * 8 + threadIdx.x % 4 * 4;", "j * 8 + threadIdx.x % 4 * 2;", NARROW_8BIT, PROMPT),
    ("store_packet(start + at, four, inside && at < head_dim);", "store_packet(start + at, four, inside);",
     NARROW_8BIT, PROMPT),
]  # fmt: skip

EQUIVALENT: list[tuple[str, str, str, Case, dict[str, int]]] = [
    ("the barrier of the block orders the initialization",
     'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");', "", NARROW, PROMPT),
    ("any lane may say that its warp has done",
     "threadIdx.x % 32 == 0) asm", "threadIdx.x % 32 == 1) asm", TURNS, LONG),
    ("turns say when products start, not what they read",
     'asm volatile("bar.sync %0, %1;" ::"r"(reader + 1), "n"(2 * GROUP) : "memory");', "", TURNS, LONG),
    ("a turn that nobody takes is left when the block ends",
     "    if (reader == 0) await_turn(reader);", "    //", TURNS, LONG),
    ("slower alone: nothing stays under way", "        wait_for_products<1>();\n", "        wait_for_products<0>();\n",
     NARROW, PROMPT),
    ("of two neighbors in the ring the loader comes to the second after the first, which is given back later",
     "        release(v_empty(stage.number));\n        stage.next();",
     "        release(v_empty(stage.number ^ 1));\n        stage.next();", PLAIN, LONG),
    ("a ring of one stage", "number = number + 1 == STAGES ? 0 : number + 1;", "", TURNS, LONG),
    ("the assembler gets along with fewer registers, and spills",
     'asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");', "", TURNS, PROMPT),
    ("which of two arrivals comes first does not count",
     "            release(turned(last.number));\n            release(v_full(last.number));",
     "            release(v_full(last.number));\n            release(turned(last.number));", TURNS_8BIT, LONG_8BIT),
]  # fmt: skip
"""Changes that break nothing, with the reason first."""


@pytest.mark.every(8)
@pytest.mark.parametrize(("old", "new", "case", "shape"), MUTANTS, ids=[f"{old.strip()[:60]}" for old, *_ in MUTANTS])
def test_mutated_source_fails(old, new, case, shape):
    assert is_noticed(old, new, case, shape)


@pytest.mark.every(3)
@pytest.mark.parametrize(("why", "old", "new", "case", "shape"), EQUIVALENT, ids=[why for why, *_ in EQUIVALENT])
def test_harmless_change_passes(why, old, new, case, shape):
    assert not is_noticed(old, new, case, shape), why
