"""Test that shapes and layers are read from a model's config.json, with the field names of each model family."""

from math import prod
from pathlib import Path
from typing import Any

import pytest

from kernrec.errors import UsageError
from kernrec.interop.model_config import Experts, Quantization, StateSpace, read_model
from kernrec.interop.workload_files import find_workload
from kernrec.measure.problems import select_layers
from kernrec.op.scaled_workload import with_batch
from kernrec.op.workload import Workload, workload
from tests.helpers.models import DEEPSEEK_V3, GEMMA_2_9B, LLAMA_3_8B, MIXTRAL_8X7B, QWEN3_30B_A3B
from tests.helpers.serving import AWQ, BY_ROW, MIXTRAL, QWEN_FP8, written


def without_none(folder: Path, fields: dict[str, Any]) -> Path:
    """Write a config without the fields that are None."""
    return written(folder, {name: value for name, value in fields.items() if value is not None})


def test_mixtral_experts_are_read_from_their_own_fields(tmp_path):
    model = read_model(str(written(tmp_path, MIXTRAL)))
    assert model.hidden == 4096
    assert model.experts == Experts(8, 2, 14336)
    assert model.quantization == Quantization(None)


def test_multimodal_model_uses_its_language_model(tmp_path):
    model = read_model(str(written(tmp_path, QWEN_FP8)))
    assert model.experts == Experts(256, 8, 512)
    assert model.quantization == Quantization("fp8_w8a8", (128, 128), "fp8")
    assert {linear.name for linear in model.linears} >= {"queries, keys, values", "shared experts, down"}


def test_latent_attention_has_its_own_layers(tmp_path):
    shapes = {linear.of_rank(8) for linear in read_model(str(written(tmp_path, DEEPSEEK_V3))).linears}
    # vLLM ships tuned configs for these (N, K) shapes of DeepSeek-V3 on eight GPUs.
    assert shapes >= {(2112, 7168), (3072, 1536), (4096, 512), (7168, 2048), (4608, 7168), (7168, 2304), (7168, 256)}


def test_state_space_layers_are_read_with_nemotron_and_bamba_field_names(tmp_path):
    nemotron = {"hidden_size": 4480, "mamba_num_heads": 128, "mamba_head_dim": 80, "ssm_state_size": 128}
    bamba = {"hidden_size": 4096, "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_d_state": 128}
    bamba["mamba_ssm_cache_dtype"] = "float32"  # type: ignore[assignment]
    assert read_model(str(written(tmp_path, nemotron))).state_space == StateSpace(128, 80, 128, "float16")
    assert read_model(str(written(tmp_path, bamba))).state_space == StateSpace(128, 64, 128, "float32")


@pytest.mark.parametrize(
    ("quantized", "expected"),
    [
        (AWQ, Quantization("int4_w4a16", None, "awq", group=128, zero_points=True)),
        ({"quant_method": "gptq", "bits": 8, "group_size": 64, "sym": True},
         Quantization("int8_w8a16", None, "gptq", group=64)),
        ({**AWQ, "bits": 3}, Quantization(None, None, "awq", elsewhere=True)),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True},
         Quantization(None, None, "gptq with desc_act", elsewhere=True)),
        ({"quant_method": "mxfp4"}, Quantization(None, None, "mxfp4", elsewhere=True)),
        ({"quant_method": "fp8"}, Quantization("fp8_w8a8", None, "fp8")),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {
                "weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8}}}},
            Quantization("int8_w8a8", None, "compressed-tensors"),
        ),
        (BY_ROW, Quantization("int8_w8a8", None, "compressed-tensors", by_row=True)),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {
                "weights": {"num_bits": 4, "type": "int", "group_size": 32}}}},
            Quantization("int4_w4a16", None, "compressed-tensors", group=32),
        ),
    ],
)  # fmt: skip
def test_quantization_is_read_from_the_config(tmp_path, quantized, expected):
    assert read_model(str(written(tmp_path, {**MIXTRAL, "quantization_config": quantized}))).quantization == expected


def test_impossible_config_error_names_the_field(tmp_path, refuses):
    refuses(lambda changed: read_model(str(without_none(tmp_path, MIXTRAL | changed))).check(), [
        {"num_experts_per_tok": None}, {"hidden_size": None}, {"hidden_size": "wide"}, {"num_experts_per_tok": 9},
        {"torch_dtype": "int3"}, {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}},
    ])  # fmt: skip


def test_file_that_is_not_a_model_config_gives_a_one_line_error(tmp_path, refuses):
    file = tmp_path / "config.json"
    for text, message in (("[1]", "expected an object"), ('{"a": ', "cut short"), ("{]", "not the config.json")):
        file.write_text(text)
        with pytest.raises(UsageError, match=message):
            read_model(str(file))
    refuses(lambda: read_model("org/model"))


MODEL = {"hidden_size": 4096, "moe_intermediate_size": 1024, "num_local_experts": 8, "num_experts_per_tok": 2}


