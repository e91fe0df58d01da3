"""List the tuned files that releases of an engine contain, and judge whether the entries of a tuned file suit a GPU.

The list comes from the installed package of the engine or, for other releases, from the table `shipped_files.json`,
which `tools/list_engine_files.py` writes from the engines' wheels. In each name, `*` replaces the device:

    {"vllm": {"dates": {"0.33.0": "2026-11-01", "0.32.0": "2026-10-15"},
              "files": {"experts": {"NVIDIA_L40S": {"0.32.0 0.33.0": ["E=8,N=3584,device_name=*.json"]}}}}}

A name of an SGLang file begins with a folder, which states the release of Triton.

The name of a file does not state all sizes of the layer. So `judge_file` predicts times only for 16-bit experts whose
sizes match a known model. For other files, use `audit.serve_audit` with the model.
"""

import importlib.util
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError, unknown
from kernrec.gpu import GPU, find_gpu
from kernrec.interop.model_config import Quantization
from kernrec.interop.moe_configs import EXPERTS, LORA, STATE_SPACE, read_moe_configs
from kernrec.recommender.serving.engines import Kind, ProductShape, TunedFile
from kernrec.recommender.serving.expert_ranking import LEAST_SM, TUNABLES, ranks, shipped_ranking
from kernrec.util.files import read_input
from kernrec.util.human import memory_text
from kernrec.util.light_dataclass import dataclass
from kernrec.util.normal import DEVIATIONS

TABLE = Path(__file__).with_name("shipped_files.json")
FOLDERS = {
    "vllm": {
        Kind.EXPERTS: "model_executor/layers/fused_moe/configs",
        Kind.BLOCK_GEMM: "model_executor/layers/quantization/utils/configs",
        Kind.STATE_SPACE: "model_executor/layers/mamba/ops/configs/selective_state_update",
    },
    "sglang": {
        Kind.EXPERTS: "srt/layers/moe/moe_runner/triton_utils/configs",
        Kind.BLOCK_GEMM: "kernels/ops/gemm/configs",
        Kind.LORA: "kernels/ops/lora/dense/csgmv_configs",
    },
}
_DEVICE = re.compile(r"device(?:_name)?=([^,]+?)(?=,|(?:_down)?\.json$)")
_TRITON = re.compile(r"triton_(\d+_\d+_\d+)/")


@dataclass(frozen=True)
class Shipped:
    """Tuned files that one release of an engine contains."""

    engine: str
    version: str
    source: str
    names: Mapping[Kind, frozenset[str]]
    """Paths of the files, relative to the folder of each kind. SGLang paths state the release of Triton."""
    folder: Path | None = None
    """Folder of the installed package; None if the names come from kernrec's table."""

    def place_of(self, kind: Kind, name: str, triton: str) -> tuple[str, bool]:
        """Return the path of the file that an engine reads for `name`, and whether it is for the release `triton`.

        SGLang may read a file for another release, preferably the newest. The path is relative to the folder of the
        file's kind. It is empty if the engine has no such file.
        """
        names = self.names.get(kind, frozenset())
        if name in names:
            return name, True
        own = f"triton_{triton.replace('.', '_')}/{name}"
        if own in names:
            return own, True
        others = [n for n in names if n.endswith("/" + name) and _TRITON.match(n)]
        return (max(others, key=lambda n: release(n)), False) if others else ("", False)

    def triton_folders(self) -> list[str]:
        """Return the releases of Triton for which the engine has files for experts, oldest first."""
        matches = {match[1] for name in self.names.get(Kind.EXPERTS, ()) if (match := _TRITON.match(name))}
        return sorted((m.replace("_", ".") for m in matches), key=numbers)


def release(name: str) -> tuple[int, ...]:
    """Return the release of Triton in a file's path as a comparable tuple of numbers; empty if there is none."""
    match = _TRITON.match(name)
    return tuple(map(int, match[1].split("_"))) if match else ()


