"""Test whole networks: totals, intervals, sweeps and comparisons of GPUs."""

import json
from dataclasses import replace

import pytest

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import find_gpus
from kernrec.op import find_op
from kernrec.op.scaled_workload import in_one_pass
from kernrec.op.workload import Layer, Workload, layer_from, workload
from kernrec.recommender import Objective, Query
from kernrec.recommender.baselines import baselines_of
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.many import answer_many
from kernrec.recommender.networks.backend import backend_of
from kernrec.recommender.networks.compare import ComparedGpu, best_of, compare_gpus, sweep_network, verdict
from kernrec.recommender.networks.layers import NetworkRequest, shapes_as_network
from kernrec.recommender.networks.network import answer_network
from kernrec.recommender.networks.result import WORTH_IT
from kernrec.recommender.networks.total import MIXTURE
from kernrec.util.human import human

DECODE = NetworkRequest("llama-3-8b-decode")


@pytest.fixture(scope="module")
def decode(recommender):
    return answer_network(recommender, "h200", DECODE, Query("latency"))


def test_network_answer_keeps_the_order_counts_and_dtype_of_the_layers(decode):
    layers = workload("llama-3-8b-decode").layers
    assert [(layer.name, layer.count) for layer in decode.layers] == [(layer.name, layer.count) for layer in layers]
    assert decode.dtypes == ("bf16",)
    assert not decode.left_out


def test_total_is_the_sum_over_layers_and_its_power_the_mean(decode):
    seconds = sum(layer.count * layer.answer.best.latency_s.value for layer in decode.layers)
    joules = sum(layer.count * layer.answer.best.energy_j.value for layer in decode.layers)
    assert decode.recommendation.latency_s.value == pytest.approx(seconds)
    assert decode.recommendation.power_w == pytest.approx(joules / seconds)


def test_total_interval_is_no_narrower_than_its_layers(decode):
    for quantity in ("latency_s", "energy_j"):
        total = getattr(decode.recommendation, quantity)
        layers = [getattr(layer.answer.best, quantity) for layer in decode.layers]
        assert total.high / total.value >= min(e.high / e.value for e in layers) * (1 - 1e-9)
        assert total.value / total.low >= min(e.value / e.low for e in layers) * (1 - 1e-9)


def test_backend_total_uses_kernrec_kernels_for_layers_without_a_baseline(decode):
    assert decode.today is not None
    today_s = decode.today.latency_s.value
    baselines = [layer for layer in decode.layers if layer.baseline is not None]
    assert {layer.answer.problem.op for layer in baselines} >= {"matvec", "attention"}
    seconds = sum(layer.count * layer.baseline.latency_s for layer in baselines if layer.baseline is not None)
    seconds += sum(layer.latency_s for layer in decode.layers if layer.baseline is None)
    assert today_s == pytest.approx(seconds)
    assert {layer.baseline.backend for layer in baselines if layer.baseline is not None} == {decode.backend}
    mixed = decode.total(MIXTURE).latency_s.value
    assert mixed <= today_s
    saved = sum(layer.latency_s * layer.saved / (1 - layer.saved) for layer in decode.paying if layer.saved is not None)
    assert mixed == pytest.approx(today_s - saved)
    assert mixed == pytest.approx(sum(layer.latency_s for layer in decode.layers))


def test_custom_kernel_is_worth_it_if_its_saving_is_large_and_certain(recommender):
    for objective in ("latency", "energy"):
        answer = answer_network(recommender, "a100", NetworkRequest("vit-l-16"), Query(objective))
        judged = [layer for layer in answer.layers if layer.worth_it is not None]
        for layer in judged:
            assert layer.baseline is not None
            assert layer.saved is not None
            own, backend = (costs[objective == "energy"].value for costs in (layer.costs, layer.baseline_costs))
            assert layer.saved == pytest.approx(1 - own / backend)
            assert layer.worth_it == (layer.saved >= WORTH_IT and layer.certain)
        assert 0 < len(judged) < len(answer.layers)
        assert any(note.startswith("no ") and "baseline for" in note for note in answer.notes)
        assert answer.advice.startswith(f"{answer.backend} today: ")


