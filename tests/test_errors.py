"""Test the messages for unknown names."""

import pytest

import kernrec
from kernrec.errors import UsageError, nearest, unknown


def test_nearest_name_ignores_case_and_separators():
    assert nearest("RTX-40 90", ["rtx3090", "rtx4090", "a100"])[0] == "rtx4090"


def test_prefix_of_a_name_is_sufficient():
    assert nearest("transp", ["matmul", "transpose"]) == ["transpose"]


def test_only_the_nearest_names_are_suggested():
    cards = ["rtx3090", "rtx4070", "rtx4080", "rtx4090", "rtx5090", "h200-sxm", "h200-nvl", "b200", "a2", "a40", "a30"]
    assert nearest("rtx4900", cards) == ["rtx4090"]  # the digits of 4090 are swapped
    assert nearest("rtx409", cards) == ["rtx4090"]
    assert nearest("h20", cards) == ["h200-sxm", "h200-nvl"]
    assert nearest("a", cards) == ["a2", "a40", "a30"]
    assert nearest("matmull", ["mm", "matmul", "batched matmul", "matrix multiplication"]) == ["matmul"]
    assert nearest("shared_memory_bytes", ["grid", "shared"]) == ["shared"]
    assert nearest("margin", ["m", "n"]) == []  # many words begin with a short name
    assert nearest("nvidia", cards) == []


def test_message_names_the_listing_command():
    assert "`kernrec list gpus`" in str(unknown("GPU", "rtx4091", ["rtx4090"], see="kernrec list gpus"))


def test_quoted_text_cannot_control_a_terminal():
    assert str(UsageError("a\x1b[2Jb\nc \u202e é")) == r"a\x1b[2Jb\nc \u202e é"


def test_short_list_of_names_is_printed_if_none_is_near():
    objectives = ["pareto", "latency", "energy", "edp"]
    error = unknown("objective", "speed", objectives)
    assert (type(error), error.exit_status) == (UsageError, 2)
    assert str(error) == "unknown objective 'speed'; known: pareto, latency, energy, edp"
    assert str(unknown("objective", "enrgy", objectives)).endswith("; did you mean energy?")
    assert str(unknown("objective", "lat", objectives)).endswith("; did you mean latency?")


@pytest.mark.parametrize("function", [kernrec.recommend, kernrec.recommend_many])
@pytest.mark.parametrize(("name", "says"), [
    ("power_limit", "unknown argument 'power_limit'; did you mean power_limit_w?"),
    ("objectiv", "unknown argument 'objectiv'; did you mean objective?"),
    ("M", "unknown matmul dimension 'M'; did you mean m?"),
    ("Batch", "unknown matmul dimension 'Batch'; did you mean batch?"),
    ("mm", "unknown matmul dimension 'mm'; did you mean m?"),
])  # fmt: skip
def test_mistyped_keyword_argument_suggests_the_nearest_argument(function, name, says):
    with pytest.raises(UsageError) as caught:
        function("matmul", "h200", m=1, n=1, k=1, **{name: 1})
    assert str(caught.value) == says


def test_missing_gpu_argument_is_reported():
    with pytest.raises(UsageError, match="gpu is missing; expected: a GPU by name"):
        kernrec.recommend("matmul", m=1, n=1, k=1)
