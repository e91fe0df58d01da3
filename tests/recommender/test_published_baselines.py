"""Test that a recorded baseline takes precedence over a learned one of the same backend."""

import pytest

from kernrec.gpu import find_gpu
from kernrec.model.baselines.backends import released
from kernrec.op import Problem, find_op
from kernrec.recommender.baselines import baselines_of
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, OperatingPoint
from kernrec.store.recorded import recorded_baselines

H200 = find_gpu("h200")


def product(m: int = 1024) -> Problem:
    return find_op("matmul").problem("bf16", "nt", m=m, n=4096, k=4096)


def test_recorded_backends_use_their_rows_and_others_predictions(recommender):
    rows = {row.backend: row for row in recorded_baselines(product(), H200)}
    baselines = baselines_of(recommender.context, product(), H200, DEFAULT_POINT)
    assert rows
    assert [baseline.backend for baseline in baselines if baseline.source == "published"] == list(rows)
    assert len({baseline.backend for baseline in baselines}) == len(baselines)
    for baseline in baselines:
        if baseline.source == "published":
            row = rows[baseline.backend]
            assert (baseline.latency_s, baseline.version) == (row.latency_s, row.version)
            assert baseline.latency_interval_s == row.latency_interval_s
            low, high = row.latency_interval_s
            assert 1.029 * low < row.latency_s < high / 1.029
            assert baseline.released == released(row.backend, row.version)
            assert baseline.provenance is not None
            assert baseline.provenance["licence"] == "Apache-2.0"
            assert baseline.as_dict()["provenance"] == dict(baseline.provenance)
            assert "aiconfigurator" in baseline.basis


def test_every_baseline_has_a_version_and_date(recommender):
    named = {}
    for gpu in ("h200", "rtx4090"):
        for baseline in baselines_of(recommender.context, product(1024), find_gpu(gpu), DEFAULT_POINT):
            named[gpu, baseline.backend] = baseline.dated_name
            assert baseline.as_dict()["released"] == baseline.released
            assert baseline.version or "version unknown" in baseline.name
    assert named["h200", "vLLM"] == "vLLM 0.24.0 (2026-06)"
    assert named["rtx4090", "vLLM"] == "vLLM 0.14.0 to 0.24.0 (2026-01 to 2026-06)"
    assert named["h200", "TensorRT-LLM"] == "TensorRT-LLM 1.3.0rc20"


def test_another_limit_gives_a_learned_time_that_is_no_faster(recommender):
    at_default = baselines_of(recommender.context, product(), H200, DEFAULT_POINT)
    at_half = baselines_of(recommender.context, product(), H200, OperatingPoint(H200.tdp_w / 2, None))
    assert {baseline.source for baseline in at_half} <= {"learned", "transferred"}
    assert all(baseline.provenance is None for baseline in at_half)
    slower = {baseline.backend: baseline.latency_s for baseline in at_half}
    assert all(
        slower[baseline.backend] >= baseline.latency_s * (1 - 1e-9)
        for baseline in at_default
        if baseline.backend in slower
    )


def test_zero_inputs_have_no_published_baselines(recommender):
    assert baselines_of(recommender.for_inputs("zeros").context, product(), H200, DEFAULT_POINT) == ()


@pytest.mark.parametrize("gpu", ["h100", "l40s", "b200"])
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (1024, 4096)])
def test_backend_time_never_falls_with_more_rows(recommender, gpu, n, k):
    before: dict[str, float] = {}
    sources = set()
    for m in (*range(1, 36), 47, 48, 49, 63, 64, 65, 100, 128, 129, 500, 512, 1000):
        problem = find_op("matmul").problem("bf16", "nt", m=m, n=n, k=k)
        baselines = baselines_of(recommender.context, problem, find_gpu(gpu), DEFAULT_POINT)
        times = {baseline.backend: baseline.latency_s for baseline in baselines}
        assert all(time_s <= times[backend] * 1.02 for backend, time_s in before.items()), m
        before, sources = times, sources | {baseline.source for baseline in baselines}
    assert sources == {"published", "learned"}


def test_time_for_more_rows_limits_a_recorded_one(recommender):
    card, matmul = find_gpu("b200"), find_op("matmul")
    few, more = (matmul.problem("bf16", "nt", m=m, n=2560, k=2560) for m in (48, 49))
    recorded, faster = (
        next(row for row in recorded_baselines(problem, card) if row.backend == "TensorRT-LLM")
        for problem in (few, more)
    )
    assert recorded.latency_s > 1.02 * faster.latency_s
    baselines = {baseline.backend: baseline for baseline in baselines_of(recommender.context, few, card, DEFAULT_POINT)}
    assert baselines["TensorRT-LLM"].latency_s <= faster.latency_s
    assert baselines["TensorRT-LLM"].source == "published"