def test_only_requested_backends_are_compared(recommender):
    wanted = NetworkRequest("llama-3-8b-prefill")
    answer = answer_network(recommender, "h200", wanted, Query("latency", backends=("vllm",)))
    assert {layer.baseline.backend for layer in answer.layers if layer.baseline is not None} <= {"vLLM"}
    assert any(note.startswith("no vLLM baseline for") for note in answer.notes)
    assert (answer.headline.name, answer.backend) == ("vLLM today", "vLLM")


def test_clearly_faster_backend_is_named_with_its_total(recommender):
    network = shapes_as_network("matmul", ["m=32,n=2112,k=7168", "m=32,n=7168,k=2048", "m=32,n=7168,k=256"], "f8block")
    assert not answer_network(recommender, "h200", NetworkRequest(network), Query("latency")).faster
    network = replace(network, one_network=True)
    assert not answer_network(recommender, "h200", NetworkRequest(network), Query("energy")).faster
    answer = answer_network(recommender, "h200", NetworkRequest(network), Query("latency"))
    assert answer.backend == "vLLM"  # the only backend that runs n = 2112
    other = answer_network(recommender, "h200", NetworkRequest(network), Query("latency", backends=("SGLang",)))
    assert f"SGLang is expected to take {human(other.headline.latency_s.value, 's')}, " in answer.notes[0]
    assert answer.notes[0].endswith("--backend sglang; times of vLLM include the host's")
    assert not other.faster
    assert ", within the error: " in answer_network(recommender, "l4", NetworkRequest("gpt2"), Query("latency")).faster
    baselines = [baseline for layer in answer.layers for baseline in layer.answer.baselines]
    assert {baseline.backend for baseline in baselines if baseline.host_time} == {"vLLM"}


def test_layer_with_only_baselines_counts_in_the_totals(decode):
    layer = next(layer for layer in decode.layers if layer.baseline is not None)
    alone = replace(layer, answer=replace(layer.answer, recommendations=()))
    assert alone.best is None
    assert alone.worth_it is False
    assert alone.latency_s == pytest.approx(layer.count * layer.baseline.latency_s if layer.baseline else 0.0)
    assert alone.program[0].startswith(layer.baseline.backend if layer.baseline else "")


def test_matmuls_without_a_stated_layout_use_the_framework_layout(recommender):
    layer = layer_from({"op": "matmul", "m": 64, "n": 64, "k": 64, "dtype": "f16"})
    answer = answer_network(recommender, "l4", NetworkRequest(Workload("x", "x", "", (layer,))), Query("latency"))
    assert answer.layers[0].answer.problem.layout == "nt"


def test_8_bit_dtype_applies_only_to_quantized_layers(recommender):
    wanted = NetworkRequest("llama-3-70b-decode", dtype="fp8", batch=8, tp=4)
    answer = answer_network(recommender, "h200", wanted, Query("latency"))
    dtypes = {layer.name: layer.answer.problem.dtype for layer in answer.layers}
    assert dtypes["mlp down_proj"] == dtypes["attention qkv_proj"] == "f8e4m3"
    assert {dtypes[name] for name in ("lm_head", "attention")} == {"bf16"}
    assert any(note.startswith("totals are for one of the 4 GPUs") for note in answer.notes)


@pytest.mark.parametrize(("rows", "layout"), [(64, None), (64, "nt"), (64, "nn"), (33, "nt")])
def test_single_matmul_uses_the_same_dtype_as_networks(recommender, rows, layout):
    sizes = {"m": rows, "n": 4096, "k": 4096}
    answer = recommender.recommend("matmul", "t4", sizes, "bf16", layout, Query("latency"))
    assert answer.problem.dtype == "f16"
    assert any(note.startswith("matmul: the Tesla T4 has no bf16; answered as f16, ") for note in answer.notes)
    directly = recommender.recommend("matmul", "t4", sizes, "f16", answer.problem.layout, Query("latency"))
    assert answer.best.latency_s == directly.best.latency_s
    many = answer_many(recommender, "matmul", "t4", sizes, Query("latency"), dtype="bf16", layout=layout)
    assert many.problems == (answer.problem,)
    assert many.latency_s[0, 0] == answer.best.latency_s.value


