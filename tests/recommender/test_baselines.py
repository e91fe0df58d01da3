"""Test baselines in answers: their order, a backend as recommendation, and answers from backends only."""

import json

import pytest

from kernrec.cli.app import run
from kernrec.cli.recommendations import baseline_texts
from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import find_gpu
from kernrec.model.baselines.backends import released
from kernrec.op import Problem, find_op
from kernrec.paths import shipped
from kernrec.recommender import Recommender
from kernrec.recommender.baselines import Baseline, baselines_of
from kernrec.recommender.estimate.model_store import ModelStore
from kernrec.recommender.estimate.operating_point import DEFAULT_POINT, Conditions, OperatingPoint
from kernrec.recommender.request import Objective, Query
from kernrec.store import Stack
from kernrec.store.recorded import recorded_baselines

MODELS = shipped("db/prebuilt") / "models" / "vendor"
PRODUCT = {"m": 4096, "n": 4096, "k": 4096}
PROMPT = {"heads": 32, "kv_heads": 8, "queries": 2048, "head_dim": 128, "causal": 1}
FASTEST = Query(Objective.LATENCY, top=1)
UNALIGNED = {"m": 64, "n": 768, "k": 30522}
"""Shape for f32 in nt whose row length no kernel supports."""


def product(dtype: str = "bf16", layout: str = "nt", **sizes: int) -> Problem:
    return find_op("matmul").problem(dtype, layout, **PRODUCT | sizes)


def of(
    recommender: Recommender, problem: Problem, gpu: str, point: OperatingPoint = DEFAULT_POINT
) -> tuple[Baseline, ...]:
    return baselines_of(recommender.context.on(find_gpu(gpu)), problem, point)


@pytest.mark.parametrize("op", ["matmul", "attention"])
def test_model_card_states_recordings_sources_and_accuracy(op):
    card = json.loads((MODELS / f"{op}.json").read_text())
    for entry in card["sets"]:
        assert {"source", "licence", "library", "recorded"} <= set(entry["origin"])


def test_baseline_source_depends_on_whether_the_gpu_was_recorded(recommender):
    own, other = (recommender.recommend("matmul", gpu, PRODUCT, "bf16", "nt", FASTEST) for gpu in ("h200", "rtx4090"))
    learned, transferred = own.baselines[0], other.baselines[0]
    assert learned.source == "learned"
    assert "h200-sxm" in learned.learned_on
    assert transferred.source == "transferred"
    spread = [baseline.latency_interval_s[1] / baseline.latency_interval_s[0] for baseline in (learned, transferred)]
    assert spread[0] < 1.5 < spread[1]
    assert 2 * 4096**3 / own.gpu.datasheet_tensor_flops["bf16"] < learned.latency_s < 1e-3
    assert learned.slowdown == pytest.approx(learned.latency_s / own.best.latency_s.value - 1)
    assert learned.power_w is not None
    assert learned.energy_j == pytest.approx(learned.power_w * learned.latency_s)
    assert 300 < learned.power_w <= 700
    assert learned.energy_saved == pytest.approx(1 - learned.energy_j / own.best.energy_j.value)


@pytest.mark.parametrize("gpu", ["h100", "b200", "rtx4090", "t4"])
@pytest.mark.parametrize("vectors", [1, 3, 16])
def test_matvec_and_matmul_have_the_same_answer(recommender, gpu, vectors):
    matvec = recommender.recommend("matvec", gpu, {"m": 4096, "k": 1024, "n": vectors}, "f16", query=FASTEST)
    matmul = recommender.recommend("matmul", gpu, {"m": vectors, "n": 4096, "k": 1024}, "f16", "nt", FASTEST)
    assert (matvec.best.kernel.name, matvec.best.config) == (matmul.best.kernel.name, matmul.best.config)
    assert (matvec.best.latency_s, matvec.best.energy_j) == (matmul.best.latency_s, matmul.best.energy_j)
    assert matvec.baselines == matmul.baselines
    assert matvec.candidates == matmul.candidates


def test_baselines_are_sorted_by_time_and_obey_their_operating_point(recommender):
    limited = OperatingPoint(400.0)
    default, slow = of(recommender, product(), "h200"), of(recommender, product(), "h200", limited)
    for baselines in (default, slow):
        assert [baseline.latency_s for baseline in baselines] == sorted(baseline.latency_s for baseline in baselines)
    assert {baseline.power_limit_w for baseline in default} == {700.0}
    assert {baseline.power_limit_w for baseline in slow} == {400.0}
    assert slow[0].latency_s > 1.2 * default[0].latency_s
    assert slow[0].power_w is not None
    assert slow[0].power_w <= 400.0


