"""Test that names of tuned files equal the engines' own names, and that releases are found by these names."""

from pathlib import Path

import pytest

from kernrec.gpu import find_gpu
from kernrec.interop.model_config import read_model
from kernrec.recommender.serving.engine_defaults import default_config, kernel_taken, launched
from kernrec.recommender.serving.engines import ENGINES, Deployment, Kind, second_file, tuned_files
from kernrec.recommender.serving.tuned_files import FOLDERS, Shipped, divided, shipped_of, table, whole
from tests.helpers.models import DEEPSEEK_V3
from tests.helpers.serving import AWQ, BY_ROW, HYBRID, MIXTRAL, QWEN_FP8, written


def names(folder: Path, fields: object, engine: str, gpu: str, **served: object) -> list[str]:
    model = read_model(str(written(folder, fields)))  # type: ignore[arg-type]
    return [file.name for file in tuned_files(model, Deployment(engine, find_gpu(gpu), **served))]  # type: ignore[arg-type]


def test_tensor_parallel_ranks_share_the_experts(tmp_path):
    expected = "E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3.json"
    assert names(tmp_path, MIXTRAL, "vllm", "h100", tp=2) == [expected]
    assert names(tmp_path, MIXTRAL, "sglang", "h100", tp=2) == [expected]


def test_expert_parallelism_keeps_experts_whole_in_vllm_and_splits_them_in_sglang(tmp_path):
    assert names(tmp_path, MIXTRAL, "vllm", "a100", tp=4, ep=4)[0].startswith("E=2,N=14336,")
    assert names(tmp_path, MIXTRAL, "sglang", "a100", tp=4, ep=2)[0].startswith("E=4,N=7168,")


def test_vllm_file_names_merge_h200_variants_and_keep_hyphens(tmp_path):
    assert names(tmp_path, MIXTRAL, "vllm", "h200-nvl")[0] == "E=8,N=14336,device_name=NVIDIA_H200.json"
    assert "NVIDIA_H200_NVL" in names(tmp_path, MIXTRAL, "sglang", "h200-nvl")[0]
    assert "NVIDIA_A100-SXM4-80GB" in names(tmp_path, MIXTRAL, "vllm", "a100")[0]


def test_quantization_by_group_or_row_has_its_own_file_names(tmp_path):
    awq, by_row = ({**MIXTRAL, "quantization_config": quantized} for quantized in (AWQ, BY_ROW))
    assert names(tmp_path, awq, "vllm", "l40s") == ["E=8,N=14336,device_name=NVIDIA_L40S,dtype=int4_w4a16.json"]
    assert names(tmp_path, awq, "sglang", "l40s") == ["E=8,N=7168,device_name=NVIDIA_L40S,dtype=int4_w4a16.json"]
    assert names(tmp_path, by_row, "vllm", "l40s") == ["E=8,N=14336,device_name=NVIDIA_L40S.json"]
    (name,) = names(tmp_path, by_row, "sglang", "l40s")
    assert name == "E=8,N=14336,device_name=NVIDIA_L40S,dtype=int8_w8a8,per_channel_quant=True.json"
    grouped = {"num_bits": 8, "type": "int", "group_size": 128}
    marlin = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": grouped}}}
    assert [len(names(tmp_path, {**MIXTRAL, "quantization_config": marlin}, e, "l40s")) for e in ENGINES] == [1, 0]
    shipped = shipped_of("sglang", "0.5.23").names[Kind.EXPERTS]
    ends = {parts[1].rpartition("*")[2] for name in shipped if (parts := divided(name))}
    assert ",dtype=fp8_w8a8,per_channel_quant=True.json" in ends


def test_lora_and_state_space_files_are_named_as_in_vllm_and_sglang(tmp_path):
    assert names(tmp_path, HYBRID, "vllm", "b200") == [
        "headdim=64,dstate=128,device_name=NVIDIA_B200,cache_dtype=float16.json"
    ]
    assert "NVIDIA_A100_SXM4_80GB_EXPAND_TRUE.json" in names(tmp_path, HYBRID, "vllm", "a100", lora_rank=16)
    assert names(tmp_path, MIXTRAL, "sglang", "h200", lora_rank=64)[1] == (
        "lora_shrink,K=4096,R=64,S=3,device=NVIDIA_H200.json"
    )


def test_model_that_cannot_be_split_evenly_is_refused(tmp_path, refuses):
    refuses(lambda served: names(tmp_path, MIXTRAL, "vllm", "a100", **served), [{"tp": 3}, {"ep": 3}])