@pytest.mark.parametrize("objective", ["latency", "pareto"])
def test_no_total_exceeds_the_power_bound(recommender, objective):
    wanted = NetworkRequest("llama-3-8b-decode", batch=8)
    bounded = answer_network(recommender, "h100", wanted, Query(objective, max_power_w=250.0))
    assert bounded.today is not None
    assert all(total.power_w <= 250.0 * (1 + 1e-9) for total in bounded.totals)
    limited = answer_network(recommender, "h100", wanted, Query(objective, power_limit_w=250.0))
    assert [total.as_dict() for total in bounded.totals] == [total.as_dict() for total in limited.totals]
    swept = sweep_network(recommender, bounded, "power limit")
    assert all(row.total.power_w <= 250.0 * (1 + 1e-9) for row in swept.rows)
    with pytest.raises(UsageError, match=r"cannot be set below 200 W"):
        answer_network(recommender, "h100", wanted, Query(objective, max_power_w=50.0))


def test_layer_that_cannot_run_is_listed_and_in_no_total(recommender):
    layers = workload("bert-base").layers
    wide = find_op("attention").problem("f16", heads=4, queries=64, head_dim=300)
    network = Workload("x", "x", "", (*layers[:1], Layer("wide", wide, 3)), unknown=("2 of op 'rope'",))
    # There are no baselines for inputs of zeros.
    answer = answer_network(recommender, "l4", NetworkRequest(network), Query("latency", inputs="zeros"))
    assert [layer.name for layer in answer.layers] == [layers[0].name]
    assert answer.left_out[0] == "2 of op 'rope'"
    assert answer.left_out[1].startswith("wide: no config of any kernel can run attention")
    assert sum(note.startswith("not in the totals: ") for note in answer.notes) == 2
    assert answer.scope == f"{layers[0].count} layers, without 2 of op 'rope' and 1 more"
    assert not any(total.complete for total in answer.totals)
    assert f"{answer.headline_name}, incomplete" in str(answer)


def test_sweep_starts_at_the_default_limit_and_equals_single_answers(recommender, decode):
    sweep = sweep_network(recommender, decode, "power limit")
    assert sweep.rows[0].total.latency_s.value == pytest.approx(decode.headline.latency_s.value)
    assert sweep.rows[0].total.name == decode.headline.name
    limits = [row.point.limit_w(decode.gpu) for row in sweep.rows]
    assert limits == sorted(limits, reverse=True)
    assert (limits[0], limits[-1]) == (700.0, 200.0)
    there = sweep.rows[sweep.best].point.limit_w(decode.gpu)
    single = answer_network(recommender, "h200", DECODE, Query("latency", power_limit_w=there))
    assert sweep.rows[sweep.best].total.latency_s.value == pytest.approx(single.headline.latency_s.value, rel=0.02)
    assert sweep.rows[sweep.best].versus_first.energy_saved > 0.0
    json.dumps(sweep.as_dict())


def test_knee_is_the_lowest_energy_within_a_time_bound(recommender, decode):
    rows = sweep_network(recommender, decode, "clock").rows
    within = [row for row in rows if row.versus_first.slowdown <= 0.03]
    best = rows[best_of(rows, Query(max_slowdown=0.03))]
    assert best.total.energy_j.value == min(row.total.energy_j.value for row in within)
    free = rows[best_of(rows, Query())]
    assert free.total.energy_j.value <= rows[0].total.energy_j.value
    least = rows[best_of(rows, Query(Objective.ENERGY))]
    assert least.total.energy_j.value == min(row.total.energy_j.value for row in rows)


def test_sweep_recommends_the_first_row_if_others_save_little(recommender, decode):
    first = sweep_network(recommender, decode, "clock").rows[0]
    almost = [replace(cost, value=cost.value * 0.999) for cost in (first.total.latency_s, first.total.energy_j)]
    other = replace(first, total=replace(first.total, latency_s=almost[0], energy_j=almost[1]))
    assert best_of([first, other], Query()) == 0
    assert best_of([first, other], Query(Objective.ENERGY)) == 1


