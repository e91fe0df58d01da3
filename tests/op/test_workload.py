"""Test workloads: shipped networks, scaled batches, and refused files."""

import tomllib
from collections import Counter
from collections.abc import Iterable
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.op import find_op
from kernrec.op.scaled_workload import as_tensor_parallel, with_batch
from kernrec.op.workload import Layer, Workload, load_workload, workload, workloads
from tests.helpers.paths import ROOT, beside

# Weights of convolution and linear layers: published parameter counts minus all other parameters. Sources: torchvision
# (resnet50, mobilenetv2, vgg16), released weights (gpt2, llama, U-Net). BERT-base has 12 layers of 12 hidden^2 weights
# and a pooler (arXiv 1810.04805).
WEIGHTS = {
    "resnet50": 25_557_032 - 2 * 26_560 - 1_000,  # batch normalization of 26,560 channels, classifier bias
    "mobilenetv2": 3_504_872 - 2 * 17_056 - 1_000,  # batch normalization of 17,056 channels, classifier bias
    "vgg16": 138_357_544 - 4_224 - 2 * 4_096 - 1_000,  # subtracted: biases
    "bert-base": 12 * 12 * 768**2 + 768**2,
    "gpt2": 124_439_808 - 1024 * 768 - 12 * 6_912 - 25 * 1_536,  # subtracted: position embedding, biases, normalization
    "llama-3-8b-prefill": 8_030_261_248 - 128_256 * 4_096 - 65 * 4_096,  # subtracted: token embedding, normalization
    "llama-3-8b-decode": 8_030_261_248 - 128_256 * 4_096 - 65 * 4_096,
    **dict.fromkeys(("llama-3-70b-prefill", "llama-3-70b-decode"), 70_553_706_496 - 128_256 * 8_192 - 161 * 8_192),
    **dict.fromkeys(
        ("qwen3-30b-a3b-prefill", "qwen3-30b-a3b-decode"), 30_532_122_624 - 151_936 * 2_048 - 97 * 2_048 - 48 * 256
    ),
    # biases, normalization of 49 x 2 x 1,024, class token and positions of 198 x 1,024
    "vit-l-16": 304_326_632 - 24 * 9_216 - 1_024 - 1_000 - 49 * 2_048 - 198 * 1_024,
    "stable-diffusion-unet": 859_520_964 - 443_844,  # subtracted: biases and normalization
    # Expert weights of Mixtral, Qwen3, 1/8 of DeepSeek-V3 (58 layers of 256 experts), and two gpt-oss models.
    # All models have two batch sizes. Embeddings, attention, routers and norms are subtracted.
    "mixtures-of-experts": 2
    * (
        (46_702_792_704 - 2 * 32_000 * 4_096 - 32 * (2 * 4_096 + 2 * 1_024) * 4_096 - 32 * 8 * 4_096 - 65 * 4_096)
        + (30_532_122_624 - 2 * 151_936 * 2_048 - 48 * 18_874_368 - 48 * 128 * 2_048 - 48 * 256 - 97 * 2_048)
        + 58 * 256 * 3 * 7_168 * 2_048 // 8
        + (36 * 128 + 24 * 32) * 3 * 2_880 * 2_880
    ),
}
WEIGHT = {"matmul": ("b",), "matvec": ("a",), "conv2d": ("w",), "moe": ("gate", "up", "down")}

# Parameters of the layer normalizations, from the sources of `WEIGHTS`.
NORMALIZATION = {"gpt2": 25 * 1_536, "llama-3-8b-prefill": 65 * 4_096, "llama-3-8b-decode": 65 * 4_096}
NORMALIZATION |= {"llama-3-70b-prefill": 161 * 8_192, "vit-l-16": 49 * 2_048}
NORMALIZATION |= {"qwen3-30b-a3b-decode": 97 * 2_048 + 48 * 256}


def flops(layers: Iterable[Layer]) -> int:
    return sum(layer.count * layer.problem.flops for layer in layers)


@pytest.fixture(params=sorted(WEIGHTS))
def each(request):
    return workload(request.param)


def test_every_shipped_workload_is_tested_here():
    assert workloads() == tuple(sorted(WEIGHTS))


def test_layers_add_up_to_the_published_flops(each):
    stated = tomllib.loads((ROOT / f"datasets/workloads/{each.name}.toml").read_text(encoding="utf-8"))
    compared = [entry.get("compared", True) for entry in stated["layers"]]
    layers = (layer for layer, counts in zip(each.layers, compared, strict=True) if counts)
    total = flops(layers)
    assert abs(total - stated["published_flops"]) <= stated["tolerance"] * stated["published_flops"]
    assert stated["tolerance"] <= 0.01


