"""Test that an audit names missing files and their benefit, and writes files that the engine can read."""

from dataclasses import replace
from pathlib import Path

import pytest

import kernrec
from kernrec.gpu import find_gpu
from kernrec.interop.model_config import Quantization, read_model
from kernrec.interop.moe_configs import read_moe_configs
from kernrec.model.analytical.spread import Estimate
from kernrec.recommender.serving.audit import AuditedFile, ServingAudit, entries_of, serve_audit, setting, write_folder
from kernrec.recommender.serving.compared import Comparer, Comparison, Verdict, candidates
from kernrec.recommender.serving.engine_defaults import KEYS, default_config, entry_for
from kernrec.recommender.serving.engines import Deployment, Kind, tuned_files
from kernrec.recommender.serving.tuned_files import installed_package, shipped_of
from tests.helpers.serving import AWQ, HYBRID, MIXTRAL, QWEN_FP8, SMALL, written

pytestmark = pytest.mark.usefixtures("compiled_here")

TILES = {
    "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3,
}  # fmt: skip


def compared(tokens: int, ratio: float, *, measured: bool = False) -> Comparison:
    source = "measured" if measured else "predicted"
    own, best = (Estimate(latency, latency / 2, latency * 2, source) for latency in (1e-4 * ratio, 1e-4))
    return Comparison(tokens, {**TILES, "BLOCK_SIZE_N": 64}, own, ((TILES, best),), (TILES,))


def audited(folder: Path, engine: str, *made: Comparison, gpu: str = "l40s", kind: int = 0) -> ServingAudit:
    model = read_model(str(written(folder / "model", QWEN_FP8)))
    served = Deployment(engine, find_gpu(gpu), tp=2, triton="3.6.0")
    file = AuditedFile(tuned_files(model, served)[kind], "", False, "", made)
    return ServingAudit(model, served, shipped_of(engine, {"vllm": "0.33.0", "sglang": "0.5.23"}[engine]), (file,), ())


def test_audit_recommends_a_file_only_if_the_whole_interval_is_faster():
    assert compared(1, 1.35).verdict is Verdict.WRITE
    assert compared(1, 1.08).verdict is Verdict.MEASURE
    assert compared(1, 1.02).verdict is Verdict.MEASURE  # the interval is 0.78 to 1.32
    assert compared(1, 1.02, measured=True).verdict is Verdict.LEAVE
    unchanged = compared(1, 1.0)
    own, slower = unchanged.ranked[0][1], Estimate(1.5e-4, 1e-4, 2e-4, "predicted")
    ranked = ((TILES, own), ({**TILES, "num_warps": 8}, slower))
    assert replace(unchanged, own=TILES, ranked=ranked).verdict is Verdict.LEAVE
    assert compared(1, 1.08, measured=True).verdict is Verdict.WRITE
    assert replace(compared(1, 1.0), own_cost=None).verdict is Verdict.WRITE  # the default cannot run


def test_audit_verdict_depends_on_the_largest_gain_in_the_file(tmp_path):
    made = (compared(1, 1.0, measured=True), compared(16, 1.35), compared(64, 1.05))
    (file,) = audited(tmp_path, "vllm", *made).files
    assert file.verdict is Verdict.WRITE
    assert replace(file, comparisons=made[:1]).verdict is Verdict.LEAVE
    assert replace(file, comparisons=()).verdict is Verdict.UNKNOWN
    assert replace(file, taken="DeepGEMM").verdict is Verdict.NOT_USED
    assert replace(file, shipped=file.file.name).verdict is Verdict.SHIPPED


def test_tuned_file_uses_engine_defaults_where_nothing_is_gained(tmp_path):
    audit = audited(tmp_path, "vllm", compared(1, 1.0), compared(16, 1.4), compared(1024, 1.0))
    (file,) = audit.files
    entries = entries_of(file, audit.served)
    assert set(entries) >= set(KEYS)
    assert entries[16] == entries[24] == entries[96] == TILES
    for key in (1, 2, 512, 4096):
        assert entries[key] == default_config("vllm", file.file, key, audit.served.gpu)


