"""Test the judgments of autotuners' files: GPU, versions, limits, times, and duplicate files for a problem."""

import json
from pathlib import Path

import pytest

from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.interop.read_results import config_file, read_tuned_cache
from kernrec.recommender.serving.judgments import Judgment, config_text, judge_files

COMPILED = {"target": {"backend": "cuda", "arch": 90, "warp_size": 32}, "triton_version": "3.8.0", "name": "f"}


def written(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def triton_cache(folder: Path, **changed: list[float]) -> Path:
    """Write the Triton autotune cache of a function `f`, with times in ms per config."""
    times = {"x64": [0.10, 0.099, 0.102], "x128": [0.101, 0.1, 0.103], "x256": [0.2, 0.19, 0.21]}
    times |= {"x512": [float("inf")] * 3} | changed
    rows = [
        [{"kwargs": {"X": int(name[1:])}, "pre_hook": None, "num_warps": 4, "num_stages": 3, "num_ctas": 1,
          "maxnreg": None, "ir_override": None}, values]
        for name, values in times.items()
    ]  # fmt: skip
    return written(folder / "TUNED" / "f.autotune.json", {"key": [4096], "configs_timings": rows})


def inductor_config(folder: Path, **tunables: int) -> Path:
    words = {"configs_hash": "00", "found_by_coordesc": True, "time_taken_ms": 5, "triton_cache_hash": "COMPILED"}
    return written(folder / "ab" / "0123.best_config", {"XBLOCK": 1024, "num_warps": 4, **tunables, **words})


def tactics(path: Path, tactic: object = 3, gpu: str = "NVIDIA GB300") -> Path:
    about = {"flashinfer_version": "0.6.18.post1", "cudnn_version": "92000", "cublas_version": "unknown", "gpu": gpu}
    key = "('fp4_gemm', 'CutlassFp4GemmRunner', (({}, 2560), (2560, 14336), (-1, 320), (), (0,)), ('torch.bfloat16',))"
    entries = {key.format(8): ["CutlassFp4GemmRunner", 4], key.format(16): ["CutlassFp4GemmRunner", tactic]}
    return written(path, {"_metadata": about, **entries})


def helion_config(path: Path, **config: object) -> Path:
    fields = {"hardware": "NVIDIA H100", "runtime_name": "12.8", "kernel_source_hash": "ab" * 32}
    key = {"type": "LooseAutotuneCacheKey", "fields": {**fields, "specialization_key": "((4096, 4096),)"}}
    return written(path, {"config": json.dumps({"block_sizes": [64, 128], "num_warps": 4, **config}), "key": key})


def judgments(*paths: Path, gpu: str, **versions: str) -> list[list[Judgment]]:
    files = judge_files(paths, find_gpu(gpu), versions)
    return [[entry.judgment for entry in judged.entries] for judged in files]


def test_triton_config_with_widely_varying_times_is_doubtful(tmp_path):
    path = triton_cache(tmp_path)
    expected = [Judgment.GOOD, Judgment.GOOD, Judgment.SLOWER, Judgment.WRONG]
    assert judgments(path, gpu="h100") == [expected]
    slower = judge_files([path], find_gpu("h100"), {})[0].entries[2]
    assert (slower.ratio, slower.reason) == (2.0, "2.00 times the fastest")
    noisy = triton_cache(tmp_path / "noisy", x64=[0.10, 0.09, 0.12])
    assert judgments(noisy, gpu="h100")[0][0] is Judgment.DOUBTFUL


def test_gpu_of_a_cache_comes_from_compiled_kernels_in_its_folder(tmp_path):
    written(tmp_path / "COMPILED" / "f.json", COMPILED)
    path = triton_cache(tmp_path)
    assert judgments(path, gpu="h100")[0][0] is Judgment.GOOD
    assert judgments(path, gpu="a100")[0][:3] == [Judgment.OTHER_GPU] * 3
    assert judgments(path, gpu="h100", triton="3.8")[0][0] is Judgment.GOOD
    assert judgments(path, gpu="h100", triton="3.80")[0][0] is Judgment.OTHER_VERSION
    assert judgments(path, gpu="h100", triton="")[0][0] is Judgment.GOOD


@pytest.mark.parametrize("arch", [[], 10**400, -90])
def test_compiled_kernels_with_odd_targets_are_ignored(arch, tmp_path):
    written(tmp_path / "COMPILED" / "f.json", COMPILED | {"target": {"backend": "cuda", "arch": arch}})
    assert read_tuned_cache(config_file(triton_cache(tmp_path))).sm is None


def test_inductor_configs_are_judged_by_compiled_kernel_and_gpu_limits(tmp_path):
    path = inductor_config(tmp_path)
    assert judgments(path, gpu="a100") == [[Judgment.POSSIBLE]]
    written(tmp_path / "triton" / "0" / "COMPILED" / "f.json", {**COMPILED, "shared": 200_000})
    assert judgments(path, gpu="h100") == [[Judgment.POSSIBLE]]
    assert judgments(path, gpu="b200") == [[Judgment.OTHER_GPU]]
    assert judgments(path, gpu="rtx4090") == [[Judgment.WRONG]]
    (entry,) = judge_files([path], find_gpu("rtx4090"), {})[0].entries
    assert (entry.problem, entry.reason) == (
        "f",
        "195 KiB of shared memory, and the NVIDIA GeForce RTX 4090 has 99 KiB",
    )


@pytest.mark.parametrize(
    ("tunables", "reason"),
    [
        ({"num_warps": 64}, "64 warps are more than a block has"),
        ({"num_warps": 6}, "num_warps is 6, not a power of two"),
        ({"num_warps": 0, "maxnreg": 300}, "num_warps is 0, not a power of two"),
        ({"XBLOCK": 1000}, "the tile size 1000 is not a power of two"),
        ({"maxnreg": 200, "num_warps": 16}, "maxnreg is 200; 512 threads can have 128 each"),
    ],
)
def test_config_that_no_gpu_can_run_is_judged_wrong(tunables, reason, tmp_path):
    (entry,) = judge_files([inductor_config(tmp_path, **tunables)], find_gpu("h100"), {})[0].entries
    assert (entry.judgment, entry.reason) == (Judgment.WRONG, reason)


def test_flashinfer_tactics_of_two_tunings_are_compared(tmp_path):
    first, second = tactics(tmp_path / "a" / "t.json"), tactics(tmp_path / "b" / "t.json", [8, 92])
    both = [Judgment.POSSIBLE, Judgment.DOUBTFUL]
    assert judgments(first, second, gpu="gb300") == [both, both]
    entry = judge_files([first, second], find_gpu("gb300"), {})[0].entries[1]
    assert entry.problem == "fp4_gemm 16x2560 2560x14336 ?x320 torch.bfloat16"
    assert config_text(entry.config) == "CutlassFp4GemmRunner 3"
    assert entry.reason == f"{second} has CutlassFp4GemmRunner [8, 92]"
    elsewhere = tactics(tmp_path / "c.json", [8, 92], gpu="NVIDIA B200")
    assert judgments(first, elsewhere, gpu="gb300")[0] == [Judgment.POSSIBLE] * 2


def test_flashinfer_tactics_of_other_gpus_and_versions_are_named(tmp_path):
    path = tactics(tmp_path / "t.json", -1)
    assert judgments(path, gpu="gb300") == [[Judgment.POSSIBLE, Judgment.DOUBTFUL]]
    assert judgments(path, gpu="b200") == [[Judgment.OTHER_GPU] * 2]
    assert judgments(path, gpu="gb300", flashinfer="0.6.18") == [[Judgment.POSSIBLE, Judgment.DOUBTFUL]]
    assert judgments(path, gpu="gb300", cudnn="91900") == [[Judgment.OTHER_VERSION] * 2]
    both = judge_files([path], find_gpu("gb300"), {"cudnn": "91900", "flashinfer": "0.5"})[0].entries
    assert {entry.reason for entry in both} == {"flashinfer 0.6.18.post1"}


def test_helion_configs_are_judged_by_gpu_and_limits(tmp_path):
    path = helion_config(tmp_path / "h.best_config", indexing="tensor_descriptor")
    assert judgments(path, gpu="h100-pcie") == [[Judgment.POSSIBLE]]
    assert judgments(path, gpu="a100") == [[Judgment.WRONG]]
    assert judgments(helion_config(tmp_path / "i.best_config"), gpu="a100") == [[Judgment.OTHER_GPU]]
    odd = helion_config(tmp_path / "j.best_config", block_sizes=[48])
    assert judgments(odd, gpu="h100") == [[Judgment.WRONG]]
    pair = helion_config(tmp_path / "k.best_config", num_stages=2), helion_config(tmp_path / "l.best_config")
    assert judgments(*pair, gpu="h100") == [[Judgment.DOUBTFUL]] * 2


@pytest.mark.parametrize(
    "content",
    [
        {"_metadata": {"flashinfer_version": "1"}, "('a', 'b')": ["b", 1]},
        {"_metadata": {"flashinfer_version": "1"}, "('a', 'b', ((1, 2),))": 3},
        {"_metadata": {"flashinfer_version": "1"}},
        {"_metadata": {"flashinfer_version": "1\x1b[31m"}, "('a', 'b', ((1, 2),))": ["b", 3]},
        {"_metadata": {"flashinfer_version": "1"}, "('a', 'b', ((1, 2),))": ["b\ud800", 3]},
        {"_metadata": {"flashinfer_version": "1"}, "({[]: 1}, 'b', ((1, 2),))": ["b", 3]},
        {"config": "[]", "key": {"fields": {}}},
        {"XBLOCK": "wide", "configs_hash": "00"},
        {"key": [1], "configs_timings": [[{}, [1, 1, 1]]]},
    ],
)
def test_malformed_cache_is_refused_with_its_name(content, write):
    with pytest.raises(UsageError, match=r"cache\.json is not .*") as refusal:
        read_tuned_cache(config_file(write(content, "cache.json")))
    assert "\n" not in str(refusal.value)


def test_helion_cache_whose_second_config_is_a_number_is_refused(write):
    path = write('{"config": "{}", "config": 3, "key": {"fields": {}}}', "cache.json")
    with pytest.raises(UsageError, match=r"cache\.json is not a cache of Helion"):
        read_tuned_cache(config_file(path))
