"""Test how configs of the fused-experts kernel are ranked, and the token routing that the ranking assumes."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.interop.model_config import Quantization
from kernrec.recommender.serving.compared import Comparer, candidates, ranked_by_formula
from kernrec.recommender.serving.engine_defaults import default_config
from kernrec.recommender.serving.engines import Deployment, Kind, ProductShape, TunedFile
from kernrec.recommender.serving.expert_ranking import (
    SPACE,
    TUNABLES,
    card_path,
    configs_array,
    fits,
    formula,
    load,
    ranks,
    shipped_ranking,
)
from kernrec.recommender.serving.judgments import JudgedFile, Judgment, judge_files
from kernrec.recommender.serving.routing import routed

# Near-best configs of the first matmul with random routing, from zksainx/pipeweave (Apache-2.0). Columns: GPU, tokens,
# (experts, experts per token, hidden size, width), (tile_m, tile_n, tile_k, group, warps, stages).
NEAR_BEST = (
    ("a100-sxm4-80gb", 1, (8, 2, 1024, 512), (16, 32, 128, 1, 4, 3)),
    ("h20", 1024, (128, 8, 4096, 1536), (64, 128, 64, 1, 4, 4)),
)


def experts(count: int, top: int, hidden: int, width: int) -> TunedFile:
    products = (ProductShape(2 * width, hidden, count, top), ProductShape(hidden, width, count, top))
    return TunedFile(Kind.EXPERTS, "experts.json", "mixture of experts", products)


@pytest.mark.parametrize("gpu", ["a100", "h100", "h20", "l40s", "rtx5090", "b200"])
@pytest.mark.parametrize("tokens", [1, 100, 4096])
def test_features_are_finite_on_every_gpu(gpu, tokens):
    card = find_gpu(gpu)
    for shape in experts(64, 6, 2048, 1408).products:
        _, matrix = formula(shape, tokens, card, SPACE[fits(SPACE, card)])
        assert np.isfinite(matrix).all()


def test_tokens_that_use_every_expert_need_all_weights():
    shape = ProductShape(4096, 2048, experts=1, top=1)
    _, matrix = formula(shape, 300, find_gpu("a100"), SPACE)
    assert np.isfinite(matrix).all()


def test_candidates_are_the_best_ranked_configs():
    file, a100, turing = experts(8, 2, 4096, 7168), find_gpu("a100"), find_gpu("t4")
    ranked = candidates(file, 64, a100)
    assert [list(config) for config in ranked] == [list(TUNABLES)] * 3
    assert fits(configs_array(ranked), a100).all()
    assert len(candidates(file, 64, turing)) > 3  # Turing has no asynchronous copies


def test_top_candidates_for_unrecorded_gpus_have_distinct_tiles():
    ranked = shipped_ranking().ranked(experts(8, 2, 4096, 7168), 64, find_gpu("rtx5090"), 3)
    assert len({tuple(config.values())[:3] for config in ranked}) == 3


@pytest.mark.parametrize(("gpu", "tokens", "sizes", "near"), NEAR_BEST)
def test_near_best_expert_config_is_ranked_among_the_first_40(gpu, tokens, sizes, near):
    file, card = experts(*sizes), find_gpu(gpu)
    first = TunedFile(Kind.EXPERTS, "", "", file.products[:1])
    scores = shipped_ranking().scores(first, tokens, card, np.array([near, *SPACE[fits(SPACE, card)]]))
    assert (scores > scores[0]).sum() < 40


def test_more_tokens_take_more_rows_per_tile():
    file, gpu = experts(8, 2, 4096, 7168), find_gpu("h800")
    rows = [shipped_ranking().ranked(file, tokens, gpu, 1)[0]["BLOCK_SIZE_M"] for tokens in (1, 4096)]
    assert rows[0] == 16
    assert rows[1] >= 64


def test_experts_are_compared_without_compiling(tmp_path):
    file, served = experts(8, 2, 4096, 7168), Deployment("vllm", find_gpu("a100"))
    made = Comparer(tmp_path / "own.duckdb", 2).compare(file, served, 64)
    assert not made.analyzed
    assert made.own_cost is not None
    assert 0 < made.best_cost.low < made.best_cost.value < made.best_cost.high
    weights_s = sum(2 * 8 * shape.rows * shape.depth for shape in file.products) / served.gpu.memory_bandwidth
    assert made.best_cost > weights_s


def in_fp8(file: TunedFile, block: tuple[int, int] | None = None) -> TunedFile:
    return dataclasses.replace(file, dtype="fp8_w8a8", quantization=Quantization("fp8_w8a8", block))


def test_fp8_experts_rank_like_16_bit_experts_with_half_the_k():
    narrow, wide = (
        TunedFile(Kind.EXPERTS, "", "", (ProductShape(3072, depth, 128, 8), ProductShape(2048, depth, 128, 8)))
        for depth in (1024, 2048)
    )
    gpu, config = find_gpu("h100"), dict(zip(TUNABLES, (64, 128, 64, 16, 4, 3), strict=True))
    deeper = config | {"BLOCK_SIZE_K": 128}
    ranking = shipped_ranking()
    assert ranking.times_s(in_fp8(wide), 512, gpu, configs_array([deeper])) == pytest.approx(
        ranking.times_s(narrow, 512, gpu, configs_array([config]))
    )
    assert ranks(in_fp8(wide), gpu)
    assert not ranks(in_fp8(wide), find_gpu("a100"))  # The A100's tensor cores have no fp8.


def test_tiles_of_block_scaled_experts_are_no_deeper_than_a_block():
    file, gpu = in_fp8(experts(256, 8, 7168, 2048), (128, 128)), find_gpu("h200")
    assert max(config["BLOCK_SIZE_K"] for config in shipped_ranking().ranked(file, 1, gpu, 50)) == 128


def test_config_beyond_the_shared_memory_has_no_cost():
    file, gpu = experts(8, 2, 4096, 7168), find_gpu("l40")
    large = dict(zip(TUNABLES, (256, 256, 256, 1, 8, 4), strict=True))
    own = default_config("vllm", file, 64, gpu)
    assert [config for config, _ in ranked_by_formula(file, 64, gpu, [large, own])] == [own]


def test_damaged_trees_are_refused(tmp_path):
    card = tmp_path / "experts.json"
    card.write_bytes(card_path().read_bytes())
    content = bytearray(card_path().with_suffix(".trees").read_bytes())
    content[-1] ^= 1
    card.with_suffix(".trees").write_bytes(content)
    with pytest.raises(UsageError, match="not a usable model of experts"):
        load(card)


def judge_file(path: Path, gpu: str) -> JudgedFile:
    (judged,) = judge_files([path], find_gpu(gpu), {})
    return judged


def test_tuned_file_of_a_known_model_is_judged_by_predicted_times(tmp_path):
    path = tmp_path / "E=8,N=7168,device_name=NVIDIA_A100-SXM4-80GB.json"
    (good,) = candidates(experts(8, 2, 4096, 7168), 64, find_gpu("a100-sxm4-80gb"))[:1]
    slow = good | {"BLOCK_SIZE_M": 256, "BLOCK_SIZE_N": 16}
    path.write_text(json.dumps({"64": good, "128": slow}))
    judged = judge_file(path, "a100-sxm4-80gb")
    assert [entry.judgment for entry in judged.entries] == [Judgment.GOOD, Judgment.DOUBTFUL]
    assert judged.entries[1].ratio is not None
    assert judged.entries[1].ratio > 2
    assert "Mixtral 8x7B" in judged.note
    assert all(entry.reason.endswith("tuned for NVIDIA A100-SXM4-80GB") for entry in judge_file(path, "h100").entries)
    unknown = path.rename(tmp_path / "E=7,N=7168,device_name=NVIDIA_A100-SXM4-80GB.json")
    assert {entry.judgment for entry in judge_file(unknown, "a100-sxm4-80gb").entries} == {Judgment.POSSIBLE}


SIZES = {"tokens": st.integers(1, 300), "experts": st.integers(1, 60), "rows": st.sampled_from([16, 32, 64, 128])}


@given(**SIZES, part=st.floats(0, 1))
def test_every_routed_token_is_in_exactly_one_tile(tokens, experts, rows, part):
    top = max(1, round(part * min(experts, 10)))
    routing = routed(tokens, experts, top, rows)
    assert routing.choices == tokens * top
    real = routing.order[routing.order < routing.choices]
    assert sorted(real.tolist()) == list(range(tokens * top))
    assert len(routing.order) == rows * len(routing.experts)
    tiles = routing.order.reshape(-1, rows)
    assert (tiles.min(1) < routing.choices).all()  # no tile is empty
    of_recommendation = {
        c: e for tile, e in zip(tiles, routing.experts, strict=True) for c in tile if c < routing.choices
    }
    for token in range(tokens):
        assert len({of_recommendation[token * top + place] for place in range(top)}) == top


def test_token_routing_is_deterministic():
    assert np.array_equal(routed(64, 8, 2, 16).order, routed(64, 8, 2, 16).order)


@pytest.mark.parametrize(
    ("name", "config", "wrong"),
    [
        ("headdim=64,dstate=128,device_name=NVIDIA_H200,cache_dtype=float16.json", {"BLOCK_SIZE_M": 16}, {}),
        ("lora_expand,K=4096,R=64,S=3,device=NVIDIA_H200.json", {"BLOCK_N": 64, "BLOCK_K": 32}, {"BLOCK_N": 48}),
        (
            "N=1152,K=5120,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[32, 32].json",
            {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "SPLIT_K": 16, "SWAP_AB": True},
            {"num_warps": 64},
        ),
    ],
)
def test_tuned_files_of_state_lora_and_block_kernels_are_checked(name, config, wrong, tmp_path):
    entries = {"1": config | {"num_warps": 4}, "8": config | {"num_warps": 3} | wrong}
    (tmp_path / name).write_text(json.dumps(entries))
    judged = judge_file(tmp_path / name, "h200")
    assert [entry.judgment for entry in judged.entries] == [Judgment.POSSIBLE, Judgment.WRONG]
    assert judged.entries[0].config.items() >= config.items()
