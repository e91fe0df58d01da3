"""Sizes that a config.json names are bounded before anything is made of them."""

import json
from pathlib import Path

import pytest

from kernrec.errors import UsageError
from kernrec.interop.model_config import read_model

MODEL = {"hidden_size": 4096, "moe_intermediate_size": 1024, "num_local_experts": 8, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"num_local_experts": 1_000_000, "num_experts_per_tok": 1_000_000}, "at most 128 of 4096 are accepted"),
        ({"num_local_experts": 4096, "num_experts_per_tok": 129}, "129 experts a token of 4096; at most 128"),
        ({"hidden_size": 2**20 + 1}, "hidden_size is 1048577; a whole number of at most 1048576 is expected"),
        ({"moe_intermediate_size": 10**300}, "a whole number of at most 1048576"),
    ],
)
def test_a_size_that_no_model_has_is_refused(changed: dict[str, int], says: str, tmp_path: Path) -> None:
    (path := tmp_path / "config.json").write_text(json.dumps(MODEL | changed))
    with pytest.raises(UsageError, match=says):
        read_model(str(path))


def test_a_usual_model_is_read(tmp_path: Path) -> None:
    (path := tmp_path / "config.json").write_text(json.dumps(MODEL))
    experts = read_model(str(path)).experts
    assert experts is not None
    assert experts.count == 8