def test_gpus_are_compared_on_the_same_layers_and_incapable_ones_named(recommender):
    wanted = NetworkRequest("bert-base")
    rows, missing = compare_gpus(recommender, find_gpus("l4, t4,L4"), wanted, Query("latency"))
    rows = [row for row in rows if isinstance(row, ComparedGpu)]
    assert [row.answer.gpu.name for row in rows] == ["l4", "t4"]
    assert missing == []
    for row in rows:
        assert row.energy.value * row.answer.work == pytest.approx(row.answer.headline.energy_j.value)
        assert row.rate_per_watt * row.energy.value == pytest.approx(1.0)
    quantized = NetworkRequest("llama-3-8b-decode", dtype="f8e4m3", tp=2)
    rows, missing = compare_gpus(recommender, find_gpus("l4,v100"), quantized, Query())
    assert len(rows) == 1
    assert len(missing) == 1
    assert "v100" in missing[0]
    with pytest.raises(KernrecError, match="V100"):
        compare_gpus(recommender, find_gpus("v100"), quantized, Query())
    unequal = Workload("x", "x", "", (workload("bert-base").layers[0], workload("mixtures-of-experts").layers[-1]))
    rows, _ = compare_gpus(recommender, find_gpus("a100,l4,h100"), NetworkRequest(unequal), Query())
    assert verdict(rows).startswith("Among GPUs that run every layer, NVIDIA H100")
    assert verdict(rows[:2]) == ""


def test_backend_baseline_of_a_split_layer_is_one_call(recommender):
    answer, smaller = (
        answer_network(recommender, "gb200", NetworkRequest("llama-3-70b-prefill", batch=batch), Query("latency"))
        for batch in (19, 18)
    )
    split, plain = (next(each for each in some.layers if each.name == "mlp gate_up_proj") for some in (answer, smaller))
    assert split.count == 2 * plain.count
    point = OperatingPoint(answer.gpu.tdp_w)
    whole = in_one_pass(split.answer.problem, split.layer)
    baseline = baselines_of(recommender.context.on(answer.gpu), whole, point, (split.baseline.backend,))[0]
    assert split.baseline.latency_s == pytest.approx(baseline.latency_s / 2)
    assert split.baseline.energy_j == pytest.approx(baseline.energy_j / 2)
    # An equal layer that kernels do not split keeps its own baseline.
    layers = [(replace(split.layer, parts=parts), split.answer) for parts in (2, 1)]
    by_backend = backend_of(recommender.context.on(answer.gpu), answer.workload, layers, answer.query, "")
    (of_both, of_one), *_ = by_backend.values()
    assert of_both.latency_s == pytest.approx(baseline.latency_s / 2)
    fastest = baselines_of(recommender.context.on(answer.gpu), split.answer.problem, point)[0]
    assert of_one.latency_s == fastest.latency_s
    assert 2 * split.baseline.latency_s > plain.baseline.latency_s / 1.02
    assert sweep_network(recommender, answer, "power limit").rows[0].total.latency_s.value == pytest.approx(
        answer.headline.latency_s.value
    )


def test_gpu_without_kernels_runs_a_network_by_baselines(recommender):
    rows, missing = compare_gpus(recommender, find_gpus("v100-sxm2-32gb"), DECODE, Query())
    assert missing == []
    (row,) = rows
    assert isinstance(row, ComparedGpu)
    assert row.answer.left_out == ()
    assert row.answer.dtypes == ("f16",)  # A V100 has no bf16.
    weights_s = row.answer.memory.weights_bytes / 897e9
    assert weights_s < row.total.latency_s.value < 2 * weights_s


def test_shapes_become_a_network_with_one_layer_each():
    network = shapes_as_network("mm", ["m=8,n=8,k=8", "m=16,n=8,k=8"], "f16", "nt")
    assert [layer.name for layer in network.layers] == ["m=8,n=8,k=8", "m=16,n=8,k=8"]
    assert network.ops == ("matmul",)
