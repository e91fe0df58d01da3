"""Test the names of backends with versions."""

import json
import re

import pytest

from kernrec.model.baselines.backends import is_wanted, known_backends, released, versions_text
from kernrec.recommender import Objective, Query, Recommender
from tests.helpers.paths import ROOT


def test_backend_name_includes_its_version_and_unknown_versions_are_refused(refuses):
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
            for backend, devices in entry["stacks"].items():
                named |= {
                    f"{backend.partition(' (')[0].partition('@')[0]} {version}"
                    for version in devices.values()
                    if version
                }
    undated = {name for name in named if released(*name.split(" ", 1)) is None}
    assert undated == UNDATED
