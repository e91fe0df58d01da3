"""Judge for a GPU the entries of tuned files of vLLM, SGLang, Triton, Inductor, FlashInfer and Helion.

Times are predicted only for experts of known models, because the file names of vLLM and SGLang do not state all sizes.
The files of the other tools do not describe the kernels, so kernrec predicts no times for them.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.interop.json_document import TextFile
from kernrec.interop.moe_configs import EXPERTS, read_moe_configs
from kernrec.interop.read_results import config_file, format_of, read_tuned_cache
from kernrec.interop.tuned_caches import TunedCache, TunedEntry
from kernrec.recommender.serving.expert_ranking import TUNABLES, ranks, shipped_ranking
from kernrec.recommender.serving.tuned_files import block_of, experts_of, parsed_name
from kernrec.util.files import read_input
from kernrec.util.human import memory_text
from kernrec.util.light_dataclass import dataclass
from kernrec.util.normal import DEVIATIONS

FORMATS = (
    "a model's config.json or its folder, a tuned file with the name that vLLM or SGLang gives it, Triton's"
    " FUNCTION.autotune.json, Inductor's or Helion's .best_config, or FlashInfer's autotune_configs.json"
)
_MODEL_FIELDS = ("architectures", "model_type", "hidden_size", "d_model", "n_embd")
"""Fields that identify a model's `config.json`. Each model has at least one."""
_TRITON_FOLDER = re.compile(r"triton_(\d+)_(\d+)_(\d+)")
_INDUCTOR_TILE = re.compile(r"[XYZR]\d?_?BLOCK")
_MOST_TOKENS = 1 << 16
_LARGEST = 1 << 20
_REGISTERS = 65536
_MOST_REGISTERS = 255
_MOST_WARPS = 32
_WIDE_SPREAD = 0.1
"""Ratio of (80th - 20th percentile) to median of a config's times, above which the fastest config is doubtful."""
_SHARED_NAMES = ("NVIDIA H100", "NVIDIA H200")
"""Device names that Helion (H100) and vLLM (H200) use for all variants of a GPU."""
_NOTES = {
    "": "a file alone is not enough to predict times; audit its model",
    "FlashInfer": "times of tactics cannot be predicted: FlashInfer numbers them differently in each version",
    "Triton": "times come from the tuning; to predict times, use kernrec analyze on a call with this file as `configs`",
}
"""Reason why no times are predicted, keyed by autotuner."""
_OTHER_NOTE = "the file does not contain the kernel: capture the program (kernrec capture) to predict its configs"


class Judgment(StrEnum):
    """Assessment of an entry of a tuned file for a GPU."""

    WRONG = "cannot run"
    GOOD = "as good as the best, within the error"
    DOUBTFUL = "doubtful"
    SLOWER = "slower"
    OTHER_GPU = "tuned for another GPU"
    OTHER_VERSION = "tuned for another version"
    POSSIBLE = "can run"


@dataclass(frozen=True)
class JudgedEntry:
    """Entry of a tuned file, with a judgment for a GPU."""

    problem: int | str
    """Number of tokens, or a text such as the operator and the shapes."""
    config: Mapping[str, Any]
    judgment: Judgment
    reason: str
    """Reason for the judgment, or an empty string."""
    ratio: float | None = None
    """Ratio of the entry's time to the lowest time, or None if times are unknown."""


