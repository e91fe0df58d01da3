"""Checks that a larger batch never makes a network, a layer or a baseline more than 2 % faster.

The batch size can decide whether a kernel or a baseline runs a layer, because a kernel must be worth it at the
unfavorable ends of both intervals. So kernels are compared with kernels, and baselines with baselines. A kernel without
measurements ranks before a measured one only if it is faster by a margin (1.11 on an A100). The predicted time falls
by that margin where the ranking changes, so the compared kernels also have the same source.
"""

from collections.abc import Iterator, Mapping, Sequence

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU
from kernrec.op.scaled_workload import in_one_pass
from kernrec.op.workload import Layer
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.baselines import baselines_of, predict_baselines
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.networks.layers import NetworkRequest, layers_of
from kernrec.recommender.networks.network import answer_network
from kernrec.recommender.networks.result import RECOMMENDED, NetworkAnswer

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
    predict_baselines(recommender.context, wholes, gpu)
    times = (_baseline_seconds(recommender, gpu, some) for some in layers)
    return _faster(f"{gpu.name}, {name}, {dtype or 'own dtype'}", zip(batches, times, strict=False))


def _baseline_seconds(recommender: Recommender, gpu: GPU, layers: Sequence[Layer]) -> dict[str, float]:
    """Return the time of each backend's fastest baseline for each layer."""
    times: dict[str, float] = {}
    for layer in layers:
        try:
            whole = in_one_pass(layer.problem, layer)
            baselines = baselines_of(recommender.context, whole, gpu, OperatingPoint(gpu.tdp_w))
        except KernrecError:  # the layer does not fit in memory
            continue
        for baseline in reversed(baselines):  # slowest first, so that the fastest wins
            times[f"{baseline.backend} of {layer.name}"] = layer.count / layer.parts * baseline.latency_s.value
    return times


def _requests(name: str, batches: Sequence[int], dtype: str | None) -> Iterator[tuple[NetworkRequest, Sequence[Layer]]]:
    """Yield a request and its layers for each batch; stop at the first batch with a dimension that is too large."""
    for batch in batches:
        request = NetworkRequest(name, batch=batch, dtype=dtype)
        try:
            yield request, layers_of(request)[1]
        except UsageError:
            return


def _answers(
    recommender: Recommender, gpu: GPU, name: str, batches: Sequence[int], dtype: str | None
) -> Iterator[NetworkAnswer]:
    """Yield the answers for ascending batches; stop at the first batch with which no layer can run."""
    query = Query(Objective.LATENCY, power_limit_w=gpu.tdp_w)
    requests = list(_requests(name, batches, dtype))
    for place, (request, _) in enumerate(requests):
        if place % TOGETHER == 0:
            some = requests[place : place + TOGETHER]
            problems = [layer.problem for _, layers in some for layer in layers]
            recommender.prepare(problems, gpu, (query.point,))
            predict_baselines(recommender.context, problems, gpu)
        try:
            yield answer_network(recommender, gpu, request, query)
        except KernrecError:
            return


def _seconds(answer: NetworkAnswer) -> dict[str, float]:
    """Return the times of the totals and of each layer's kernel and baseline, by name."""
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
