"""Test that oversized values in a config.json are refused before anything is allocated for them."""

import json

from kernrec.interop.model_config import read_model

MODEL = {"hidden_size": 4096, "moe_intermediate_size": 1024, "num_local_experts": 8, "num_experts_per_tok": 2}


def test_implausible_model_size_is_refused(tmp_path, refuses):
    def refused(changed: dict[str, int]) -> None:
        (path := tmp_path / "config.json").write_text(json.dumps(MODEL | changed))
        read_model(str(path))

    refuses(refused, [
        {"num_local_experts": 1_000_000, "num_experts_per_tok": 1_000_000},
        {"num_local_experts": 4096, "num_experts_per_tok": 129}, {"hidden_size": 2**20 + 1},
        {"moe_intermediate_size": 10**300},
    ])  # fmt: skip


def test_usual_model_is_read(tmp_path):
    (path := tmp_path / "config.json").write_text(json.dumps(MODEL))
    experts = read_model(str(path)).experts
    assert experts is not None
    assert experts.count == 8