@dataclass(frozen=True)
class JudgedFile:
    """Tuned file, with a judgment of each entry for the GPU `gpu`."""

    name: str
    gpu: GPU
    tuned_for: str
    versions: Mapping[str, str]
    """Software versions that the file states, keyed by name."""
    entries: tuple[JudgedEntry, ...]
    model: str = ""
    """Model whose layer sizes were used to predict times, or an empty string."""
    tool: str = ""
    """Autotuner that wrote the file, or an empty string for vLLM and SGLang."""

    @property
    def note(self) -> str:
        """Note on how times were predicted, or on why they were not."""
        if self.model:
            return f"predicted for the sizes of {self.model}; audit the model for others"
        return _NOTES.get(self.tool, _OTHER_NOTE)

    def as_dict(self) -> dict[str, Any]:
        problem, ratio = ("problem", "measured_over_best") if self.tool else ("tokens", "predicted_over_best")
        entries = [
            {problem: e.problem, "config": dict(e.config), "judgment": e.judgment.value, "reason": e.reason or None}
            | {ratio: e.ratio}
            for e in self.entries
        ]
        return {
            "file": self.name,
            "gpu": self.gpu.name,
            "tool": self.tool or None,
            "tuned_for": self.tuned_for or None,
            "triton": self.versions.get("triton"),
            "versions": dict(self.versions),
            "assumed_model": self.model or None,
            "entries": entries,
        }


def judge_files(paths: Sequence[Path], gpu: GPU, wanted: Mapping[str, str]) -> list[JudgedFile]:
    """Judge each entry of tuned files for a GPU.

    Return an empty list if the only path is a model's config, which is not a tuned file.

    Args:
        wanted: Versions of the software that will use the files, keyed by name.

    Raises:
        UsageError: A file cannot be read, or its autotuner is not supported.
    """
    of_engines = [path for path in paths if path.is_file() and parsed_name(path.name)]
    files = [config_file(path) for path in paths if path not in of_engines and (len(paths) > 1 or _is_file(path))]
    if len(paths) == 1 and files and _is_model(files[0]):
        return []
    return [_judge_engine_file(path, gpu, wanted) for path in of_engines] + _judge_caches(files, gpu, wanted)


def stated_gpu(paths: Sequence[Path]) -> str:
    """Return the GPU in the names of tuned files of vLLM or SGLang. Raise `UsageError` unless they name one GPU."""
    devices = {parts[1]["device"] for path in paths if (parts := parsed_name(path.name))}
    if len(devices) != 1:
        raise UsageError("--gpu is missing (`kernrec list gpus` lists them)")
    return str(devices.pop()).replace("_", " ")


def _is_file(path: Path) -> bool:
    return path.name != "config.json" and (path.is_file() or path.suffix in (".json", ".best_config"))


def _is_model(file: TextFile) -> bool:
    """Return whether a file is a model's config rather than a tuned file. Raise `UsageError` if it is neither."""
    results = ""
    with suppress(UsageError):
        if (kind := format_of(file)).tuned is not None:
            return False
        results = f"{kind.title}; `kernrec db import` reads its results" if kind.results else ""
    if not any(name in file.text for name in _MODEL_FIELDS):
        raise UsageError(f"{file.path} is {results or f'neither a model nor a tuned file; expected {FORMATS}'}")
    return True


def _judge_engine_file(path: Path, gpu: GPU, wanted: Mapping[str, str]) -> JudgedFile:
    parts = parsed_name(path.name)
    assert parts is not None, "only files with the name of a tuned file are judged"
    members, match = parts
    text = read_input(path, _LARGEST).decode("utf-8", errors="replace")
    configs, version = read_moe_configs(text, str(path), members)
    device, folder = match["device"].replace("_", " "), _TRITON_FOLDER.search(str(path.parent))
    triton = version or (".".join(folder.groups()) if folder else "")
    versions = {"triton": triton} if triton else {}
    origin, source = _other_origin(device, versions, gpu, wanted)
    element = 1 if (match.groupdict().get("dtype") or "").startswith(("fp8", "int8_w8a8")) else 2
    file, model = experts_of(path.name)
    if file is None or not ranks(file, gpu):
        file, model = None, ""

    def judged(tokens: int, config: Mapping[str, int]) -> JudgedEntry:
        if wrong := next(_engine_obstacles(config, gpu, element, block_of(match)), ""):
            return JudgedEntry(tokens, config, Judgment.WRONG, wrong)
        if file is None or not 1 <= tokens <= _MOST_TOKENS or not config.keys() <= set(TUNABLES):
            return JudgedEntry(tokens, config, origin, source)
        ratio, tuned_for = shipped_ranking().over_best(file, tokens, gpu, config), source and f"tuned for {source}"
        if ratio <= math.exp(DEVIATIONS * shipped_ranking().pair_spread):
            return JudgedEntry(tokens, config, Judgment.GOOD, tuned_for, ratio)
        slower = f"{ratio:.2f} times the predicted time of the best"
        return JudgedEntry(tokens, config, Judgment.DOUBTFUL, ", ".join(filter(None, (slower, tuned_for))), ratio)

    return JudgedFile(path.name, gpu, device, versions, tuple(judged(*entry) for entry in configs.items()), model)