def shipped_of(engine: str, wanted: str | None = None) -> Shipped:
    """Return the tuned files that the release `wanted` of an engine (`vllm` or `sglang`) contains.

    None means the installed release, or the newest in kernrec's table if the engine is not installed.

    Raises:
        UsageError: the release is neither installed nor in kernrec's table.
    """
    installed = installed_package(engine)
    if installed is not None and wanted in (None, installed[1]):
        folder, number = installed
        names = {kind: frozenset(names_below(folder / place)) for kind, place in FOLDERS[engine].items()}
        return Shipped(engine, number, f"the installed {engine} {number}", names, folder)
    releases = table()[engine]["dates"]
    if wanted is None:
        wanted = max(releases, key=numbers)
    if wanted not in releases:
        note = f", and {installed[1]} is installed" if installed else " (kernrec reads any release that is installed)"
        raise UsageError(f"{unknown(f'release of {engine}', wanted, releases)}{note}")
    names = {
        Kind(kind): frozenset(
            whole(name, device)
            for device, by_releases in devices.items()
            for releases, shipped in by_releases.items()
            if wanted in releases.split()
            for name in shipped
        )
        for kind, devices in table()[engine]["files"].items()
    }
    return Shipped(engine, wanted, f"kernrec's list of {engine} {wanted} of {releases[wanted]}", names)


def numbers(text: str) -> tuple[int, ...]:
    """Return a release such as 3.10.0 as a comparable tuple of numbers. A part that is not a number counts as 0."""
    return tuple(int(part) if part.isdecimal() else 0 for part in text.split("."))


