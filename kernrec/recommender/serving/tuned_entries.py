"""Judge each entry of a tuned vLLM or SGLang file for a GPU: whether it can run, and which GPU it was tuned for.

Times are not predicted here, because the file's name does not state all sizes of its layer. Use `audit.serve_audit`
with the model for times. An entry is wrong if its tiles do not fit the GPU or cannot be compiled.
"""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.interop.moe_configs import read_moe_configs
from kernrec.util.files import read_input
from kernrec.util.human import memory_text
from kernrec.util.light_dataclass import dataclass

FORMATS = "a config.json of a model, its folder, or a file of tuned configs as vLLM and SGLang read it"
_NAME = re.compile(
    r"(?:E=(?P<experts>\d+),)?N=(?P<width>\d+)(?:,K=(?P<depth>\d+))?,device_name=(?P<device>[^,]+?)"
    r"(?:,dtype=(?P<dtype>\w+))?(?:,block_shape=\[(?P<block>\d+, ?\d+)\])?"
    r"(?:,per_channel_quant=True)?(?:_down)?\.json"
)
_TRITON = re.compile(r"triton_(\d+)_(\d+)_(\d+)")
_LARGEST = 1 << 20
_MOST_WARPS = 32


class Judgment(StrEnum):
    """Judgment of an entry."""

    WRONG = "cannot run"
    OTHER_GPU = "tuned for another GPU"
    POSSIBLE = "can run"


@dataclass(frozen=True)
class JudgedEntry:
    """Entry of a tuned file."""

    tokens: int
    config: Mapping[str, int]
    judgment: Judgment
    reason: str
    """Reason why the entry cannot run, or the GPU that it was tuned for; else empty."""


@dataclass(frozen=True)
class JudgedFile:
    """Tuned file with its judged entries."""

    name: str
    gpu: GPU
    tuned_for: str
    """GPU in the file's name, as its driver names it; empty if the name has none."""
    triton: str
    """Release of Triton in the file or its folder; empty if neither states one."""
    entries: tuple[JudgedEntry, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        entries = [
            {"tokens": e.tokens, "config": dict(e.config), "judgment": e.judgment.value, "reason": e.reason or None}
            for e in self.entries
        ]
        about = {"file": self.name, "gpu": self.gpu.name, "tuned_for": self.tuned_for or None}
        return {**about, "triton": self.triton or None, "entries": entries}


def is_tuned_file(place: str) -> bool:
    """Return whether the name of a path is that of a tuned file, not of a model's config."""
    path = Path(place)
    return path.is_file() and path.name != "config.json" and _NAME.fullmatch(path.name) is not None


def judge_file(path: Path, gpu: GPU) -> JudgedFile:
    """Judge each entry of a tuned file.

    Raises:
        UsageError: the file cannot be read, or is not a tuned file.
    """
    text = read_input(path, _LARGEST).decode("utf-8", errors="replace")
    configs, version = read_moe_configs(text, str(path))
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise UsageError(f"{path} has no name of a tuned file; known: {FORMATS}")
    device = match["device"].replace("_", " ")
    other = "" if _is_gpu(device, gpu) else device
    folder = _TRITON.search(str(path.parent))
    triton = version or (".".join(folder.groups()) if folder else "")
    element = 1 if (match["dtype"] or "").startswith(("fp8", "int8_w8a8")) else 2
    block = [int(size) for size in match["block"].split(",")] if match["block"] else []
    entries = tuple(_judged(tokens, config, gpu, element, block, other) for tokens, config in configs.items())
    return JudgedFile(path.name, gpu, device, triton, entries)


def _judged(
    tokens: int, config: Mapping[str, int], gpu: GPU, element: int, block: list[int], other: str
) -> JudgedEntry:
    for reason in _reasons(config, gpu, element, block):
        return JudgedEntry(tokens, config, Judgment.WRONG, reason)
    if other:
        return JudgedEntry(tokens, config, Judgment.OTHER_GPU, other)
    return JudgedEntry(tokens, config, Judgment.POSSIBLE, "")


def _reasons(config: Mapping[str, int], gpu: GPU, element: int, block: list[int]) -> Iterator[str]:
    """Yield the reasons why a GPU cannot run a config."""
    for name in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps", "num_ctas"):
        value = config.get(name, 1)
        if value & (value - 1):
            yield f"{name} is {value}, not a power of two"
    if (warps := config.get("num_warps", 4)) > _MOST_WARPS:
        yield f"{warps} warps are more than a block has"
    if config.get("num_ctas", 1) > 1 and gpu.sm < 90:
        yield f"num_ctas is {config['num_ctas']}, and the {gpu.title} has no clusters"
    if config.get("USE_TMA") and gpu.sm < 90:
        yield f"USE_TMA is set, and the {gpu.title} has no TMA"
    depth = min(config["BLOCK_SIZE_K"], block[1]) if block else config["BLOCK_SIZE_K"]
    stages = max(config.get("num_stages", 3) - (gpu.sm < 90), 1)
    needed = (config["BLOCK_SIZE_M"] + config["BLOCK_SIZE_N"]) * depth * element * stages
    if needed > gpu.limits.smem_per_block:
        yield (
            f"{memory_text(needed)} of shared memory for {stages} stages, and the {gpu.title} has"
            f" {memory_text(gpu.limits.smem_per_block)}"
        )


def _is_gpu(device: str, gpu: GPU) -> bool:
    """Return whether a driver's name belongs to a GPU."""
    try:
        return find_gpu(device).name == gpu.name
    except UsageError:
        return False