def test_implausible_model_size_is_refused(tmp_path, refuses):
    refuses(lambda changed: read_model(str(written(tmp_path, MODEL | changed))).check(), [
        {"num_local_experts": 1_000_000, "num_experts_per_tok": 1_000_000},
        {"num_local_experts": 4096, "num_experts_per_tok": 129}, {"hidden_size": 2**20 + 1},
        {"moe_intermediate_size": 10**300},
    ])  # fmt: skip


def test_common_model_is_read(tmp_path):
    experts = read_model(str(written(tmp_path, MODEL))).experts
    assert experts is not None
    assert experts.count == 8


PARAMETERS = {
    "llama": (LLAMA_3_8B, 8_030_261_248),
    "qwen3": (QWEN3_30B_A3B, 30_532_122_624),
    "mixtral": (MIXTRAL_8X7B, 46_702_792_704),
    "gemma": (GEMMA_2_9B, 9_241_705_984),
    "deepseek": (DEEPSEEK_V3, 671_026_419_200 - 58 * 256),  # without the 58 router biases
}
"""Config and published parameter count of each model."""
WEIGHTS = {"matmul": ("b",), "matvec": ("a",), "moe": ("gate", "up", "down"), "rmsnorm": ("weight",)}


def parameters(model: Workload) -> int:
    """Return the parameter count of all layers and the embedding. Batched matmuls have no weights."""
    layers = sum(
        layer.count * prod(layer.problem.tensors[name].shape)
        for layer in model.layers
        for name in WEIGHTS.get(layer.problem.op, ())
        if layer.problem.dim.get("batch", 1) == 1
    )
    return layers + model.embedding


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("name", PARAMETERS)
def test_model_layers_have_the_published_parameter_count(tmp_path, name, phase):
    fields, published = PARAMETERS[name]
    model = find_workload(str(written(tmp_path / "Model-1", fields)), None, 4096, phase)
    assert parameters(model) == published
    assert model.title.startswith("Model-1 ")
    assert model.tokens == (1 if phase == "decode" else 4096)


@pytest.mark.parametrize(("fields", "shipped"), [(LLAMA_3_8B, "llama-3-8b"), (QWEN3_30B_A3B, "qwen3-30b-a3b")])
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_model_config_and_shipped_workload_have_equal_flops(tmp_path, fields, shipped, phase):
    ours, other = find_workload(str(written(tmp_path, fields)), None, 2048, phase), workload(f"{shipped}-{phase}")
    for op in ("matvec", "matmul", "attention", "moe"):
        work = [
            sum(layer.count * layer.problem.flops for layer in each.layers if layer.problem.op == op)
            for each in (ours, other)
        ]
        assert work[0] == work[1]


def test_model_parts_without_an_op_are_listed(tmp_path):
    deepseek = find_workload(str(written(tmp_path, DEEPSEEK_V3)))
    assert deepseek.unknown == (
        "61 layers of latent attention (MLA) over 2048 cached tokens: kernrec has no op for them yet",
    )
    assert deepseek.cache == 61 * 2048 * (512 + 64)
    qwen = {**LLAMA_3_8B, "model_type": "qwen2"}
    (note,) = find_workload(str(written(tmp_path / "qwen", qwen))).notes
    assert "rotary embedding" in note
    assert "biases of q, k and v" in note


def test_batch_size_multiplies_tokens_but_not_weights(tmp_path):
    single = find_workload(str(written(tmp_path, DEEPSEEK_V3)))
    several = with_batch(single, 32)
    work = [sum(layer.count * layer.problem.flops for layer in each.layers) for each in (single, several)]
    assert work[1] == 32 * work[0]
    assert parameters(several) == parameters(single)
    absorbed = next(layer for layer in several.layers if layer.name == "attention absorbed k_b")
    assert (absorbed.problem.dim["batch"], absorbed.problem.dim["m"]) == (128, 32)


def test_campaign_accepts_a_model_config(tmp_path):
    layers = select_layers("matvec", None, str(written(tmp_path, LLAMA_3_8B)), None, None)
    assert layers is not None
    assert "mlp gate_up_proj" in {layer.name for layer in layers}


def test_incomplete_config_is_refused_in_one_line(tmp_path, refuses):
    def refused(changed: dict[str, Any], context: int | None, phase: str | None) -> None:
        find_workload(str(without_none(tmp_path, LLAMA_3_8B | changed) / "config.json"), None, context, phase)

    refuses(refused, [
        ({"num_hidden_layers": None}, None, None), ({"vocab_size": None}, None, None),
        ({"model_type": None}, None, None), ({"intermediate_size": None}, None, None),
        ({"model_type": "mamba2"}, None, None), ({"model_type": "bert"}, None, None),
        ({"num_attention_heads": 33}, None, None), ({"num_hidden_layers": 10**6}, None, None),
        ({}, 8193, None), ({}, 0, None), ({}, None, "prefil"),
    ])  # fmt: skip
