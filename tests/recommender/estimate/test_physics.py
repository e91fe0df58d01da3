"""Test that every answer obeys the laws of physics, for any model, file or user row."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernrec.errors import KernrecError
from kernrec.gpu import find_gpu
from kernrec.op import find_op
from kernrec.recommender import Query, Recommender
from kernrec.recommender.baselines import baselines_of
from kernrec.recommender.estimate.correction import ModelScope
from kernrec.recommender.estimate.model_store import ModelStore
from kernrec.recommender.estimate.operating_point import OperatingPoint
from kernrec.recommender.networks.layers import NetworkRequest
from kernrec.recommender.networks.network import answer_network
from kernrec.recommender.request import Objective
from tests.helpers.depth import DEEP
from tests.helpers.physics import answered, broken_laws, broken_laws_of_network

NO_SPLITS, NO_LEAVES = np.zeros(0, np.uint16), np.zeros(0, np.float32)
SHAPE = {"m": 4096, "n": 4096, "k": 4096}


def test_random_answers_obey_physical_limits():
    """The deep profile asks all 500 questions; other runs ask some of them, selected by the seed."""
    broken = {question: laws for question, laws in answered(Recommender([]), 500 if DEEP else 40, 7) if laws}
    assert broken == {}


def test_kernel_above_the_published_peak_states_its_clock(recommender: Recommender) -> None:
    query = Query(Objective.LATENCY, top=1)
    answer = recommender.recommend("matmul", "gtx1650-super", SHAPE, "f32", "nn", query).as_dict()
    assert list(broken_laws(answer)) == []
    (broken,) = broken_laws({**answer, "notes": []})
    assert broken.startswith("published peak: matmul_simt exceeds it")


@pytest.mark.parametrize("source", ["softmax", "matmul"])
def test_problem_that_exceeds_gpu_memory_is_refused_in_one_line(recommender, source):
    shape = {"softmax": {"rows": 10**9, "columns": 10**9}, "matmul": dict.fromkeys("mnk", 200_000)}[source]
    with pytest.raises(KernrecError, match=r"needs .*iB of memory.*GTX 1650 has 4 GiB") as refusal:
        recommender.recommend(source, "gtx1650", shape, "f32")
    assert "\n" not in str(refusal.value)


def corrupt(monkeypatch: pytest.MonkeyPatch, time: float, power: float) -> None:
    """Multiply the latency and power that trained models predict."""
    honest = ModelStore.scope

    def scope(self: ModelStore, *about: Any) -> ModelScope | None:
        if (own := honest(self, *about)) is None or not own.gpu_known:
            return own
        forests = {"latency": own.model.forests["latency"]}
        forests["power"] = replace(forests["latency"], trees=0, levels=0, column=NO_SPLITS, value=NO_LEAVES, base=0.0)
        with np.errstate(divide="ignore"):
            by_head = {"latency": np.log(time), "power": np.log(power)}
        forests = {head: replace(forest, base=forest.base + float(by_head[head])) for head, forest in forests.items()}
        return replace(own, trained=replace(own.trained, model=replace(own.model, forests=forests)))

    monkeypatch.setattr(ModelStore, "scope", scope)


@pytest.mark.parametrize("factor", [1e-12, 0.0, np.nan])
def test_model_with_impossible_predictions_is_ignored_and_named(monkeypatch, factor):
    corrupt(monkeypatch, factor, 1.0)
    answer = Recommender([]).recommend("matmul", "a100", SHAPE, "bf16", "nt", Query(Objective.LATENCY))
    assert list(broken_laws(answer.as_dict())) == []
    assert any("estimates are impossible" in note for note in answer.notes)
    triton = [
        recommendation
        for recommendation in (*answer.recommendations, *answer.beside)
        if recommendation.kernel.triton is not None
    ]
    assert all(recommendation.source == "predicted" for recommendation in triton)


def test_model_above_the_power_limit_is_slowed_down(monkeypatch):
    def best(limit_w: float) -> tuple[float, float]:
        query = Query(Objective.LATENCY, power_limit_w=limit_w, top=40)
        answer = Recommender([]).recommend("matmul", "a100", SHAPE, "bf16", "nt", query)
        assert list(broken_laws(answer.as_dict())) == []
        recommendation = next(
            each for each in (*answer.recommendations, *answer.beside) if each.kernel.triton is not None
        )
        return recommendation.latency_s.value, recommendation.power_w

    before = best(200.0)
    corrupt(monkeypatch, 1.0, 2.0)
    after = best(200.0)
    assert after[0] > 1.3 * before[0]
    assert after[1] == pytest.approx(200.0, rel=1e-6)


def test_baseline_without_recorded_power_uses_the_power_model(recommender):
    problem, gpu = find_op("conv2d").problem("f32", "nchw", n=8, c=64, h=56, w=56, k=64, r=3, s=3, padding=1), "v100"
    for limit_w in (None, 200.0):
        baselines = baselines_of(recommender.context, problem, find_gpu(gpu), OperatingPoint(limit_w))
        assert baselines
        for baseline in baselines:
            assert baseline.power_w is not None
            assert 0 < baseline.power_w <= (limit_w or 300.0)


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_decode_step_takes_at_least_one_read_of_all_weights(recommender, batch):
    answer = answer_network(recommender, "l40s", NetworkRequest("llama-3-8b-decode", batch=batch), Query())
    assert list(broken_laws_of_network(answer.as_dict())) == []
