"""Judge for a GPU the entries of tuned files of vLLM, SGLang, Triton, Inductor, FlashInfer and Helion.

The files of Triton, Inductor, FlashInfer and Helion do not contain the kernels, so kernrec predicts no times for them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError
from kernrec.gpu import GPU
from kernrec.interop.json_document import TextFile
from kernrec.interop.read_results import config_file, format_of, read_tuned_cache
from kernrec.interop.tuned_caches import TunedCache, TunedEntry
from kernrec.recommender.serving.tuned_files import (
    FORMATS,
    JudgedEntry,
    JudgedFile,
    Judgment,
    is_engine_file,
    judge_file,
    launch_reasons,
    other_origin,
)
from kernrec.util.human import memory_text

_OF_MODELS = ("architectures", "model_type", "hidden_size", "d_model", "n_embd")
"""Fields that identify a model's `config.json`. Each model has at least one of these fields."""
_REGISTERS = 65536
_MOST_REGISTERS = 255
_WIDE_SPREAD = 0.1
"""Minimum spread of a config's times that makes the fastest config doubtful: the difference of the 80th and 20th
percentiles, as a fraction of the median."""
_INDUCTOR_TILE = re.compile(r"[XYZR]\d?_?BLOCK")
_NOTES = {
    "FlashInfer": "times of tactics cannot be predicted: FlashInfer numbers them differently in each version",
    "Triton": "times come from the tuning; to predict times, use kernrec analyze on a call with this file as `configs`",
}
_OTHER_NOTE = "the file does not contain the kernel: capture the program (kernrec capture) to predict its configs"


def judge_files(paths: Sequence[Path], gpu: GPU, wanted: Mapping[str, str]) -> list[JudgedFile]:
    """Judge each entry of tuned files for a GPU. Entries with different configs for one problem are doubtful.

    Return an empty list if the only path is a model's config.

    Args:
        wanted: versions of the software that will use the files, keyed by its name.

    Raises:
        UsageError: a file cannot be read, or kernrec does not judge files of its autotuner.
    """
    engine_files = [path for path in paths if is_engine_file(path)]
    files = [config_file(path) for path in paths if path not in engine_files and (len(paths) > 1 or _is_file(path))]
    if len(paths) == 1 and files and _is_model(files[0]):
        return []
    judged = [judge_file(path, gpu, wanted) for path in engine_files]
    return judged + _judge_caches(files, gpu, wanted)


def _is_file(path: Path) -> bool:
    return path.name != "config.json" and (path.is_file() or path.suffix in (".json", ".best_config"))


def _is_model(file: TextFile) -> bool:
    """Return whether a file is a model's config. Raise `UsageError` if it is neither such a config nor a tuned file."""
    with suppress(UsageError):
        if format_of(file).tuned is not None:
            return False
    if not any(name in file.text for name in _OF_MODELS):
        raise UsageError(f"{file.path} is neither a model nor a tuned file; expected {FORMATS}")
    return True


def _judge_caches(files: Sequence[TextFile], gpu: GPU, wanted: Mapping[str, str]) -> list[JudgedFile]:
    paths = [file.path for file in files]
    caches = [(file.path, read_tuned_cache(file)) for file in files]
    chosen = [(path, cache, {entry.problem: entry.config for entry in _used_entries(cache)}) for path, cache in caches]
    judged = []
    names = {path: path.name if len({other.name for other in paths}) == len(paths) else str(path) for path in paths}
    for path, cache in caches:
        others = [
            (names[other], configs)
            for other, its, configs in chosen
            if other != path and its.tool == cache.tool and is_same_gpu(its, cache)
        ]
        versions = dict(cache.versions or {})
        origin, best = other_origin(cache.gpu, versions, gpu, wanted, cache.sm), _fastest(cache)
        entries = tuple(_judged(entry, best, gpu, origin, others) for entry in cache.entries)
        note = _NOTES.get(cache.tool, _OTHER_NOTE)
        judged.append(JudgedFile(names[path], gpu, cache.gpu, versions, entries, tool=cache.tool, comment=note))
    return judged


def is_same_gpu(first: TunedCache, second: TunedCache) -> bool:
    """Return whether two files may come from the same GPU model."""
    return first.gpu == second.gpu and (first.sm == second.sm or None in (first.sm, second.sm))


def _fastest(cache: TunedCache) -> TunedEntry | None:
    timed = [entry for entry in cache.entries if entry.times_s]
    return min(timed, key=lambda entry: entry.times_s or (), default=None)


def _used_entries(cache: TunedCache) -> list[TunedEntry]:
    """Return the entries that the autotuner uses: the fastest, or all without an error if no entry has times."""
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
    if wrong := next(_obstacles(entry, gpu), ""):
        judgment, reason = Judgment.WRONG, wrong
    return JudgedEntry(entry.problem, entry.config, judgment, reason, ratio, measured=ratio is not None)


def _obstacles(entry: TunedEntry, gpu: GPU) -> Iterator[str]:
    config = entry.config
    if entry.error:
        yield entry.error
    numbers = {name: value for name, value in config.items() if type(value) is int}
    yield from launch_reasons(numbers, gpu)
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
    if entry.smem > gpu.limits.smem_per_block:
        yield (
            f"{memory_text(entry.smem)} of shared memory, and the {gpu.title} has"
            f" {memory_text(gpu.limits.smem_per_block)}"
        )


def config_text(config: Mapping[str, Any]) -> str:
    """Return a config as text: a runner with its tactic, or tunables with their values."""
    if config.keys() == {"runner", "tactic"}:
        return f"{config['runner']} {config['tactic']}"
    return ", ".join(f"{name} {value}" for name, value in config.items())
