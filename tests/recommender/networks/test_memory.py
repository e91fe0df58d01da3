"""Test the memory of networks, and the exchange between GPUs."""

import pytest

import kernrec
from kernrec.gpu import all_gpus, find_gpu, find_gpus
from kernrec.recommender import Query, Recommender
from kernrec.recommender.networks.compare import ComparedGpu, Unfit, compare_gpus
from kernrec.recommender.networks.exchange import UNSURE, all_reduce_s, link_of
from kernrec.recommender.networks.layers import NetworkRequest, layers_of
from kernrec.recommender.networks.memory import DoesNotFitError, Memory, memory_of
from kernrec.recommender.networks.network import answer_network
from tests.helpers.models import DEEPSEEK_V3
from tests.helpers.serving import written

PARAMETERS = {
    "llama-3-8b-decode": 8_030_261_248, "llama-3-8b-prefill": 8_030_261_248, "llama-3-70b-decode": 70_553_706_496,
    "llama-3-70b-prefill": 70_553_706_496, "qwen3-30b-a3b-decode": 30_532_122_624, "gpt2": 124_439_808 - 82_944 - 38_400
    + 2 * 25 * 768,
}  # fmt: skip
"""Published parameter counts. The count of GPT-2 excludes the biases of linear layers."""


def memory(**wanted: object) -> Memory:
    return memory_of(*layers_of(NetworkRequest(**wanted)))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name in PARAMETERS if name != "gpt2"])
def test_weights_of_shipped_models_match_their_published_parameters(name):
    assert memory(workload=name).weights_bytes == pytest.approx(2 * PARAMETERS[name], rel=1e-6)


def test_key_value_cache_grows_with_context_and_batch():
    of_token = 2 * 32 * 2 * 8 * 128  # bytes per token: two tensors of 32 layers with 8 heads of 128 in 16 bits
    assert memory(workload="llama-3-8b-decode").cache_bytes == 2048 * of_token
    assert memory(workload="llama-3-8b-decode", context=8192, batch=4).cache_bytes == 4 * 8192 * of_token
    assert memory(workload="llama-3-8b-prefill").cache_bytes == 2048 * of_token
    assert memory(workload="bert-base").cache_bytes == 0


def test_tensor_parallelism_divides_weights_and_cache():
    whole, part = memory(workload="llama-3-70b-decode"), memory(workload="llama-3-70b-decode", tp=4)
    assert part.weights_bytes == pytest.approx(whole.weights_bytes / 4, rel=1e-4)
    assert part.cache_bytes == whole.cache_bytes / 4


def test_fp8_halves_the_quantized_weights(tmp_path):
    assert memory(workload="llama-3-70b-decode", dtype="fp8").weights_bytes == pytest.approx(72.7e9, rel=0.01)
    deepseek = memory(workload=str(written(tmp_path, DEEPSEEK_V3)))
    assert 671e9 < deepseek.weights_bytes < 690e9
    assert deepseek.cache_bytes == 2 * 61 * 2048 * 576


def test_message_for_a_network_that_exceeds_memory_suggests_what_fits():
    with pytest.raises(DoesNotFitError) as raised:
        kernrec.recommend_network("llama-3-70b-decode", "rtx4090")
    message = str(raised.value)
    assert "needs 143 GB (weights 141 GB, " in message
    assert "NVIDIA GeForce RTX 4090 has 24 GiB" in message
    assert message.endswith("it fits with --tp 8")
    fitting = layers_of(NetworkRequest("llama-3-70b-decode", tp=8))
    assert memory_of(*fitting).fits(find_gpu("rtx4090"))
    assert not memory_of(*layers_of(NetworkRequest("llama-3-70b-decode", tp=4))).fits(find_gpu("rtx4090"))


def test_comparison_ranks_only_gpus_with_enough_memory():
    wanted = NetworkRequest("llama-3-70b-decode")
    rows, _ = compare_gpus(Recommender([]), find_gpus("rtx4090,h200,l4"), wanted, Query("latency"))
    assert [type(row) for row in rows] == [Unfit, ComparedGpu, Unfit]
    assert [row.as_dict()["fits"] for row in rows] == [False, True, False]
    assert "latency_s" not in rows[0].as_dict()
    with pytest.raises(DoesNotFitError):
        compare_gpus(Recommender([]), find_gpus("rtx4090,l4"), wanted, Query("latency"))


RECORDED = [
    (74e3, 2, 7.0e-6), (1.7e6, 2, 13.0e-6), (1.05e6, 8, 32.4e-6), (4.19e6, 8, 59.4e-6), (16.8e6, 8, 135.7e-6),
]  # fmt: skip
"""(bytes, GPUs, seconds) recorded on H100 SXM. The module's docstring names the sources."""


@pytest.mark.parametrize(("size", "gpus", "seconds"), RECORDED)
def test_recorded_times_are_inside_the_interval(size, gpus, seconds):
    model = all_reduce_s(size, gpus, 450e9)
    assert model / UNSURE <= seconds <= model * UNSURE * 1.05


def test_every_gpu_has_an_interconnect_and_nvlink_bridges_connect_two_gpus():
    for gpu in all_gpus():
        for gpus in (2, 4, 8):
            assert link_of(gpu, gpus)[0] > 5e9
    assert link_of(find_gpu("h100"), 8) == (450e9, "NVLink (450 GB/s each way)")
    assert link_of(find_gpu("h100-nvl"), 2)[1].startswith("an NVLink bridge")
    assert link_of(find_gpu("h100-nvl"), 4) == (63e9, "PCIe x16 (63 GB/s each way)")
    assert link_of(find_gpu("rtx4090"), 2) == (31.5e9, "PCIe x16 (31.5 GB/s each way)")


def test_totals_include_all_reduces_and_a_note_explains_their_cost():
    recommender, query = Recommender([]), Query("latency")
    answer = answer_network(recommender, "h100", NetworkRequest("llama-3-70b-decode", tp=4, batch=8), query)
    assert answer.exchange is not None
    layers = sum(layer.count * layer.costs[0].value for layer in answer.layers)
    assert answer.recommendation.latency_s.value == pytest.approx(layers + answer.exchange.latency_s.value)
    assert answer.exchange.note in answer.notes
    assert "160 all-reduces" in answer.exchange.note
    seconds = sum(layer.latency_s for layer in answer.layers) + answer.exchange.latency_s.value
    shares = dict(answer.dominant(len(answer.layers) + 1))
    assert shares["all-reduces"] == pytest.approx(answer.exchange.latency_s.value / seconds)


def test_memory_check_excludes_memory_reserved_for_ecc():
    needed = Memory(51_000_000_000, 0, 0, 0)
    assert not needed.fits(find_gpu("l40s"))
    assert needed.fits(find_gpu("rtx-6000-ada"))
