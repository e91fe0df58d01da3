"""Read the configs that Triton, Inductor, FlashInfer and Helion store.

| file | GPU | versions | entries |
|---|---|---|---|
| Triton `<function>.autotune.json` | compute capability | Triton | all configs, with times |
| Inductor `<hash>.best_config` | compute capability | Triton | one config |
| FlashInfer `autotune_configs.json` | name | FlashInfer, CUDA, cuBLAS, cuDNN | a runner and a tactic per problem |
| Helion `<hash>.best_config` | name | CUDA | one config |

Triton and Inductor store compiled kernels near their caches. The JSON file of each compiled kernel contains the compute
capability, Triton's version and the size of shared memory.
"""

import ast
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from kernrec.interop.json_document import TextFile, numbered, whole_document
from kernrec.interop.triton_results import FAILED, NOT_GIVEN, read_autotune_times
from kernrec.util.light_dataclass import dataclass

_MOST_BYTES = 1 << 16
"""Maximum size of a compiled kernel's JSON file, in bytes."""
_MOST_FILES = 1000
"""Maximum number of compiled kernels to read."""
_MOST_SIZE = 1 << 31
_MOST_KEY = 4000
_TUNING = ("configs_hash", "found_by_coordesc", "time_taken_ms", "triton_cache_hash", "extra_options")
"""Members of Inductor's cache that are not tunables."""


@dataclass(frozen=True)
class TunedEntry:
    """Config that an autotuner stored for a problem."""

    problem: str
    """Name of the kernel, or operator and shapes, as the autotuner writes them."""
    config: Mapping[str, Any]
    times_s: tuple[float, float, float] | None = None
    """Measured (median, 20th percentile, 80th percentile) in seconds, or None if the file has no times."""
    error: str = ""
    """Reason why the config did not run, or an empty string if it ran."""
    smem: int = 0
    """Bytes of shared memory of the compiled kernel, or 0 if unknown."""


@dataclass(frozen=True)
class TunedCache:
    """Contents of an autotuner's file."""

    tool: str
    entries: tuple[TunedEntry, ...]
    gpu: str = ""
    """Name of the GPU according to its driver, or an empty string if the file does not state it."""
    sm: int | None = None
    """Compute capability times 10, or None if unknown."""
    versions: Mapping[str, str] | None = None
    """Versions of the autotuner and its libraries, keyed by name."""


def read_triton_cache(file: TextFile) -> TunedCache:
    kernel, configs = read_autotune_times(file)
    key = file.document()["key"]
    problem = ", ".join(map(str, key if isinstance(key, list) else [key]))[:_MOST_KEY]
    entries = tuple(
        TunedEntry(problem, {name: value for name, value in config.items() if value != NOT_GIVEN}, times,
                   "" if times else FAILED)
        for config, times in configs
    )  # fmt: skip
    folder = file.path.absolute().parent
    about = _compiled(folder.parent.glob(f"*/{kernel}.json")) if kernel else []
    return TunedCache("Triton", entries, sm=_common_sm(about), versions=_triton(about))


def read_inductor_cache(file: TextFile) -> TunedCache:
    document = dict(file.document())
    words = {name: document.pop(name, None) for name in _TUNING}
    if not document or not all(type(value) is int for value in document.values()):
        raise ValueError("it is not a config of Inductor: its tunables are not whole numbers")
    name = words["triton_cache_hash"]
    about: list[Mapping[str, Any]] = []
    if isinstance(name, str) and re.fullmatch(r"\w{1,100}", name):
        root = file.path.absolute().parent.parent
        about = _compiled(path for place in ("triton/*", ".") for path in root.glob(f"{place}/{name}/*.json"))
    kernel = next((each["name"] for each in about if isinstance(each.get("name"), str)), file.path.name)
    smem = next((each["shared"] for each in about if _is_size(each.get("shared"))), 0)
    return TunedCache(
        "Inductor", (TunedEntry(kernel, document, smem=smem),), sm=_common_sm(about), versions=_triton(about)
    )