def _engine_obstacles(
    config: Mapping[str, int], gpu: GPU, element: int, block: tuple[int, int] | None
) -> Iterator[str]:
    yield from _launch_obstacles(config, gpu, (*EXPERTS, "BLOCK_N", "BLOCK_K"))
    if not config.keys() >= set(EXPERTS):
        return
    depth = min(config["BLOCK_SIZE_K"], block[1]) if block else config["BLOCK_SIZE_K"]
    stages = max(config.get("num_stages", 3) - (gpu.sm < 90), 1)
    needed = (config["BLOCK_SIZE_M"] + config["BLOCK_SIZE_N"]) * depth * element * stages
    yield from _too_much_shared_memory(needed, gpu, f" for {stages} stages")


def _launch_obstacles(config: Mapping[str, int], gpu: GPU, sizes: Sequence[str] = ()) -> Iterator[str]:
    for name in (*sizes, "num_ctas", "num_warps"):
        value = config.get(name, 1)
        if value < 1 or value & (value - 1):
            yield f"{name} is {value}, not a power of two"
    if (warps := config.get("num_warps", 4)) > _MOST_WARPS:
        yield f"{warps} warps are more than a block has"
    if config.get("num_ctas", 1) > 1 and gpu.sm < 90:
        yield f"num_ctas is {config['num_ctas']}, and the {gpu.title} has no clusters"
    if config.get("USE_TMA") and gpu.sm < 90:
        yield f"USE_TMA is set, and the {gpu.title} has no TMA"


def _too_much_shared_memory(needed: int, gpu: GPU, purpose: str = "") -> Iterator[str]:
    if needed > (most := gpu.limits.smem_per_block):
        yield f"{memory_text(needed)} of shared memory{purpose}, and the {gpu.title} has {memory_text(most)}"


def _other_origin(
    device: str, versions: Mapping[str, str], gpu: GPU, wanted: Mapping[str, str], sm: int | None = None
) -> tuple[Judgment, str]:
    """Judge a tuned file's GPU and versions. Return also the GPU or version that differs, or an empty string.

    Args:
        device: Name of the GPU in the file, or an empty string.
        versions: Versions that the file states, keyed by software.
        wanted: Versions that will use the file, keyed by software. An empty version allows every version.
        sm: Compute capability times 10 in the file, or None if unknown.
    """
    if device and not _is_gpu(device, gpu):
        return Judgment.OTHER_GPU, device
    if sm is not None and sm != gpu.sm:
        return Judgment.OTHER_GPU, f"compute capability {sm / 10}"
    for name, number in versions.items():
        expected = wanted.get(name)
        if expected and not f"{number}.".startswith(f"{expected}."):
            return Judgment.OTHER_VERSION, f"{name} {number}"
    return Judgment.POSSIBLE, ""


def _is_gpu(device: str, gpu: GPU) -> bool:
    if device in _SHARED_NAMES:
        return gpu.title.startswith(device)
    try:
        return find_gpu(device).name == gpu.name
    except UsageError:
        return False


