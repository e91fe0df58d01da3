"""Test that one more item never makes a network, its layers or its baselines faster.

The deep profile sweeps every shipped network on 20 GPUs with batches of 1 to 64: `KERNREC_TEST_PROFILE=deep python -m
pytest -n 0 tests/recommender/networks/test_batches.py`. `python -m tests.helpers.check_laws` checks any GPU, network
and data type.
"""

import random

import pytest

from kernrec.gpu import all_gpus, find_gpu
from kernrec.op.workload import workloads
from kernrec.recommender import Recommender
from tests.helpers.batches import LARGEST, baselines_faster_with_more, faster_with_more
from tests.helpers.depth import DEEP

GPUS = (
    "v100-sxm2-16gb", "t4", "rtx2080ti", "a100-sxm4-80gb", "a30", "a10", "rtx-a6000", "rtx3090", "rtx3060", "l4",
    "l40s", "rtx4090", "rtx4060-laptop", "h100-sxm", "h200-sxm", "h20", "b200", "b300", "rtx5090", "rtx-pro-6000",
)  # fmt: skip
"""A GPU of each memory type and architecture, and every GPU with recordings of backends."""


@pytest.fixture(scope="module")
def recommender():
    return Recommender([])


def drawn() -> list[tuple[str, str, int]]:
    """Return the same few random examples of a GPU, a network and a batch in each run."""
    draw = random.Random(43)
    return [(draw.choice(all_gpus()).name, draw.choice(workloads()), draw.randint(1, LARGEST - 1)) for _ in range(24)]


FORMER = [("a100-sxm4-80gb", "vgg16", 15), ("a100-sxm4-80gb", "vit-l-16", 35), ("a100-sxm4-80gb", "resnet50", 1)]
"""Batches for which one more item raised the predicted speed by up to 2.1 times in earlier versions, because the
reference time changed or was missing."""


@pytest.mark.parametrize(("gpu", "name", "batch"), [*FORMER, *drawn()])
def test_batch_larger_by_one_is_not_faster(recommender, gpu, name, batch):
    assert not faster_with_more(recommender, find_gpu(gpu), name, range(batch, batch + 2))


@pytest.mark.parametrize("gpu", ["h100", "b200", "l40s", "t4"])
def test_decode_is_not_faster_when_its_kernels_change(recommender, gpu):
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
        ("l40s", "llama-3-70b-prefill", "f8e4m3"),  # kernels need two passes from batch 19 on, backends one
        ("h100", "llama-3-70b-prefill", "f8e4m3"),
    ],
)
def test_larger_batch_is_not_faster_with_mixed_recordings(
    recommender: Recommender, gpu: str, name: str, dtype: str | None
) -> None:
    """Recordings differ in their batches, their numbers of items, and whether only 16 rows or 16 bits have a model."""
    assert not baselines_faster_with_more(recommender, find_gpu(gpu), name, range(1, LARGEST + 1), dtype)


@pytest.mark.every(40)
@pytest.mark.parametrize("name", workloads())
@pytest.mark.parametrize("gpu", GPUS)
def test_larger_batch_is_never_faster_for_any_baseline(recommender: Recommender, gpu: str, name: str) -> None:
    assert not baselines_faster_with_more(recommender, find_gpu(gpu), name, range(1, LARGEST + 1))


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("name", workloads())
@pytest.mark.parametrize("gpu", GPUS)
def test_larger_batch_of_the_sweep_is_never_faster(gpu, name):
    assert DEEP
    assert not faster_with_more(Recommender([]), find_gpu(gpu), name, range(1, LARGEST + 1))