def test_layers_have_the_published_weights(each):
    weights = sum(
        layer.count * prod(layer.problem.tensors[name].shape)
        for layer in each.layers
        for name in WEIGHT.get(layer.problem.op, ())
    )
    assert weights == WEIGHTS[each.name]


def test_workload_attention_heads_add_up_to_the_hidden_size():
    def attention(name: str) -> dict[str, int]:
        (layer,) = workload(name).layers_of("attention")
        return layer.problem.dim

    for name, hidden in (("bert-base", 768), ("gpt2", 768), ("llama-3-8b-prefill", 4096), ("llama-3-8b-decode", 4096)):
        assert attention(name)["heads"] * attention(name)["head_dim"] == hidden
    assert attention("llama-3-8b-decode")["kv_heads"] * attention("llama-3-8b-decode")["head_dim"] == 1024
    assert (attention("llama-3-8b-decode")["queries"], attention("llama-3-8b-decode")["keys"]) == (1, 2048)


def test_equal_layers_are_merged_and_names_are_unique(each):
    assert max(Counter((layer.problem, layer.split) for layer in each.layers).values()) == 1
    assert max(Counter(layer.name for layer in each.layers).values()) == 1


def test_layers_of_one_op_use_the_requested_dtype_and_layout():
    layers = workload("resnet50").layers_of("conv", "fp16", "nhwc")
    assert sum(layer.count for layer in layers) == 53
    assert {(layer.problem.op, layer.problem.dtype, layer.problem.layout) for layer in layers} == {
        ("conv2d", "f16", "nhwc")
    }


def test_workload_is_found_by_loose_spelling():
    assert workload("ResNet-50") is workload("resnet50")
    assert workload("MobileNet_V2").name == "mobilenetv2"


HEAD = beside(__file__, "workload_head.toml")


def test_invalid_workload_file_is_refused_by_name(write, refuses):
    refuses(lambda text: load_workload(write(text, "x.toml")), [
        "layers = [", "layers = []", HEAD, HEAD + "layers = 3", HEAD + "layers = [3]",
        HEAD + 'layers = [{ name = "l", op = "matmul", count = 0, m = 1, n = 1, k = 1 }]',
        HEAD + 'layers = [{ name = "l", op = "softmax", count = 1, compared = 1 }]',
        HEAD + 'layers = [{ name = "l", op = "matmul", count = 1, m = 1, n = 1 }]',
        HEAD + 'layers = [{ name = "l", op = "mtmul", count = 1 }]', HEAD + "extra = 1\nlayers = []",
    ])  # fmt: skip


def test_missing_file_is_refused_by_name(tmp_path, refuses):
    refuses(lambda: load_workload(tmp_path / "absent.toml"))


SPLIT = ("llama-3-8b-prefill", "llama-3-70b-decode", "llama-3-70b-prefill", "qwen3-30b-a3b-prefill", "vit-l-16")


@given(st.sampled_from(workloads()), st.integers(1, 24))
def test_workload_batch_flops_equal_the_sum_of_its_items(name, batch):
    single = workload(name)
    assert flops(with_batch(single, batch).layers) == batch * flops(single.layers)


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize("gpus", [2, 4])
def test_tensor_parallel_matmuls_add_up_to_the_network(name, gpus):
    whole, part = workload(name), as_tensor_parallel(workload(name), gpus)
    for before, after in zip(whole.layers, part.layers, strict=True):
        divided = before.split or before.problem.op == "moe"
        assert after.problem.flops * (gpus if divided else 1) == before.problem.flops
    linear = [layer for layer in whole.layers if layer.problem.op in ("matmul", "matvec", "moe", "attention")]
    router = [layer.name for layer in linear if not layer.split and layer.problem.op != "moe"]
    assert router in ([], ["mlp gate (router)"])
    assert part.title.endswith(f", one of {gpus} GPUs")


def test_unscalable_workload_is_refused(refuses):
    refuses(lambda: as_tensor_parallel(workload("vit-l-16"), 3))
    refuses(lambda: as_tensor_parallel(workload("resnet50"), 2))
    refuses(lambda: with_batch(workload("resnet50"), 0))
    odd = Workload("x", "x", "", (Layer("a", find_op("softmax").problem(rows=3, columns=8), 1),), batch=2)
    refuses(lambda: with_batch(odd, 1))