def _judge_caches(files: Sequence[TextFile], gpu: GPU, wanted: Mapping[str, str]) -> list[JudgedFile]:
    caches = {file.path: read_tuned_cache(file) for file in files}
    names = {path: path.name if len({other.name for other in caches}) == len(files) else str(path) for path in caches}
    judged = []
    for path, cache in caches.items():
        others = [
            (names[other], {entry.problem: entry.config for entry in _used_entries(its)})
            for other, its in caches.items()
            if other != path
            and (its.tool, its.gpu) == (cache.tool, cache.gpu)
            and (its.sm == cache.sm or None in (its.sm, cache.sm))
        ]
        versions, best = dict(cache.versions or {}), _fastest(cache)
        origin = _other_origin(cache.gpu, versions, gpu, wanted, cache.sm)
        entries = tuple(_judged(entry, best, gpu, origin, others) for entry in cache.entries)
        judged.append(JudgedFile(names[path], gpu, cache.gpu, versions, entries, tool=cache.tool))
    return judged


def _fastest(cache: TunedCache) -> TunedEntry | None:
    timed = [entry for entry in cache.entries if entry.times_s]
    return min(timed, key=lambda entry: entry.times_s or (), default=None)


def _used_entries(cache: TunedCache) -> list[TunedEntry]:
    best = _fastest(cache)
    return [entry for entry in cache.entries if not entry.error] if best is None else [best]


def _judged(
    entry: TunedEntry,
    best: TunedEntry | None,
    gpu: GPU,
    origin: tuple[Judgment, str],
    others: Sequence[tuple[str, Mapping[str, Mapping[str, Any]]]],
) -> JudgedEntry:
    judgment, reason, ratio = Judgment.POSSIBLE, "", None
    is_chosen = not entry.error if best is None else entry == best
    if entry.times_s and best is not None and best.times_s:
        median_s, low_s, high_s = best.times_s
        ratio = entry.times_s[0] / median_s
        judgment = Judgment.GOOD if entry.times_s[1] <= high_s else Judgment.SLOWER
        reason = "" if is_chosen else f"{ratio:.2f} times the fastest"
        if is_chosen and high_s - low_s > _WIDE_SPREAD * median_s:
            judgment, reason = Judgment.DOUBTFUL, f"its runs differ by {(high_s - low_s) / median_s:.0%}"
    elsewhere = [f"{name} has {config_text(configs[entry.problem])}" for name, configs in others
                 if is_chosen and configs.get(entry.problem, entry.config) != entry.config]  # fmt: skip
    if entry.config.get("tactic") == -1:
        judgment, reason = Judgment.DOUBTFUL, "-1 is the default: no tactic was selected"
    if elsewhere:
        judgment, reason = Judgment.DOUBTFUL, ", ".join(elsewhere)
    if origin[0] is not Judgment.POSSIBLE:
        judgment, reason = origin
    if wrong := next(_cache_obstacles(entry, gpu), ""):
        judgment, reason = Judgment.WRONG, wrong
    return JudgedEntry(entry.problem, entry.config, judgment, reason, ratio)


def _cache_obstacles(entry: TunedEntry, gpu: GPU) -> Iterator[str]:
    config = entry.config
    if entry.error:
        yield entry.error
    numbers = {name: value for name, value in config.items() if type(value) is int}
    yield from _launch_obstacles(numbers, gpu)
    tiles = [value for name, value in numbers.items() if _INDUCTOR_TILE.fullmatch(name)]
    sizes = config.get("block_sizes")
    tiles += [size for size in sizes if type(size) is int] if isinstance(sizes, list) else []
    if odd := [size for size in tiles if size < 1 or size & (size - 1)]:
        yield f"the tile size {odd[0]} is not a power of two"
    registers, threads = numbers.get("maxnreg", 1), 32 * max(numbers.get("num_warps", 4), 1)
    if registers > min(_MOST_REGISTERS, _REGISTERS / threads):
        yield f"maxnreg is {registers}; {threads} threads can have {min(_MOST_REGISTERS, _REGISTERS // threads)} each"
    if "tensor_descriptor" in str(config.get("indexing")) and gpu.sm < 90:
        yield f"indexing is tensor_descriptor, and the {gpu.title} has no TMA"
    yield from _too_much_shared_memory(entry.smem, gpu)


def config_text(config: Mapping[str, Any]) -> str:
    if config.keys() == {"runner", "tactic"}:
        return f"{config['runner']} {config['tactic']}"
    return ", ".join(f"{name} {value}" for name, value in config.items())