def installed_package(engine: str) -> tuple[Path, str] | None:
    """Return the folder and the release of an installed engine without importing it; None if it is not installed."""
    try:
        spec, number = importlib.util.find_spec(engine), version(engine)
    except (ImportError, ValueError, PackageNotFoundError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return (Path(places[0]), number) if places else None


def names_below(folder: Path) -> Iterable[str]:
    """Return the paths of all .json files below a folder, relative to the folder."""
    return (path.relative_to(folder).as_posix() for path in folder.rglob("*.json"))


@cache
def table() -> Mapping[str, Mapping[str, Any]]:
    document: Mapping[str, Mapping[str, Any]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return document


def divided(name: str) -> tuple[str, str] | None:
    """Return the device in a file name, and the name with `*` in its place, or None if the name states no device."""
    match = _DEVICE.search(name)
    return (match[1], name[: match.start(1)] + "*" + name[match.end(1) :]) if match else None


def whole(name: str, device: str) -> str:
    """Put a device into the pattern of a file name from `divided`."""
    return name.replace("*", device, 1)


FORMATS = (
    "a model's config.json or its folder, a tuned file with the name that vLLM or SGLang gives it, Triton's"
    " FUNCTION.autotune.json, Inductor's or Helion's .best_config, or FlashInfer's autotune_configs.json"
)
_NAME = re.compile(
    r"(?:E=(?P<experts>\d+),)?N=(?P<width>\d+)(?:,K=(?P<depth>\d+))?,device_name=(?P<device>[^,]+?)"
    r"(?:,dtype=(?P<dtype>\w+))?(?:,block_shape=\[(?P<block>\d+, ?\d+)\])?"
    r"(?:,per_channel_quant=True)?(?:_down)?\.json"
)
_OTHER_NAMES = {
    STATE_SPACE: re.compile(r"headdim=\d+,dstate=\d+,device_name=(?P<device>[^,]+),cache_dtype=\w+\.json"),
    LORA: re.compile(r"lora_(?:expand|shrink),K=\d+,R=\d+,S=\d+,device=(?P<device>[^,]+)\.json"),
}
"""Patterns for names of other tuned files, keyed by the keys that each config in such a file must have."""
_TRITON_FOLDER = re.compile(r"triton_(\d+)_(\d+)_(\d+)")
MODELS: Mapping[str, tuple[int, int, int, int]] = {
    "Mixtral 8x7B": (8, 14336, 4096, 2),
    "Mixtral 8x22B": (8, 16384, 6144, 2),
    "DBRX": (16, 10752, 6144, 4),
    "Jamba 1.5 Mini": (16, 14336, 4096, 2),
    "Llama 4 Scout": (16, 8192, 5120, 1),
    "DeepSeek-V2-Lite": (64, 1408, 2048, 6),
    "DeepSeek-V2": (160, 1536, 5120, 6),
    "DeepSeek-V3": (256, 2048, 7168, 8),
    "GLM-4.5-Air": (128, 1408, 4096, 8),
    "Kimi K2": (384, 2048, 7168, 8),
    "MiniMax-M2": (256, 1536, 3072, 8),
    "Qwen2-57B-A14B": (64, 2560, 3584, 8),
    "OLMoE": (64, 1024, 2048, 8),
    "Qwen3-30B-A3B": (128, 768, 2048, 8),
    "Qwen3-235B-A22B": (128, 1536, 4096, 8),
    "Llama 4 Maverick": (128, 8192, 5120, 1),
    "Qwen3-Next-80B-A3B": (512, 512, 2048, 10),
    "Qwen3-Coder-480B-A35B": (160, 2560, 6144, 8),
}
"""Public models with their number of experts, width of an expert, hidden size, and experts per token."""
_MOST_TOKENS = 1 << 16
_LARGEST = 1 << 20
_SHARED_NAMES = ("NVIDIA H100", "NVIDIA H200")
"""Device names that Helion (H100) and vLLM (H200) use for all variants of a GPU."""
_MOST_WARPS = 32


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
    """Entry of a tuned file, and how well it suits a GPU."""

    problem: int | str
    """Number of tokens in files of vLLM and SGLang. In other files, a text such as the operator and the shapes."""
    config: Mapping[str, Any]
    judgment: Judgment
    reason: str
    """Reason why the entry cannot run or is doubtful, or the GPU or version it was tuned for. May be empty."""
    ratio: float | None = None
    """Ratio of the entry's time to the lowest time of any config; None if times are not known."""
    measured: bool = False
    """Whether `ratio` comes from times in the file, not from a prediction."""


@dataclass(frozen=True)
class JudgedFile:
    """Tuned file, and how well each of its entries suits the GPU `gpu`."""

    name: str
    gpu: GPU
    tuned_for: str
    versions: Mapping[str, str]
    """Software versions that the file or its folder states, keyed by name (`triton`, `flashinfer`, ...)."""
    entries: tuple[JudgedEntry, ...]
    model: str = ""
    """Model whose layer sizes were assumed to predict times; empty if times were not predicted."""
    tool: str = ""
    """Autotuner that wrote the file; empty for files of vLLM and SGLang."""
    comment: str = ""
    """Note on why no times are predicted; empty if `model` is set."""

    @property
    def note(self) -> str:
        """Note on the layer sizes that the predictions assume, or on why no times are predicted."""
        if self.model:
            return f"predicted for the sizes of {self.model}; audit the model for others"
        return self.comment or "a file alone is not enough to predict times; audit its model"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
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


def is_engine_file(path: Path) -> bool:
    """Return whether a path is a file that is named like a tuned file of vLLM or SGLang."""
    return path.is_file() and any(name.fullmatch(path.name) for name in (_NAME, *_OTHER_NAMES.values()))


def judge_file(path: Path, gpu: GPU, wanted: Mapping[str, str] | None = None) -> JudgedFile:
    """Judge whether a GPU can run each entry of a tuned file of vLLM or SGLang. Predict its time if possible.

    `wanted` contains the versions of the software that will use the file, keyed by its name.

    Raises:
        UsageError: the file cannot be read, or is not a tuned file.
    """
    text = read_input(path, _LARGEST).decode("utf-8", errors="replace")
    needed, match = EXPERTS, _NAME.fullmatch(path.name)
    for members, name in _OTHER_NAMES.items():
        if other_match := name.fullmatch(path.name):
            needed, match = members, other_match
    configs, version = read_moe_configs(text, str(path), needed)
    if match is None:
        raise UsageError(f"{path} is not named like a tuned file; expected {FORMATS}")
    device = match["device"].replace("_", " ")
    folder = _TRITON_FOLDER.search(str(path.parent))
    triton = version or (".".join(folder.groups()) if folder else "")
    versions = {"triton": triton} if triton else {}
    other = other_origin(device, versions, gpu, wanted or {})
    stated = match.groupdict()
    element = 1 if (stated.get("dtype") or "").startswith(("fp8", "int8_w8a8")) else 2
    block = [int(size) for size in stated["block"].split(",")] if stated.get("block") else []
    file, model = experts_of(path.name)
    if file is None or not ranks(file, gpu):
        file, model = None, ""
    entries = tuple(_judged(tokens, config, gpu, element, block, other, file) for tokens, config in configs.items())
    return JudgedFile(path.name, gpu, device, versions, entries, model)


def experts_of(name: str) -> tuple[TunedFile | None, str]:
    """Return the tuned file for experts that a file name describes, and the model whose layer sizes are assumed.

    Return (None, "") unless the file is for experts in 16 bits or fp8 whose sizes match a known model.
    """
    match = _NAME.fullmatch(name)
    if match is None or not match["experts"] or match["dtype"] not in LEAST_SM:
        return None, ""
    n, k = match["block"].split(",") if match["block"] else (0, 0)
    quantization = Quantization(match["dtype"], (int(n), int(k)) if match["block"] else None)
    experts, width = int(match["experts"]), int(match["width"])
    for title, (count, whole_width, hidden, top) in MODELS.items():
        if experts == count and whole_width in (width, 2 * width, 4 * width, 8 * width):
            products = ProductShape(2 * width, hidden, count, top), ProductShape(hidden, width, count, top)
            return TunedFile(Kind.EXPERTS, name, "experts", products, match["dtype"], quantization), title
    return None, ""


def _judged(
    tokens: int,
    config: Mapping[str, int],
    gpu: GPU,
    element: int,
    block: list[int],
    other: tuple[Judgment, str],
    file: TunedFile | None,
) -> JudgedEntry:
    for reason in _reasons(config, gpu, element, block):
        return JudgedEntry(tokens, config, Judgment.WRONG, reason)
    tuned_for = f"tuned for {other[1]}" if other[1] else ""
    if file is not None and 1 <= tokens <= _MOST_TOKENS and config.keys() <= set(TUNABLES):
        ratio = shipped_ranking().over_best(file, tokens, gpu, config)
        if ratio <= math.exp(DEVIATIONS * shipped_ranking().pair_spread):
            return JudgedEntry(tokens, config, Judgment.GOOD, tuned_for, ratio)
        slower = f"{ratio:.2f} times the predicted time of the best"
        return JudgedEntry(tokens, config, Judgment.DOUBTFUL, ", ".join(filter(None, (slower, tuned_for))), ratio)
    return JudgedEntry(tokens, config, *other)


def launch_reasons(config: Mapping[str, int], gpu: GPU) -> Iterator[str]:
    """Yield each reason why a GPU cannot launch a Triton kernel with the options of a config."""
    for name in ("num_ctas", "num_warps"):
        value = config.get(name, 1)
        if value < 1 or value & (value - 1):
            yield f"{name} is {value}, not a power of two"
    if (warps := config.get("num_warps", 4)) > _MOST_WARPS:
        yield f"{warps} warps are more than a block has"
    if config.get("num_ctas", 1) > 1 and gpu.sm < 90:
        yield f"num_ctas is {config['num_ctas']}, and the {gpu.title} has no clusters"
    if config.get("USE_TMA") and gpu.sm < 90:
        yield f"USE_TMA is set, and the {gpu.title} has no TMA"


def _reasons(config: Mapping[str, int], gpu: GPU, element: int, block: list[int]) -> Iterator[str]:
    for name in (*EXPERTS, "BLOCK_N", "BLOCK_K"):
        value = config.get(name, 1)
        if value & (value - 1):
            yield f"{name} is {value}, not a power of two"
    yield from launch_reasons(config, gpu)
    if not config.keys() >= set(EXPERTS):
        return
    depth = min(config["BLOCK_SIZE_K"], block[1]) if block else config["BLOCK_SIZE_K"]
    stages = max(config.get("num_stages", 3) - (gpu.sm < 90), 1)
    needed = (config["BLOCK_SIZE_M"] + config["BLOCK_SIZE_N"]) * depth * element * stages
    if needed > gpu.limits.smem_per_block:
        yield (
            f"{memory_text(needed)} of shared memory for {stages} stages, and the {gpu.title} has"
            f" {memory_text(gpu.limits.smem_per_block)}"
        )


def other_origin(
    device: str, versions: Mapping[str, str], gpu: GPU, wanted: Mapping[str, str], sm: int | None = None
) -> tuple[Judgment, str]:
    """Return how the origin of a tuned file differs from `gpu` and `wanted`: a judgment, and the file's GPU or version.

    Return (`Judgment.POSSIBLE`, "") if it does not differ.

    Args:
        device: name of the GPU in the file; empty if the file does not state it.
        versions: versions that the file states, keyed by software.
        wanted: versions that will use the file, keyed by software. An empty version allows every version.
        sm: compute capability times 10 that the file was tuned for, or None if unknown.
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
    """Return whether `gpu` may be the device that a tuned file names."""
    if device in _SHARED_NAMES:
        return gpu.title.startswith(device)
    try:
        return find_gpu(device).name == gpu.name
    except UsageError:
        return False