def test_deepseek_v3_files_have_the_names_that_vllm_ships(tmp_path):
    shipped = shipped_of("vllm", "0.33.0").names
    present = [name in shipped[Kind.BLOCK_GEMM] for name in names(tmp_path, DEEPSEEK_V3, "vllm", "h200", tp=8)[1:]]
    assert all(present), present
    assert names(tmp_path, DEEPSEEK_V3, "vllm", "h200", tp=8)[0] in shipped[Kind.EXPERTS]


@pytest.mark.parametrize(
    ("architecture", "experts", "tp", "named"),
    [("DeepseekV3ForCausalLM", 256, 8, "E=257,N=256"), ("Glm4MoeForCausalLM", 160, 4, "E=161,N=384"),
     ("Qwen3MoeForCausalLM", 256, 8, "E=256,N=256")],
)  # fmt: skip
def test_sglang_counts_fused_shared_experts_and_has_a_second_config_file(tmp_path, architecture, experts, tp, named):
    model = {
        "architectures": [architecture], "hidden_size": 5120, "n_routed_experts": experts, "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048 if experts == 256 else 1536, "n_shared_experts": 1, "num_attention_heads": 128,
    }  # fmt: skip
    served = Deployment("sglang", find_gpu("h200"), tp=tp, triton="3.6.0")
    file = tuned_files(read_model(str(written(tmp_path / "m", model))), served)[0]
    second = second_file(file, served)
    assert file.name.startswith(named)
    assert second is not None
    assert second.name == file.name.replace(".json", "_down.json")
    assert second_file(file, Deployment("vllm", find_gpu("h200"), tp=tp)) is None


def test_every_listed_config_file_exists_in_an_engine_release():
    for engine, entry in table().items():
        for kind, devices in entry["files"].items():
            assert Kind(kind) in FOLDERS[engine]
            for device, by_releases in devices.items():
                for releases, of_device in by_releases.items():
                    assert set(releases.split()) <= entry["dates"].keys()
                    assert all(divided(whole(name, device)) == (device, name) for name in of_device)


def test_unknown_release_is_refused_with_the_known_ones(refuses):
    refuses(lambda: shipped_of("vllm", "0.99.0"))


def test_sglang_falls_back_to_the_folder_of_the_newest_triton():
    folder = {"triton_3_1_0/a.json", "triton_3_10_0/a.json", "triton_3_4_0/a.json", "triton_3_4_0/b.json"}
    shipped = Shipped("sglang", "1", "a test", {Kind.EXPERTS: frozenset(folder)})
    assert shipped.place_of(Kind.EXPERTS, "a.json", "3.4.0") == ("triton_3_4_0/a.json", True)
    assert shipped.place_of(Kind.EXPERTS, "a.json", "3.6.0") == ("triton_3_10_0/a.json", False)
    assert shipped.place_of(Kind.EXPERTS, "c.json", "3.4.0") == ("", False)
    assert shipped.triton_folders() == ["3.1.0", "3.4.0", "3.10.0"]


def test_expert_defaults_follow_the_token_count(tmp_path):
    model, card = read_model(str(written(tmp_path, MIXTRAL))), find_gpu("a100")
    (file,) = tuned_files(model, Deployment("vllm", card))
    few, many = (default_config("vllm", file, tokens, card) for tokens in (1, 4096))
    assert [*few.values()] == [16, 64, 128, 1, 4, 4, 1]
    assert [*many.values()] == [128, 128, 64, 16, 8, 3, 1]
    assert [*default_config("sglang", file, 8, card).values()] == [16, 32, 64, 1]
    assert launched("sglang", file, default_config("sglang", file, 9, card))["num_stages"] == 3


@pytest.mark.parametrize(("engine", "gpu", "kind", "taken"), [
    ("vllm", "h100", 0, ""), ("vllm", "b200", 0, "FlashInfer TRTLLM"), ("vllm", "h100", 1, "DeepGEMM"),
    ("sglang", "rtx5090", 0, ""), ("sglang", "rtx5090", 1, "CUTLASS"), ("sglang", "l40s", 1, ""),
])  # fmt: skip
def test_audit_names_kernels_that_the_engine_prefers_to_the_tuned_one(tmp_path, engine, gpu, kind, taken):
    served = Deployment(engine, find_gpu(gpu))
    file = tuned_files(read_model(str(written(tmp_path, QWEN_FP8))), served)[kind]
    assert kernel_taken(file, served).startswith(taken)
    assert bool(kernel_taken(file, served)) == bool(taken)
