"""Test that the model of all-reduces between GPUs matches recorded times, and that totals include it."""

import pytest

from kernrec.gpu import all_gpus, find_gpu
from kernrec.recommender import Query, Recommender
from kernrec.recommender.networks.exchange import UNSURE, all_reduce_s, link_of
from kernrec.recommender.networks.layers import NetworkRequest
from kernrec.recommender.networks.network import answer_network

H100 = 450e9
RECORDED = [
    (74e3, 2, 7.0e-6), (1.7e6, 2, 13.0e-6), (1.05e6, 8, 32.4e-6), (4.19e6, 8, 59.4e-6), (16.8e6, 8, 135.7e-6),
]  # fmt: skip
"""(bytes, GPUs, seconds) recorded on H100 SXM; the module's docstring names the sources."""


@pytest.mark.parametrize(("size", "gpus", "seconds"), RECORDED)
def test_recorded_times_are_inside_the_interval(size, gpus, seconds):
    model = all_reduce_s(size, gpus, H100)
    assert model / UNSURE <= seconds <= model * UNSURE * 1.05


def test_every_gpu_has_a_link_and_bridges_connect_two():
    for gpu in all_gpus():
        for gpus in (2, 4, 8):
            assert link_of(gpu, gpus)[0] > 5e9
    assert link_of(find_gpu("h100"), 8) == (450e9, "NVLink (450 GB/s each way)")
    assert link_of(find_gpu("h100-nvl"), 2)[1].startswith("an NVLink bridge")
    assert link_of(find_gpu("h100-nvl"), 4) == (63e9, "PCIe x16 (63 GB/s each way)")
    assert link_of(find_gpu("rtx4090"), 2) == (31.5e9, "PCIe x16 (31.5 GB/s each way)")


def test_totals_include_all_reduces_and_a_note_explains_the_model():
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
