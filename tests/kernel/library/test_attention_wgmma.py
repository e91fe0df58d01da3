"""Test the specifics of `attention_wgmma` that test_attention.py does not cover, and broken copies of the kernel."""

import pytest

from kernrec.kernel import find_kernel
from tests.helpers.attention import code_of, is_noticed, wgmma_case
from tests.helpers.counted import per_trip, profiled
from tests.helpers.kernel_code import assembled, mutants, not_assembled, source_of

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
def test_attention_wgmma_loop_loads_each_byte_of_its_tiles_once(case):
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
def test_attention_wgmma_does_not_spill_or_serialize_products(case):
    compiled = assembled(*code_of(*case[:3]))
    resources = compiled.resources["attention_wgmma"]
    assert (resources.spill_store_bytes, resources.spill_load_bytes) == (0, 0)
    assert "serialized" not in compiled.log
    assert "setmaxnreg" not in compiled.log


PROMPT = {"heads": 2, "kv_heads": 1, "queries": 70, "keys": 140, "causal": 1}
LONG = {"heads": 1, "queries": 70, "keys": 600}
LONG_8BIT = {"heads": 1, "queries": 70, "keys": 1100}
EACH = {"batch": 2, "heads": 4, "kv_heads": 2, "queries": 20, "keys": 130, "scales": 1, "output": 1}

NAMED = {name: value for name, value in globals().items() if name.isupper()}
"""Cases and shapes by name, as `mutants/attention_wgmma.toml` refers to them."""


def fails(mutant: dict[str, str]) -> bool:
    return is_noticed(mutant["old"], mutant["new"], NAMED[mutant["case"]], NAMED[mutant["shape"]])


@pytest.mark.every(8)
@pytest.mark.parametrize("mutant", mutants(WGMMA.name), ids=source_of)
def test_suite_detects_an_error_inserted_in_the_kernel(mutant):
    assert fails(mutant)


@pytest.mark.every(3)
@pytest.mark.parametrize("mutant", mutants(WGMMA.name, "equivalent"), ids=source_of)
def test_harmless_kernel_change_passes_the_tests(mutant):
    assert not fails(mutant), mutant["why"]