@pytest.mark.parametrize(
    ("engine", "place"),
    [("vllm", "E=256,N=256,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128,128].json"),
     ("sglang", "configs/triton_3_6_0/E=256,N=256,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128, 128].json")],
)  # fmt: skip
def test_tuned_files_are_in_the_folders_that_vllm_and_sglang_read(tmp_path, engine, place):
    audit = audited(tmp_path, engine, compared(16, 1.4))
    (path,) = write_folder(audit, tmp_path / "tuned")
    assert path == tmp_path / "tuned" / place
    entries, _ = read_moe_configs(path.read_text(), path.name)
    assert entries[entry_for(entries, 17)] == TILES
    assert setting(audit, tmp_path / "tuned").startswith(
        "export " + {"vllm": "VLLM_TUNED_CONFIG_FOLDER=", "sglang": "SGLANG_MOE_CONFIG_DIR="}[engine]
    )


@pytest.mark.skipif(installed_package("vllm") is not None, reason="vLLM is installed, and Triton is installed")
@pytest.mark.parametrize(
    ("fields", "verdict"), [(HYBRID, Verdict.UNKNOWN), ({**MIXTRAL, "quantization_config": AWQ}, Verdict.NOT_USED)]
)
def test_engine_kernels_are_predicted_only_if_the_engine_is_installed(tmp_path, fields, verdict):
    audit = serve_audit(str(written(tmp_path, fields)), Deployment("vllm", find_gpu("rtx4090")), everything=True)
    (file,) = audit.files
    assert file.verdict is verdict
    assert file.why_none == "not predicted without the engine, whose kernel kernrec would analyze"


def test_file_shipped_by_the_engine_is_not_compared(tmp_path):
    place = str(written(tmp_path, MIXTRAL))
    audit = serve_audit(place, Deployment("vllm", find_gpu("a100"), tp=2), release="0.33.0")
    (file,) = audit.files
    assert file.shipped == "E=8,N=7168,device_name=NVIDIA_A100-SXM4-80GB.json"
    assert file.verdict is Verdict.SHIPPED
    assert not file.comparisons
    assert audit.as_dict()["files"][0]["tokens"] == []


def test_unknown_name_suggests_the_nearest(tmp_path, refuses):
    wanted = {"model": str(written(tmp_path, MIXTRAL)), "gpu": "a100", "engine": "sglang", "compare": False}
    refuses(lambda changed: kernrec.serve_audit(**wanted | changed), [
        {"engine": "vlm"}, {"tp": 0}, {"tokens": (0,)}, {"triton": "2.9"}, {"gpu": "rtx-pro-6001"}, {"lora_rank": 0},
    ])  # fmt: skip


def test_candidates_fit_the_shared_memory_of_the_gpu(tmp_path):
    for fields in (MIXTRAL, QWEN_FP8, {**QWEN_FP8, "quantization_config": {**AWQ, "group_size": 32}}):
        for gpu in ("rtx3090", "h100", "t4"):
            served = Deployment("vllm", find_gpu(gpu))
            for file in tuned_files(read_model(str(written(tmp_path, fields))), served):
                for tokens in (1, 64, 4096):
                    tried = candidates(file, tokens, served.gpu)
                    assert 2 <= len(tried) <= 16, (file.name, tokens)
                    for c in tried:
                        steps = (c["BLOCK_SIZE_M"] + c["BLOCK_SIZE_N"]) * c["BLOCK_SIZE_K"] * (c["num_stages"] - 1)
                        assert steps * (1 if file.weights == "fp8_w8a8" else 2) <= served.gpu.limits.smem_per_block
                        assert not file.quantization.group or file.products[1].depth % c["BLOCK_SIZE_K"] == 0
                        assert file.kind is Kind.EXPERTS or c["BLOCK_SIZE_K"] >= 128


@pytest.mark.every(3)
@pytest.mark.slow
def test_config_cost_includes_both_matmuls(tmp_path):
    pytest.importorskip("triton", reason="needs the extra `triton`")
    served = Deployment("sglang", find_gpu("a100"))
    (file,) = tuned_files(read_model(str(written(tmp_path / "model", SMALL))), served)
    wider = {**TILES, "BLOCK_SIZE_N": 64}
    comparing = Comparer(tmp_path / "own.duckdb", 2)
    both = dict(zip(("narrow", "wide"), comparing.costs(file, served, 4, [TILES, wider]), strict=True))
    ((_, second),) = comparing.costs(replace(file, products=file.products[1:]), served, 4, [TILES])
    integers = replace(file, quantization=Quantization("int8_w8a8", by_row=True), products=file.products[1:])
    ((_, eight_bits),) = comparing.costs(integers, served, 4, [TILES])
    for _, cost in both.values():
        assert 0 < cost.low < cost.value < cost.high
        assert cost.source == "predicted"
    assert second < both["narrow"][1]
    assert 0 < eight_bits < second