def read_flashinfer(file: TextFile) -> TunedCache:
    document = file.document()
    if not isinstance(document, dict):
        raise ValueError("expected a JSON object with a key for each problem")
    about = document.get("_metadata")
    about = about if isinstance(about, dict) else {}
    words = {name: str(value) for name, value in about.items() if value not in (None, "unknown")}
    gpu = words.pop("gpu", "")
    versions = {name.removesuffix("_version"): value for name, value in words.items() if name.endswith("_version")}
    problems = [item for item in document.items() if not item[0].startswith("_")]
    return TunedCache("FlashInfer", tuple(numbered(problems, _tactic, "entry")), gpu, versions=versions)


def _tactic(item: tuple[str, Any]) -> TunedEntry:
    key, value = item
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str):
        raise ValueError("expected a runner and its tactic")
    try:
        parts = ast.literal_eval(key) if len(key) <= _MOST_KEY else None
    except (TypeError, ValueError, SyntaxError, RecursionError, MemoryError):
        parts = None
    if not isinstance(parts, tuple) or len(parts) < 3 or not isinstance(parts[2], tuple):
        raise ValueError(f"{key!r:.60} is not an operator, a runner and shapes")
    shapes = [shape for shape in parts[2] if isinstance(shape, tuple) and len(shape) > 1]
    sizes = " ".join("x".join("?" if size == -1 else str(size) for size in shape) for shape in shapes)
    rest = " ".join(map(str, parts[3])) if len(parts) > 3 and isinstance(parts[3], tuple) else ""
    problem = " ".join(filter(None, (str(parts[0]), sizes, rest)))
    error = "" if parts[1] == value[0] else f"its key names the runner {parts[1]!s:.60}"
    return TunedEntry(problem, {"runner": value[0], "tactic": value[1]}, error=error)


def read_helion_cache(file: TextFile) -> TunedCache:
    document = file.document()
    text = document["config"]
    config = whole_document(text, _MOST_BYTES) if isinstance(text, str) else None
    key = document.get("key")
    fields = key.get("fields") if isinstance(key, dict) else None
    if not isinstance(config, dict) or not isinstance(fields, dict):
        raise ValueError("it is not a cache of Helion: expected a config and a key with fields")
    words = {name: str(value) for name, value in fields.items()}
    kernel = words.get("kernel_source_hash", "")[:8]
    problem = f"kernel {kernel}, {words.get('specialization_key', '')}"[:_MOST_KEY]
    versions = {"cuda": words["runtime_name"]} if words.get("runtime_name") else {}
    return TunedCache("Helion", (TunedEntry(problem, config),), words.get("hardware", ""), versions=versions)


def _compiled(paths: Iterable[Path]) -> list[Mapping[str, Any]]:
    """Read the JSON files of compiled kernels. Skip files that cannot be read or that Triton did not write."""
    about: list[Mapping[str, Any]] = []
    for path, _ in zip(paths, range(_MOST_FILES), strict=False):
        try:
            content = json.loads(path.read_text(encoding="utf-8")) if path.stat().st_size <= _MOST_BYTES else None
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(content, dict) and isinstance(content.get("target"), dict):
            about.append(content)
    return about


def _common_sm(about: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the compute capability of the compiled kernels times 10, or None if they differ."""
    targets = [each["target"].get("arch") for each in about if each["target"].get("backend") == "cuda"]
    arch = targets[0] if targets and targets.count(targets[0]) == len(targets) else None
    return arch if _is_size(arch) else None


def _is_size(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < _MOST_SIZE


def _triton(about: Iterable[Mapping[str, Any]]) -> Mapping[str, str]:
    versions = {each["triton_version"] for each in about if isinstance(each.get("triton_version"), str)}
    return {"triton": versions.pop()} if len(versions) == 1 else {}
