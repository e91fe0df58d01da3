"""Test that kernrec reads and writes the tuned MoE files of vLLM and SGLang, and refuses any other content."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kernrec.interop.moe_configs import TILES, ExpertLayer, read_moe_configs, write_moe_configs

CONFIG = {
    "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3
}  # fmt: skip


def as_vllm_reads(text: str) -> dict[int, Any]:
    """Parse a file as vLLM's `get_moe_configs` does; SGLang's version does not remove `triton_version`."""
    document = json.loads(text)
    document.pop("triton_version", None)
    return {int(tokens): config for tokens, config in document.items()}


@given(
    st.dictionaries(
        st.integers(1, 1 << 20),
        st.fixed_dictionaries({name: st.sampled_from([1, 2, 16, 64, 256]) for name in TILES}),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([None, "3.4.0"]),
)
def test_written_file_is_read_by_vllm_sglang_and_kernrec(configs, version):
    text = write_moe_configs(configs, version)
    assert read_moe_configs(text, "file") == (configs, version)
    assert as_vllm_reads(text) == configs


def test_clusters_tma_and_swapped_operands_are_read():
    stated = {name: value for name, value in CONFIG.items() if name != "GROUP_SIZE_M"}
    text = json.dumps(
        {"8": stated | {"num_ctas": 2, "USE_TMA": True, "SWAP_AB": False}, "16": CONFIG | {"num_ctas": 1}}
    )
    configs, _ = read_moe_configs(text, "file")
    assert configs == {8: CONFIG | {"num_ctas": 2, "USE_TMA": 1}, 16: CONFIG}


def test_other_format_is_refused_in_one_line(refuses):
    refuses(lambda document: read_moe_configs(json.dumps(document), "file.json"), [
        [], {}, {"version": 2, "8": CONFIG}, {"triton_version": "3.4.0"}, {"triton_version": 4, "8": CONFIG},
        {"8": CONFIG | {"USE_TMEM": 1}}, {"8": CONFIG | {"num_ctas": 0}}, {"8": CONFIG | {"SPLIT_K": 0}},
        {"8": CONFIG | {"num_warps": "4"}}, {"8": {"BLOCK_SIZE_M": 16}}, {"8": 3},
    ])  # fmt: skip


def test_file_names_match_what_the_tools_look_for():
    layer = ExpertLayer.parse("e=8,n=7168,m=16,device=NVIDIA H100 80GB HBM3,dtype=fp8_w8a8,block=128x128")
    name = "E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8"
    assert layer.file_name("vllm") == f"{name},block_shape=[128,128].json"
    assert layer.file_name("sglang") == f"{name},block_shape=[128, 128].json"
    h200 = ExpertLayer.parse("e=8,n=7168,m=1,device=NVIDIA H200 NVL")
    assert h200.file_name("vllm") == "E=8,N=7168,device_name=NVIDIA_H200.json"
    assert h200.file_name("sglang") == "E=8,N=7168,device_name=NVIDIA_H200_NVL.json"


def test_token_count_may_be_computed_from_the_integers_of_a_call(refuses):
    layer = ExpertLayer.parse("e=8,n=7168,m=COUNT // 2,device=L4")
    assert layer.tokens_of({"count": 32, "n": 5}) == 16
    refuses(lambda: layer.tokens_of({"counts": 32}))
    refuses(lambda: layer.tokens_of({"count": 1}))


def test_incomplete_expert_layer_is_refused(refuses):
    refuses(lambda text: ExpertLayer.parse(text), [
        "", "e=8,n=7168,m=1", "e=8,n=7168,m=0,device=L4", "experts=8", "e=8,n=1,m=1,device=../../L4",
        "e=8,n=1,m=1,device=L4,block=128",
    ])  # fmt: skip
