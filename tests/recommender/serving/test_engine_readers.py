"""Test that the engines' own modules read the files of an audit, and that their defaults match kernrec's. Run `pip
install --no-deps --target engines vllm sglang`, and add `engines` and what their modules import to PYTHONPATH."""

import json
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kernrec.gpu import find_gpu
from kernrec.interop.model_config import read_model
from kernrec.model.analytical.spread import Estimate
from kernrec.recommender.serving.audit import AuditedFile, ServingAudit, entries_of, serve_audit, write_folder
from kernrec.recommender.serving.compared import Comparison
from kernrec.recommender.serving.engine_defaults import KEYS, default_config
from kernrec.recommender.serving.engines import Deployment, Kind, TunedFile, tuned_files
from kernrec.recommender.serving.tuned_files import installed_package, shipped_of
from tests.helpers import engine_reader
from tests.helpers.command import environment
from tests.helpers.serving import AWQ, BY_ROW, HYBRID, MIXTRAL, QWEN_FP8, SMALL, written

MODELS = {
    "mixtral": MIXTRAL,
    "qwen": QWEN_FP8,
    "awq": {**MIXTRAL, "quantization_config": AWQ},
    "by row": {**MIXTRAL, "quantization_config": BY_ROW, "num_local_experts": 16},
}
KNOWN = {"vllm": ("0.33",), "sglang": ("0.5.23",)}
"""Engine releases whose rules kernrec implements."""
BEST = {
    "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 5,
}  # fmt: skip
"""Config that is no engine's default."""


