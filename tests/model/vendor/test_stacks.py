"""Test the names of backends with versions."""

import pytest

from kernrec.model.vendor.stacks import is_wanted, stacks_named
from kernrec.recommender import Objective, Query, Recommender


def test_version_is_part_of_a_name_and_unknown_ones_are_refused(refuses):
    assert stacks_named("trtllm@1.3.0rc20,vllm") == ("TensorRT-LLM@1.3.0rc20", "vLLM")
    refuses(lambda: stacks_named("trtllm@1.3"))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [((), True), (("SGLang",), True), (("SGLang@0.5.12",), True), (("SGLang@0.5.14",), False), (("vLLM",), False)],
)
def test_backend_is_selected_by_name_or_by_name_and_version(wanted, expected):
    assert is_wanted("SGLang (static scales)", wanted, "0.5.12, static scales") is expected


def test_newest_version_is_used_unless_one_is_named():
    recommender, sizes = Recommender([]), {"m": 4096, "n": 4096, "k": 4096}

    def lines(*stacks: str) -> dict[str | None, float]:
        query = Query(Objective.LATENCY, top=1, stacks=stacks)
        answer = recommender.recommend("matmul", "b200", sizes, "f8block", "nt", query)
        return {line.version: line.latency_s.value for line in answer.lines}

    newest, old = lines("TensorRT-LLM"), lines("TensorRT-LLM@1.3.0rc15")
    assert list(newest) == ["1.3.0rc20"]
    assert list(old) == ["1.3.0rc15"]
    assert newest["1.3.0rc20"] < 0.8 * old["1.3.0rc15"]
    assert lines("TensorRT-LLM@1.3.0rc20") == newest
