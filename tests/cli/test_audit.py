"""Test that `kernrec audit` lists the files it reads, and names the files it cannot use."""

import json
from pathlib import Path

from tests.helpers.command import run_here
from tests.helpers.serving import MIXTRAL, QWEN_FP8, written


def audit(folder: Path, *arguments: object) -> tuple[int, str, str]:
    done = run_here("audit", *arguments, cwd=folder)
    return done.returncode, done.stdout, done.stderr


def test_file_list_fits_80_columns(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    written(tmp_path / "qwen", QWEN_FP8)
    options = ("--gpu", "rtx-pro-6000", "--tp", 2, "--engine", "vllm==0.33.0", "--names")
    status, out, err = audit(tmp_path, "qwen", *options)
    assert status == 0, err
    assert max(map(len, out.splitlines())) <= 80
    assert "E=256,N=256,device_name=*,dtype=fp8_w8a8,block_shape=[128,128]" in out
    assert "* is NVIDIA_RTX_PRO_6000_Blackwell_Workstation_Edition" in out
    assert "only from its own package" in err


def test_json_has_full_names_and_marks_shipped_files(tmp_path):
    written(tmp_path / "mixtral", MIXTRAL)
    options = ("--gpu", "h100", "--engine", "sglang==0.5.23,triton==3.1", "--tp", 2)
    status, out, _ = audit(tmp_path, "mixtral", *options, "--names", "--json")
    (file,) = json.loads(out)["files"]
    assert status == 0
    assert file["name"] == "E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3.json"
    assert file["shipped"] == f"triton_3_1_0/{file['name']}"
    assert file["of_this_triton"]
    assert file["verdict"] == "shipped"


def test_tuned_file_entries_are_checked_against_a_gpu(tmp_path):
    tiles = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4}
    file = tmp_path / "E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3.json"
    entries = {"1": {**tiles, "num_stages": 3}, "2": {**tiles, "num_stages": 64}, "4": {**tiles, "num_ctas": 2}}
    file.write_text(json.dumps(entries))
    on_h100, on_a100 = ["doubtful", "cannot run", "can run"], ["doubtful", "cannot run", "cannot run"]
    for gpu, judgments in [((), on_h100), (("--gpu", "h100"), on_h100), (("--gpu", "a100"), on_a100)]:
        status, out, err = audit(tmp_path, file.name, *gpu, "--json")
        assert status == 0, err
        judged = json.loads(out)
        assert judged["tuned_for"] == "NVIDIA H100 80GB HBM3"
        assert [entry["judgment"] for entry in judged["entries"]] == judgments
        assert all(entry["reason"] for entry in judged["entries"] if entry["judgment"] != "can run")


def test_audit_compares_two_tuned_files_and_counts_configs_by_judgment(tmp_path):
    key = "('fp4_gemm', 'Runner', (({}, 2560), (2560, 14336)), ())"
    for name, tactic in (("a.json", 1), ("b.json", [8, 2])):
        entries = {key.format(8): ["Runner", 4], key.format(16): ["Runner", tactic]}
        about = {"flashinfer_version": "0.6.18", "gpu": "NVIDIA GB300"}
        (tmp_path / name).write_text(json.dumps({"_metadata": about, **entries}))
    status, out, err = audit(tmp_path, "a.json", "b.json", "--gpu", "gb300", "--engine", "flashinfer==0.6")
    assert status == 0, err
    assert "b.json has Runner [8, 2]" in out
    assert out.count("1 can run, 1 doubtful") == 2
    assert "FlashInfer numbers them" in err


def test_audit_of_an_unknown_file_lists_the_accepted_formats(tmp_path):
    (tmp_path / "x.json").write_text('{"x": [1]}')
    status, _, err = audit(tmp_path, "x.json", "--gpu", "h100")
    assert status == 2
    assert "x.json is neither a model nor a tuned file; expected a model's config.json" in err
    assert all(name in err for name in ("autotune.json", ".best_config", "autotune_configs.json"))
