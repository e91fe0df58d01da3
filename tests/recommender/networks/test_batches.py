"""A network is never faster with one item more: kernrec's total, the backend's, and each layer of both.

Which of the two runs a layer may change with the batch, because a kernel must be worth it at the unfavorable ends of
both intervals. So a kernel is compared with a kernel and a baseline with a baseline. A kernel that nobody ran ranks
before one that ran only with a lead, by which the predicted time falls at such a batch (1.11 on an A100). So both are
of the same source, too.

The whole sweep, every shipped network on 20 GPUs with batches of 1 to 64, is in the deep profile:
`KERNREC_TEST_PROFILE=deep python -m pytest -n 0 tests/recommender/networks/test_batches.py`.
"""

import random
from collections.abc import Iterator, Sequence

import pytest

from kernrec.errors import KernrecError
from kernrec.gpu import GPU, all_gpus, find_gpu
from kernrec.op.workload import workloads
from kernrec.recommender import Objective, Query, Recommender
from kernrec.recommender.lines import predict_lines
from kernrec.recommender.networks.network import CHOICE, NetworkAnswer, NetworkRequest, answer_network, layers_of
from tests.helpers.depth import DEEP

NOISE = 1.02
"""A time that is larger by less counts as the same."""
LEARNED = 1.03
"""The same for a kernel whose time is learned: trees have steps, up to 2.1 % on an A100 (lm_head, batch 43 to 44)."""
LARGEST = 64
TOGETHER = 8
"""Batches that are estimated side by side."""
GPUS = (
    "v100-sxm2-16gb", "t4", "rtx2080ti", "a100-sxm4-80gb", "a30", "a10", "rtx-a6000", "rtx3090", "rtx3060", "l4",
    "l40s", "rtx4090", "rtx4060-laptop", "h100-sxm", "h200-sxm", "h20", "b200", "b300", "rtx5090", "rtx-pro-6000",
)  # fmt: skip
"""One of each kind of memory and architecture, and the ones that backends were recorded on."""


@pytest.fixture(scope="module")
def recommender():
    return Recommender([])


def answers(recommender: Recommender, gpu: GPU, name: str, batches: Sequence[int]) -> Iterator[NetworkAnswer]:
    """Yield the answers for ascending batches; none where no layer runs."""
    query = Query(Objective.LATENCY, power_limit_w=gpu.tdp_w)
    for place, batch in enumerate(batches):
        if place % TOGETHER == 0:
            some = [NetworkRequest(name, batch=each) for each in batches[place : place + TOGETHER]]
            problems = [layer.problem for request in some for layer in layers_of(request)[1]]
            recommender.prepare(problems, gpu, (query.point,))
            predict_lines(recommender.context, problems, gpu)
        try:
            yield answer_network(recommender, gpu, NetworkRequest(name, batch=batch), query)
        except KernrecError:
            return


def seconds(answer: NetworkAnswer) -> dict[str, float]:
    """Return the times of the totals, and of the kernel and the baseline of each layer, by name."""
    times = {
        total.name: total.latency_s.value
        for total in answer.totals
        if total.name == CHOICE or total.name.endswith(" today")
    }
    for layer in answer.layers:
        if layer.best is not None:
            times[f"{layer.best.source} kernel of {layer.name}"] = layer.count * layer.costs[0].value
        if layer.line is not None:
            times[f"baseline of {layer.name}"] = layer.count * layer.line.latency_s
    return times


def _most(name: str) -> float:
    return LEARNED if name.startswith(("learned", "transferred")) else NOISE


def faster_with_more(recommender: Recommender, gpu: GPU, name: str, batches: Sequence[int]) -> list[str]:
    """Return what is faster with a larger batch, in words."""
    faster, before, smaller = [], dict[str, float](), 0
    for batch, answer in zip(batches, answers(recommender, gpu, name, batches), strict=False):
        times = seconds(answer)
        faster += [
            f"{gpu.name}, {name}, batch {smaller} to {batch}: {each} takes {time_s / times[each]:.3f} times as long"
            for each, time_s in before.items()
            if each in times and time_s > _most(each) * times[each]
        ]
        before, smaller = times, batch
    return faster


def drawn() -> list[tuple[str, str, int]]:
    """Return a GPU, a network and a batch for each of a few examples, the same ones in each run."""
    draw = random.Random(43)
    return [(draw.choice(all_gpus()).name, draw.choice(workloads()), draw.randint(1, LARGEST - 1)) for _ in range(24)]


FORMER = [("a100-sxm4-80gb", "vgg16", 15), ("a100-sxm4-80gb", "vit-l-16", 35), ("a100-sxm4-80gb", "resnet50", 1)]
"""Batches after which a larger one was up to 2.1 times as fast: another reference time, or none, scaled a lead."""


@pytest.mark.parametrize(("gpu", "name", "batch"), [*FORMER, *drawn()])
def test_batch_larger_by_one_is_not_faster(recommender, gpu, name, batch):
    assert not faster_with_more(recommender, find_gpu(gpu), name, range(batch, batch + 2))


@pytest.mark.parametrize("gpu", ["h100", "b200", "l40s", "t4"])
def test_decoding_is_not_faster_where_its_kernels_change(recommender, gpu):
    for name in ("llama-3-8b-decode", "qwen3-30b-a3b-decode", "mixtures-of-experts"):
        assert not faster_with_more(recommender, find_gpu(gpu), name, [1, 2, 3, 4, 8, 15, 16, 17, 32, 33, 48])


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("name", workloads())
@pytest.mark.parametrize("gpu", GPUS)
def test_no_batch_of_the_sweep_is_faster(gpu, name):
    assert DEEP
    assert not faster_with_more(Recommender([]), find_gpu(gpu), name, range(1, LARGEST + 1))