def own_answers(engine: str, requests: list[list[Any]], folder: Path, tuned: Path) -> list[Any]:
    """Return the answers of an engine's own modules. Skip the test if they are not installed."""
    if find_spec(engine) is None or find_spec("torch") is None:
        pytest.skip(f"torch and {engine} are not installed: its own reader did not read the files")
    if not version(engine).startswith(KNOWN[engine]):
        pytest.skip(f"{engine} {version(engine)} with torch: its rules are not known, those of {KNOWN[engine][0]} are")
    (folder / "requests.json").write_text(json.dumps(requests))
    variables = environment(
        VLLM_TUNED_CONFIG_FOLDER=str(tuned), SGLANG_MOE_CONFIG_DIR=str(tuned), CUDA_VISIBLE_DEVICES=""
    )
    command = [sys.executable, engine_reader.__file__, engine, "NVIDIA L40S", str(folder / "requests.json")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip(f"{engine} and torch are installed, and {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr[-2000:]
    return list(json.loads(done.stdout.splitlines()[-1]))


def audit_of(engine: str, fields: dict[str, Any], folder: Path) -> ServingAudit:
    model = read_model(str(written(folder, fields)))
    served = Deployment(engine, find_gpu("l40s"), tp=2, triton=version("triton"))
    cost, twice = Estimate(1e-4, 9e-5, 2e-4, "predicted"), Estimate(2e-4, 1e-4, 4e-4, "predicted")
    files = []
    for file in tuned_files(model, served):
        made = Comparison(16, default_config(engine, file, 16, served.gpu), twice, ((BEST, cost),), (BEST,))
        files.append(AuditedFile(file, "", False, "", (made,)))
    return ServingAudit(model, served, shipped_of(engine), tuple(files), ())


def request_for(file: TunedFile, engine: str) -> list[Any]:
    """Return the request for a file. SGLang counts two packed 4-bit weights as one."""
    first, second = file.products[0], file.products[-1]
    if file.kind is Kind.BLOCK_GEMM:
        return ["product", first.rows, first.depth, file.block]
    stored = second.depth // 2 if engine == "sglang" and file.weights == "int4_w4a16" else second.depth
    by_row = file.quantization.by_row and engine == "sglang"
    return ["experts", first.experts, stored, file.dtype, file.block, by_row]


@pytest.mark.slow
@pytest.mark.parametrize("engine", KNOWN)
def test_engine_modules_read_every_written_file(tmp_path, engine):
    tuned = tmp_path / "tuned"
    audits = [audit_of(engine, fields, tmp_path / name) for name, fields in MODELS.items()]
    paths = [path for audit in audits for path in write_folder(audit, tuned)]
    files = [audited for audit in audits for audited in audit.files]
    assert len(paths) == len(files) > 4
    requests = [["package", str(tuned / "package")], *(request_for(audited.file, engine) for audited in files)]
    _, *read = own_answers(engine, requests, tmp_path, tuned)
    for audited, entries in zip(files, read, strict=True):
        expected = {str(key): dict(config) for key, config in entries_of(audited, audits[0].served).items()}
        assert entries == expected, audited.file.name
        assert entries["16"] == BEST


@pytest.mark.slow
@pytest.mark.parametrize("engine", KNOWN)
def test_engine_default_equals_the_default_that_kernrec_compares_with(tmp_path, engine):
    card = find_gpu("l40s")
    requests, expected = [], []
    for name, fields in MODELS.items():
        model = read_model(str(written(tmp_path / name, fields)))
        (file, *_) = tuned_files(model, Deployment(engine, card, triton=version("triton")))
        first, second = file.products
        for tokens in KEYS:
            sizes = [first.experts, second.depth, first.depth, first.top]
            block = [0, file.quantization.group] if file.quantization.group else file.block
            requests.append(["default", tokens, *sizes, file.dtype, block])
            expected.append(default_config(engine, file, tokens, card))
    assert own_answers(engine, requests, tmp_path, tmp_path) == expected


@pytest.mark.slow
def test_vllm_reads_state_space_files_and_has_the_same_defaults(tmp_path):
    audit = audit_of("vllm", HYBRID, tmp_path / "model")
    paths = write_folder(audit, tmp_path / "tuned")
    (file,) = audit.files
    assert len(paths) == 1
    shapes = [(state, gpu) for state in (16, 32, 64, 128, 256) for gpu in ("l40s", "b200")]
    requests = [["state", 64, 128, "bfloat16"], *(["state default", state, gpu == "b200"] for state, gpu in shapes)]
    entries, *defaults = own_answers("vllm", requests, tmp_path, tmp_path / "tuned")
    assert entries == {str(key): dict(config) for key, config in entries_of(file, audit.served).items()}
    for (state, gpu), (rows, warps) in zip(shapes, defaults, strict=True):
        model = read_model(str(written(tmp_path / "other", {**HYBRID, "mamba_d_state": state})))
        (other,) = tuned_files(model, Deployment("vllm", find_gpu(gpu)))
        assert default_config("vllm", other, 16, find_gpu(gpu)) == {"BLOCK_SIZE_M": rows, "num_warps": warps}


@pytest.mark.slow
@pytest.mark.skipif(installed_package("vllm") is None, reason="vLLM and torch are not installed")
def test_vllm_state_space_kernel_is_compared(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNREC_DB", str(tmp_path / "own.duckdb"))
    small = {**HYBRID, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 64, "mamba_n_groups": 1}
    model, served = str(written(tmp_path / "model", small)), Deployment("vllm", find_gpu("l40s"))
    (file,) = serve_audit(model, served, tokens=(16,)).files
    assert file.kernel.endswith("mamba_ssm:_selective_scan_update_kernel")
    (made,) = file.comparisons
    assert made.own == {"BLOCK_SIZE_M": 8, "num_warps": 4}
    assert made.own_cost is not None
    assert len(made.ranked) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("engine", KNOWN)
@pytest.mark.parametrize(("quantized", "kernel"), [(AWQ, "fused_moe_kernel_gptq_awq"), (BY_ROW, "fused_moe_kernel")])
def test_engine_kernels_of_quantized_experts_are_compared(tmp_path, monkeypatch, engine, quantized, kernel):
    if installed_package(engine) is None:
        pytest.skip(f"{engine} and torch are not installed")
    monkeypatch.setenv("KERNREC_DB", str(tmp_path / "own.duckdb"))
    fields = {**SMALL, "quantization_config": {**quantized, "group_size": 32}}
    model, served = str(written(tmp_path / "model", fields)), Deployment(engine, find_gpu("l40s"))
    (file,) = serve_audit(model, served, tokens=(4,), everything=True).files
    assert file.kernel.endswith(f":{kernel}")
    (made,) = file.comparisons
    assert made.own_cost is not None
    assert len(made.ranked) >= 3
