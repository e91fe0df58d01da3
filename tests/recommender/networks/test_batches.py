"""Test that a larger batch never makes a network, a layer or a baseline more than 2 % faster.

Two times of kernels are compared only if both are measured or both are predicted, because a measured kernel may rank
before a slightly faster unmeasured kernel. `--deep` tests every shipped network on 20 GPUs with batches of 1 to 64.
"""

import random
from collections.abc import Iterator, Mapping, Sequence

import pytest

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU, all_gpus, find_gpu
from kernrec.op.scaled_workload import in_one_pass
from kernrec.op.workload import Layer, workloads
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.baselines import baselines_of, predict_baselines
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.networks.network import RECOMMENDED, NetworkAnswer, NetworkRequest, answer_network, layers_of
from tests.helpers.depth import DEEP

NOISE = 1.02
"""Times that differ by less than this factor count as equal."""
LEARNED = 1.03
"""`NOISE` for learned times, because trees have steps: up to 2.1 % on an A100 (lm_head, batch 43 to 44)."""
LARGEST = 64
TOGETHER = 8
"""Number of batch sizes whose times are estimated together."""


def faster_with_more(
    recommender: Recommender, gpu: GPU, name: str, batches: Sequence[int], dtype: str | None = None
) -> list[str]:
    """Return a message for each kernel, baseline or total that is faster with the next larger batch."""
    times = (_seconds(answer) for answer in _answers(recommender, gpu, name, batches, dtype))
    return _faster(f"{gpu.name}, {name}, {dtype or 'own dtype'}", zip(batches, times, strict=False))


def baselines_faster_with_more(
    recommender: Recommender, gpu: GPU, name: str, batches: Sequence[int], dtype: str | None = None
) -> list[str]:
    """Return a message for each layer and backend whose baseline is faster with the next larger batch."""
    layers = [layers for _, layers in _requests(name, batches, dtype)]
    wholes = [in_one_pass(layer.problem, layer) for some in layers for layer in some]
    predict_baselines(recommender.context.on(gpu), wholes)
    times = (_baseline_seconds(recommender, gpu, some) for some in layers)
    return _faster(f"{gpu.name}, {name}, {dtype or 'own dtype'}", zip(batches, times, strict=False))


def _baseline_seconds(recommender: Recommender, gpu: GPU, layers: Sequence[Layer]) -> dict[str, float]:
    times: dict[str, float] = {}
    for layer in layers:
        try:
            whole = in_one_pass(layer.problem, layer)
            baselines = baselines_of(recommender.context.on(gpu), whole, OperatingPoint(gpu.tdp_w))
        except KernrecError:  # the layer does not fit in memory
            continue
        for baseline in reversed(baselines):  # the fastest time of a backend is stored last
            times[f"{baseline.backend} of {layer.name}"] = layer.count / layer.parts * baseline.latency_s.value
    return times


def _requests(name: str, batches: Sequence[int], dtype: str | None) -> Iterator[tuple[NetworkRequest, Sequence[Layer]]]:
    """Yield a request and its layers for each batch. Stop at the first batch with a dimension that is too large."""
    for batch in batches:
        request = NetworkRequest(name, batch=batch, dtype=dtype)
        try:
            yield request, layers_of(request)[1]
        except UsageError:
            return


def _answers(
    recommender: Recommender, gpu: GPU, name: str, batches: Sequence[int], dtype: str | None
) -> Iterator[NetworkAnswer]:
    """Yield the answers for ascending batches. Stop at the first batch with which no layer can run."""
    query = Query(Objective.LATENCY, power_limit_w=gpu.tdp_w)
    requests = list(_requests(name, batches, dtype))
    for place, (request, _) in enumerate(requests):
        if place % TOGETHER == 0:
            some = requests[place : place + TOGETHER]
            problems = [layer.problem for _, layers in some for layer in layers]
            recommender.on(gpu).prepare(problems, (query.point,))
            predict_baselines(recommender.context.on(gpu), problems)
        try:
            yield answer_network(recommender, gpu, request, query)
        except KernrecError:
            return


def _seconds(answer: NetworkAnswer) -> dict[str, float]:
    times = {
        total.name: total.latency_s.value
        for total in answer.totals
        if total.name == RECOMMENDED or total.name.endswith(" today")
    }
    for layer in answer.layers:
        if layer.best is not None:
            times[f"{layer.best.source} kernel of {layer.name}"] = layer.count * layer.costs[0].value
        if layer.baseline is not None:
            times[f"baseline of {layer.name}"] = layer.count * layer.baseline.latency_s
    return times