@pytest.mark.parametrize("query", [{"power_limit_w": 400.0}, {"clock_hz": 1.2e9}, {"objective": Objective.ENERGY}])
def test_comparison_is_shown_at_every_operating_point(recommender, query):
    answer = recommender.recommend("matmul", "h200", PRODUCT, "bf16", "nt", Query(**{"top": 1, **query}))  # type: ignore[arg-type]
    baseline = answer.baselines[0]
    assert (baseline.power_limit_w, baseline.locked_clock_hz) == (answer.best.power_limit_w, answer.best.point.clock_hz)
    assert baseline.slowdown == pytest.approx(baseline.latency_s / answer.best.latency_s.value - 1)
    texts = baseline_texts(answer.baselines, answer.gpu)
    assert len(texts) == 2
    assert (" at 400 W" in texts[0]) == (query.get("power_limit_w") == 400.0)


def test_json_has_the_same_names_and_figures_as_python(recommender, capsys):
    shape = ",".join(f"{name}={size}" for name, size in PROMPT.items())
    question = ["--op", "attention", "--gpu", "h200", "--dtype", "bf16", "--shape", shape, "--objective", "latency"]
    assert run(["recommend", *question, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    answer = recommender.recommend("attention", "h200", PROMPT, "bf16", None, Query(Objective.LATENCY))
    assert document["baselines"] == [baseline.as_dict() for baseline in answer.baselines]
    assert document["no_kernel"] is None
    for name, value in document["baselines"][0].items():
        attribute = getattr(answer.baselines[0], name)
        assert value == (list(attribute) if isinstance(attribute, tuple) else attribute)


def test_problem_without_kernels_is_answered_by_baselines(recommender, capsys):
    shape = ",".join(f"{name}={size}" for name, size in UNALIGNED.items())
    question = ["recommend", "--op", "matmul", "--gpu", "a100", "--dtype", "f32", "--layout", "tt", "--shape", shape]
    assert run(question) == 0
    printed = capsys.readouterr()
    answer = recommender.recommend("matmul", "a100", UNALIGNED, "f32", "tt")
    assert answer.recommendations == ()
    assert answer.baselines[0].backend in printed.out
    assert "no config of any kernel can run" in " ".join(printed.out.split())
    with pytest.raises(KernrecError, match="no config of any kernel"):
        _ = answer.best
    assert run([*question, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["recommendations"] == []
    assert document["no_kernel"] == answer.no_kernel
    assert document["regret"] == {}
    assert run([*question, "--format", "csv"]) == 0
    assert answer.baselines[0].backend in capsys.readouterr().out


def test_problem_without_kernel_and_baseline_is_refused_in_one_sentence(recommender):
    with pytest.raises(UsageError, match=r"no kernel implements matmul for f8e4m3, nt on sm_75.*; SGLang, ") as e:
        recommender.recommend("matmul", "t4", PRODUCT, "f8e4m3", "nt")
    assert str(e.value).count("do not run it: Tesla T4 has no f8e4m3 arithmetic") == 1
    assert "@" not in str(e.value)
    with pytest.raises(KernrecError, match="and there is no baseline of cuDNN"):
        recommender.recommend("matmul", "a100", UNALIGNED, "f32", "tt", Query(backends=("cudnn",)))
    with pytest.raises(KernrecError, match="there is no baseline"):  # recordings use random inputs
        recommender.recommend("matmul", "a100", UNALIGNED, "f32", "tt", Query(inputs="zeros"))


@pytest.mark.parametrize(
    ("op", "gpu", "dtype", "shape"),
    [
        *[(op, gpu, "f32", {"rows": 512, "columns": 65536})
          for op in ("softmax", "layernorm", "rmsnorm", "reduce", "transpose") for gpu in ("v100", "p100", "p4")],
        ("matmul", "a100", "f64", PRODUCT),
        ("attention", "l4", "f16", {"heads": 8, "queries": 64, "head_dim": 300}),
    ],
)  # fmt: skip
def test_problem_without_kernel_and_recordings_is_predicted_by_physics(recommender, op, gpu, dtype, shape):
    answer = recommender.recommend(op, gpu, shape, dtype)
    assert answer.recommendations == ()
    assert [baseline.source for baseline in answer.baselines] == ["predicted"]
    card, problem = find_gpu(gpu), answer.problem
    least_s = max(problem.bytes / card.memory_bandwidth, problem.flops / (card.peak_flops(dtype, tensor=True) or 1e30))
    assert least_s < answer.baselines[0].latency_s.value < 10 * least_s + 1e-4
    with pytest.raises(KernrecError, match="there is no baseline"):
        recommender.recommend(op, gpu, shape, dtype, None, Query(source="published"))


@pytest.mark.parametrize(("gpu", "dtype"), [("v100", "f16"), ("p100", "f16"), ("p4", "f32")])
def test_gpu_without_bf16_uses_its_fastest_similar_type(recommender, gpu, dtype):
    answer = recommender.recommend("matmul", gpu, PRODUCT, "bf16")
    assert answer.problem.dtype == dtype  # A P4 computes f16 at 1/64 of the rate of f32.
    assert answer.notes[0].endswith(f"has no bf16; answered as {dtype}, nn")


@pytest.mark.parametrize(
    ("gpu", "backends"),
    [
        ("a10", {"PyTorch", "vLLM", "SGLang", "TensorRT-LLM"}),
        ("t4", {"PyTorch", "vLLM", "SGLang"}),
        ("v100", {"PyTorch", "vLLM"}),
        ("p100", {"PyTorch"}),
    ],
)
def test_baselines_are_only_of_backends_that_support_the_gpu(recommender, gpu, backends):
    baselines = recommender.recommend("matmul", gpu, PRODUCT, "f16", "nt").baselines
    assert {baseline.backend for baseline in baselines} == backends


@pytest.mark.parametrize("gpu", ["l40s", "a100-sxm4-80gb", "t4", "v100-sxm2-16gb"])
@pytest.mark.parametrize("bias", [0, 1])
def test_baseline_with_15_rows_is_not_slower_than_with_16_rows(recommender, gpu, bias):
    few, more = (
        min(baseline.latency_s.value for baseline in of(recommender, product("f32", m=m, n=1000, bias=bias), gpu))
        for m in (15, 16)
    )
    assert few <= more * 1.0001


def test_damaged_model_loses_the_baseline_but_not_the_answer(tmp_path, monkeypatch):
    folder = tmp_path / "models" / "vendor"
    folder.mkdir(parents=True)
    for path in MODELS.iterdir():
        (folder / path.name).write_bytes(path.read_bytes()[: -100 if path.suffix == ".trees" else None])
    monkeypatch.setattr("kernrec.recommender.estimate.model_store.paths.shipped", lambda name: tmp_path)
    models = ModelStore(None, Stack([]))
    assert models.vendor_model("matmul") is None
    assert models.vendor_model("transpose") is None
    (warning,) = models.warnings()
    assert "damaged" in warning
    assert "not used" in warning


H200 = find_gpu("h200")


PUBLISHED = product(m=1024)


def test_recorded_backends_use_recordings_and_others_predictions(recommender):
    rows = {row.backend: row for row in recorded_baselines(PUBLISHED, H200)}
    baselines = of(recommender, PUBLISHED, "h200")
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
        for baseline in of(recommender, PUBLISHED, gpu):
            named[gpu, baseline.backend] = baseline.dated_name
            assert baseline.as_dict()["released"] == baseline.released
            assert baseline.version or "version unknown" in baseline.name
    assert named["h200", "vLLM"] == "vLLM 0.24.0 (2026-06)"
    assert named["rtx4090", "vLLM"] == "vLLM 0.14.0 to 0.24.0 (2026-01 to 2026-06)"
    assert named["h200", "TensorRT-LLM"] == "TensorRT-LLM 1.3.0rc20"


def test_recorded_baseline_at_a_lower_limit_is_estimated_and_no_faster(recommender):
    at_default = of(recommender, PUBLISHED, "h200")
    at_half = of(recommender, PUBLISHED, "h200", OperatingPoint(H200.tdp_w / 2, None))
    assert {baseline.source for baseline in at_half} <= {"learned", "transferred"}
    assert all(baseline.provenance is None for baseline in at_half)
    slower = {baseline.backend: baseline.latency_s for baseline in at_half}
    assert all(
        slower[baseline.backend] >= baseline.latency_s * (1 - 1e-9)
        for baseline in at_default
        if baseline.backend in slower
    )


def test_inputs_of_zeros_have_no_published_baselines(recommender):
    assert baselines_of(recommender.context.on(H200, Conditions("zeros")), PUBLISHED, DEFAULT_POINT) == ()


@pytest.mark.parametrize("gpu", ["h100", "l40s", "b200"])
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (1024, 4096)])
def test_backend_time_never_falls_with_more_rows(recommender, gpu, n, k):
    before: dict[str, float] = {}
    sources = set()
    for m in (*range(1, 36), 47, 48, 49, 63, 64, 65, 100, 128, 129, 500, 512, 1000):
        baselines = of(recommender, product(m=m, n=n, k=k), gpu)
        times = {baseline.backend: baseline.latency_s for baseline in baselines}
        assert all(time_s <= times[backend] * 1.02 for backend, time_s in before.items()), m
        before, sources = times, sources | {baseline.source for baseline in baselines}
    assert sources == {"published", "learned"}


def test_recorded_time_is_at_most_the_time_for_more_rows(recommender):
    few, more = (product(m=m, n=2560, k=2560) for m in (48, 49))
    recorded, faster = (
        next(row for row in recorded_baselines(problem, find_gpu("b200")) if row.backend == "TensorRT-LLM")
        for problem in (few, more)
    )
    assert recorded.latency_s > 1.02 * faster.latency_s
    baselines = {each.backend: each for each in of(recommender, few, "b200")}
    assert baselines["TensorRT-LLM"].latency_s <= faster.latency_s
    assert baselines["TensorRT-LLM"].source == "published"
