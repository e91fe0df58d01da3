"""Test the names of backends with versions."""

import pytest

from kernrec.model.vendor.backends import is_wanted, known_backends
from kernrec.recommender import Objective, Query, Recommender


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
