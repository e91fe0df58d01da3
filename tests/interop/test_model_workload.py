"""Test that a `config.json` is converted to its model's layers, for decode and for prefill."""

from math import prod
from typing import Any

import pytest

from kernrec.interop.workload_files import find_workload
from kernrec.measure.problems import select_layers
from kernrec.op.scaled_workload import with_batch
from kernrec.op.workload import Workload, workload
from tests.helpers.models import DEEPSEEK_V3, GEMMA_2_9B, LLAMA_3_8B, MIXTRAL_8X7B, QWEN3_30B_A3B
from tests.helpers.serving import written

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
    """Return the parameter count of all layers and the embedding; batched matmuls have no weights."""
    layers = sum(
        layer.count * prod(layer.problem.tensors[name].shape)
        for layer in model.layers
        for name in WEIGHTS.get(layer.problem.op, ())
        if layer.problem.dim.get("batch", 1) == 1
    )
    return layers + model.embedding


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("name", PARAMETERS)
def test_layers_hold_the_published_parameters(tmp_path, name, phase):
    fields, published = PARAMETERS[name]
    model = find_workload(str(written(tmp_path / "Model-1", fields)), None, 4096, phase)
    assert parameters(model) == published
    assert model.title.startswith("Model-1 ")
    assert model.tokens == (1 if phase == "decode" else 4096)


@pytest.mark.parametrize(("fields", "shipped"), [(LLAMA_3_8B, "llama-3-8b"), (QWEN3_30B_A3B, "qwen3-30b-a3b")])
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_model_config_has_the_work_of_the_shipped_workload(tmp_path, fields, shipped, phase):
    ours, other = find_workload(str(written(tmp_path, fields)), None, 2048, phase), workload(f"{shipped}-{phase}")
    for op in ("matvec", "matmul", "attention", "moe"):
        work = [sum(layer.flops for layer in each.layers if layer.problem.op == op) for each in (ours, other)]
        assert work[0] == work[1]


def test_parts_without_an_op_are_listed(tmp_path):
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
    assert several.flops == 32 * single.flops
    assert parameters(several) == parameters(single)
    absorbed = next(layer for layer in several.layers if layer.name == "attention absorbed k_b")
    assert (absorbed.problem.dim["batch"], absorbed.problem.dim["m"]) == (128, 32)


def test_campaign_accepts_a_model_config(tmp_path):
    layers = select_layers("matvec", None, str(written(tmp_path, LLAMA_3_8B)), None, None)
    assert layers is not None
    assert "mlp gate_up_proj" in {layer.name for layer in layers}


def test_incomplete_config_is_refused_in_one_line(tmp_path, refuses):
    def refused(changed: dict[str, Any], context: int | None, phase: str | None) -> None:
        fields = {name: value for name, value in {**LLAMA_3_8B, **changed}.items() if value is not None}
        find_workload(str(written(tmp_path, fields) / "config.json"), None, context, phase)

    refuses(refused, [
        ({"num_hidden_layers": None}, None, None), ({"vocab_size": None}, None, None),
        ({"model_type": None}, None, None), ({"intermediate_size": None}, None, None),
        ({"model_type": "mamba2"}, None, None), ({"num_attention_heads": 33}, None, None),
        ({"num_hidden_layers": 10**6}, None, None), ({}, 8193, None), ({}, 0, None), ({}, None, "prefil"),
    ])  # fmt: skip
