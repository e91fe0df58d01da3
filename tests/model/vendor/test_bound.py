"""Test the lower bound of backends, their names, versions and release dates, and the bytes of each data type."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernrec.gpu import find_gpu
from kernrec.model.vendor.backends import is_wanted, known_backends
from kernrec.model.vendor.bound import FLUSHED, GRAPH, Timing, features
from kernrec.model.vendor.precision import precision_of, rate_of
from kernrec.model.vendor.releases import released, versions_text
from kernrec.recommender import Objective, Query, Recommender
from tests.helpers.depth import few_examples
from tests.helpers.paths import ROOT

SIZE = st.integers(1, 1 << 14)
GPUS = st.sampled_from(["a100-sxm4-80gb", "l40s", "h200-sxm", "rtx4090", "t4"])


def product_s(gpu: str, m: int, n: int, k: int, dtype: str = "f16", timing: Timing = GRAPH) -> float:
    dims = {name: np.array([size]) for name, size in (("batch", 1), ("m", m), ("n", n), ("k", k))}
    return float(features("matmul", find_gpu(gpu), dtype, "nt", dims, timing)[0].total_s[0])


@few_examples(25)
@given(GPUS, SIZE, SIZE, SIZE)
def test_matmul_takes_at_least_its_launch_and_its_operations(gpu, m, n, k):
    card = find_gpu(gpu)
    least = max(GRAPH.launch_clk / card.boost_clock_hz, 2 * m * n * k / card.peak_flops("f16", tensor=True))
    assert product_s(gpu, m, n, k) >= least


@few_examples(25)
@given(GPUS, SIZE, SIZE, SIZE)
def test_flush_of_l2_takes_time(gpu, m, n, k):
    flushed = Timing(GRAPH.launch_clk, np.inf)
    assert product_s(gpu, m, n, k, timing=flushed) >= product_s(gpu, m, n, k)


@few_examples(25)
@given(GPUS, SIZE, SIZE, SIZE)
def test_twice_the_columns_take_no_less_time(gpu, m, n, k):
    assert product_s(gpu, m, 2 * n, k) >= 0.999 * product_s(gpu, m, n, k)


def test_a_large_product_is_bound_by_tensor_cores_and_f32_by_the_others():
    half, single = (product_s("a100", 8192, 8192, 8192, dtype, FLUSHED) for dtype in ("f16", "f32"))
    assert half == pytest.approx(2 * 8192**3 / (0.79 * 312e12), rel=0.1)
    assert single == pytest.approx(2 * 8192**3 / (0.85 * 19.5e12), rel=0.1)


def test_batched_products_of_f32_have_the_tiles_of_the_generation_and_a_card_of_few_watts_a_lower_clock():
    square = {"batch": 64, "m": 96, "n": 96, "k": 512}
    dims = {name: np.array([size]) for name, size in square.items()}
    times = {gpu: features("matmul", find_gpu(gpu), "f32", "nn", dims, GRAPH)[0].total_s[0] for gpu in ("a100", "v100")}
    assert times["a100"] > times["v100"]  # A100: half-empty tiles of 128 x 128; V100: 64 x 64
    share = {
        gpu: product_s(gpu, 8192, 8192, 8192, "f32", GRAPH) * find_gpu(gpu).peak_flops("f32") for gpu in ("l4", "a100")
    }
    assert share["l4"] > 1.5 * share["a100"]


def test_version_is_part_of_a_name_and_unknown_ones_are_refused(refuses):
    assert known_backends("trtllm@1.3.0rc20,vllm") == ("TensorRT-LLM@1.3.0rc20", "vLLM")
    refuses(lambda: known_backends("trtllm@1.3"))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [((), True), (("SGLang",), True), (("SGLang@0.5.12",), True), (("SGLang@0.5.14",), False), (("vLLM",), False)],
)
def test_backend_is_selected_by_name_or_by_name_and_version(wanted, expected):
    assert is_wanted("SGLang (static scales)", wanted, "0.5.12, static scales") is expected


def test_newest_version_is_used_unless_one_is_named():
    recommender, sizes = Recommender([]), {"m": 4096, "n": 4096, "k": 4096}

    def baselines(*backends: str) -> dict[str | None, float]:
        query = Query(Objective.LATENCY, top=1, backends=backends)
        answer = recommender.recommend("matmul", "b200", sizes, "f8block", "nt", query)
        return {baseline.version: baseline.latency_s.value for baseline in answer.baselines}

    newest, old = baselines("TensorRT-LLM"), baselines("TensorRT-LLM@1.3.0rc15")
    assert list(newest) == ["1.3.0rc20"]
    assert list(old) == ["1.3.0rc15"]
    assert newest["1.3.0rc20"] < 0.8 * old["1.3.0rc15"]
    assert baselines("TensorRT-LLM@1.3.0rc20") == newest


UNDATED = {"TensorRT-LLM 1.3.0rc17", "TensorRT-LLM 1.3.0rc20", "cuDNN 8.9"}


@pytest.mark.parametrize(("backend", "version", "date"), [
    ("vLLM", "0.24.0", "2026-06-30"), ("SGLang (static scales)", "0.5.12", "2026-05-16"),
    ("SGLang", "0.5.12, static scales", "2026-05-16"), ("vLLM", "0.14.0 to 0.24.0", "2026-01-20 to 2026-06-30"),
    ("TensorRT-LLM", "1.0.0 to 1.3.0rc20", None), ("vLLM", "0.99.0", None), ("vLLM", None, None),
    ("FlashAttention", "3", None),
])  # fmt: skip
def test_release_date_is_known_or_none(backend, version, date):
    assert released(backend, version) == date


def test_versions_are_ordered_by_number():
    assert versions_text(["0.5.10", "0.5.9", None, "0.5.9"]) == "0.5.9 to 0.5.10"
    assert versions_text(["1.3.0rc20", "1.3.0rc5", "1.2.0"]) == "1.2.0 to 1.3.0rc20"
    assert versions_text(["8.9"]) == "8.9"
    assert versions_text([None]) is None


def test_every_shipped_version_has_a_date_or_is_known_to_lack_one():
    folder = ROOT / "db/prebuilt"
    named = set()
    for about in json.loads((folder / "recorded/contents.json").read_text()).values():
        named |= {re.sub(r"@\S+", "", name) for name in about["backends"]}
    for path in (folder / "models/vendor").glob("*.json"):
        for entry in json.loads(path.read_text())["sets"]:
            for backend, cards in entry["stacks"].items():
                named |= {
                    f"{backend.partition(' (')[0].partition('@')[0]} {version}" for version in cards.values() if version
                }
    undated = {name for name in named if released(*name.split(" ", 1)) is None}
    assert undated == UNDATED


@pytest.mark.parametrize(
    ("dtype", "less"), [("f8e4m3", "bf16"), ("w8a16", "bf16"), ("w4a16", "w8a16"), ("nvfp4", "f8e4m3")]
)
def test_fewer_bits_are_fewer_bytes_of_weights(dtype, less):
    assert precision_of(dtype).b_bytes < precision_of(less).b_bytes


def test_activations_that_the_call_quantizes_are_read_in_16_bits_and_written():
    assert precision_of("f8e4m3").quantising_bytes == 3.0
    assert precision_of("w4a16").quantising_bytes == precision_of("bf16").quantising_bytes == 0.0
    assert precision_of("nvfp4").quantising_bytes == 2.0 + precision_of("nvfp4").a_bytes


def test_a_card_without_the_arithmetic_has_no_rate():
    assert rate_of(find_gpu("a100"), "f8e4m3") == 0
    assert rate_of(find_gpu("h100"), "nvfp4") == 0
    assert rate_of(find_gpu("b200"), "nvfp4") == pytest.approx(2 * rate_of(find_gpu("b200"), "f8block"), rel=0.01)
    assert rate_of(find_gpu("a100"), "w4a16") == rate_of(find_gpu("a100"), "bf16") > 0