def _faster(title: str, times: Iterator[tuple[int, Mapping[str, float]]]) -> list[str]:
    faster, before, smaller = [], dict[str, float](), 0
    for batch, now in times:
        faster += [
            f"{title}, batch {smaller} to {batch}: {each} takes {time_s / now[each]:.3f} times as long"
            for each, time_s in before.items()
            if each in now and time_s > _most(each) * now[each]
        ]
        before, smaller = dict(now), batch
    return faster


def _most(name: str) -> float:
    return LEARNED if name.startswith(("learned", "transferred")) else NOISE


GPUS = (
    "v100-sxm2-16gb", "t4", "rtx2080ti", "a100-sxm4-80gb", "a30", "a10", "rtx-a6000", "rtx3090", "rtx3060", "l4",
    "l40s", "rtx4090", "rtx4060-laptop", "h100-sxm", "h200-sxm", "h20", "b200", "b300", "rtx5090", "rtx-pro-6000",
)  # fmt: skip
"""A GPU of each memory type and architecture, and every GPU with recordings of backends."""


def drawn() -> list[tuple[str, str, int]]:
    """Return the same few random examples of a GPU, a network and a batch in each run."""
    draw = random.Random(43)
    return [(draw.choice(all_gpus()).name, draw.choice(workloads()), draw.randint(1, LARGEST - 1)) for _ in range(24)]


FORMER = [("a100-sxm4-80gb", "vgg16", 15), ("a100-sxm4-80gb", "vit-l-16", 35), ("a100-sxm4-80gb", "resnet50", 1)]
"""Batches at which one more item raised the predicted speed by a factor of up to 2.1 in earlier versions."""


@pytest.mark.parametrize(("gpu", "name", "batch"), [*FORMER, *drawn()])
def test_batch_with_one_more_item_is_not_faster(recommender, gpu, name, batch):
    assert not faster_with_more(recommender, find_gpu(gpu), name, range(batch, batch + 2))


@pytest.mark.parametrize("gpu", ["h100", "b200", "l40s", "t4"])
def test_larger_decode_batch_is_not_faster_when_kernels_change(recommender, gpu):
    for name in ("llama-3-8b-decode", "qwen3-30b-a3b-decode", "mixtures-of-experts"):
        assert not faster_with_more(recommender, find_gpu(gpu), name, [1, 2, 3, 4, 8, 15, 16, 17, 32, 33, 48])


@pytest.mark.parametrize(
    ("gpu", "name", "dtype"),
    [
        ("gb200", "llama-3-70b-decode", "f8e4m3"),
        ("gb200", "llama-3-8b-decode", "f8block"),
        ("l40s", "vgg16", None),
        ("l40s", "llama-3-8b-decode", "f8block"),
        ("h100", "mixtures-of-experts", "f8e4m3"),
        ("h100", "vgg16", "f8e4m3"),
        ("h100", "bert-base", "f8e4m3"),
        ("l40s", "llama-3-70b-prefill", "f8e4m3"),  # from batch 19 on, only kernels need two passes
        ("h100", "llama-3-70b-prefill", "f8e4m3"),
    ],
)
def test_larger_batch_is_not_faster_where_recordings_differ(recommender, gpu, name, dtype):
    """Recordings cover different batches and item counts. Some have only 16 rows, others only 16-bit dtypes."""
    assert not baselines_faster_with_more(recommender, find_gpu(gpu), name, range(1, LARGEST + 1), dtype)


@pytest.mark.every(40)
@pytest.mark.parametrize("name", workloads())
@pytest.mark.parametrize("gpu", GPUS)
def test_larger_batch_is_never_faster_for_any_baseline(recommender, gpu, name):
    assert not baselines_faster_with_more(recommender, find_gpu(gpu), name, range(1, LARGEST + 1))


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("name", workloads())
@pytest.mark.parametrize("gpu", GPUS)
def test_larger_batch_of_the_sweep_is_never_faster(gpu, name):
    assert DEEP
    assert not faster_with_more(Recommender([]), find_gpu(gpu), name, range(1, LARGEST + 1))
