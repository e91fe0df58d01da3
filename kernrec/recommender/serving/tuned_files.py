"""List the tuned files that releases of an engine contain, and parse the names of tuned files.

The names come from the installed package of the engine. Names for other releases come from the table
`shipped_files.json`, which `tools/list_engine_files.py` writes. In each name, `*` replaces the device:

    {"vllm": {"dates": {"0.33.0": "2026-11-01", "0.32.0": "2026-10-15"},
              "files": {"experts": {"NVIDIA_L40S": {"0.32.0 0.33.0": ["E=8,N=3584,device_name=*.json"]}}}}}

A name of an SGLang file begins with a folder, which states the release of Triton.
"""

import importlib.util
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError, unknown
from kernrec.interop.model_config import Quantization
from kernrec.interop.moe_configs import EXPERTS, LORA, STATE_SPACE
from kernrec.recommender.serving.engines import Kind, ProductShape, TunedFile
from kernrec.recommender.serving.expert_ranking import LEAST_SM
from kernrec.util.light_dataclass import dataclass

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
    """Tuned files in one release of an engine."""

    engine: str
    version: str
    source: str
    names: Mapping[Kind, frozenset[str]]
    """Relative paths of the files, by type. SGLang's paths state the release of Triton."""
    folder: Path | None = None
    """Folder of the installed package, or None if the engine is not installed."""

    def place_of(self, kind: Kind, name: str, triton: str) -> tuple[str, bool]:
        """Return the relative path of the file that an engine reads for `name`, and whether it is for `triton`.

        The path is empty if the engine has no such file.
        """
        names = self.names.get(kind, frozenset())
        if name in names:
            return name, True
        own = f"triton_{triton.replace('.', '_')}/{name}"
        if own in names:
            return own, True
        others = [n for n in names if n.endswith("/" + name) and _TRITON.match(n)]
        newest = max(others, key=lambda other: numbers(other.partition("/")[0].replace("_", ".")), default="")
        return newest, False

    def triton_folders(self) -> list[str]:
        """Return the releases of Triton for which the engine has files, oldest first."""
        matches = {match[1] for name in self.names.get(Kind.EXPERTS, ()) if (match := _TRITON.match(name))}
        return sorted((m.replace("_", ".") for m in matches), key=numbers)


def shipped_of(engine: str, wanted: str | None = None) -> Shipped:
    """Return the tuned files of the release `wanted` of an engine. Raise `UsageError` for unknown releases.

    None means the installed release, or the newest in kernrec's table if the engine is not installed.
    """
    installed = installed_package(engine)
    if installed is not None and wanted in (None, installed[1]):
        folder, number = installed
        names = {
            kind: frozenset(path.relative_to(folder / place).as_posix() for path in (folder / place).rglob("*.json"))
            for kind, place in FOLDERS[engine].items()
        }
        return Shipped(engine, number, f"the installed {engine} {number}", names, folder)
    releases = table()[engine]["dates"]
    if wanted is None:
        wanted = max(releases, key=numbers)
    if wanted not in releases:
        note = f", and {installed[1]} is installed" if installed else " (for another release, install it)"
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
    """Return a release such as 3.10.0 as a tuple of numbers, which can be compared."""
    return tuple(int(part) if part.isdecimal() else 0 for part in text.split("."))


def installed_package(engine: str) -> tuple[Path, str] | None:
    """Return (folder, release) of an installed engine, or None. The engine is not imported."""
    try:
        spec, number = importlib.util.find_spec(engine), version(engine)
    except (ImportError, ValueError, PackageNotFoundError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return (Path(places[0]), number) if places else None


@cache
def table() -> Mapping[str, Mapping[str, Any]]:
    document: Mapping[str, Mapping[str, Any]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return document


def divided(name: str) -> tuple[str, str] | None:
    """Return (device in a file name, name with `*` instead of the device), or None if there is no device."""
    match = _DEVICE.search(name)
    return (match[1], name[: match.start(1)] + "*" + name[match.end(1) :]) if match else None


def whole(name: str, device: str) -> str:
    """Replace the `*` in a file name by a device."""
    return name.replace("*", device, 1)


_NAMES = {
    EXPERTS: re.compile(
        r"(?:E=(?P<experts>\d+),)?N=(?P<width>\d+)(?:,K=(?P<depth>\d+))?,device_name=(?P<device>[^,]+?)"
        r"(?:,dtype=(?P<dtype>\w+))?(?:,block_shape=\[(?P<block>\d+, ?\d+)\])?"
        r"(?:,per_channel_quant=True)?(?:_down)?\.json"
    ),
    STATE_SPACE: re.compile(r"headdim=\d+,dstate=\d+,device_name=(?P<device>[^,]+),cache_dtype=\w+\.json"),
    LORA: re.compile(r"lora_(?:expand|shrink),K=\d+,R=\d+,S=\d+,device=(?P<device>[^,]+)\.json"),
}
"""Patterns for names of tuned files, keyed by the tuple of tunables that each config in the file must contain."""
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


def parsed_name(name: str) -> tuple[tuple[str, ...], re.Match[str]] | None:
    """Return the key and match of the pattern in `_NAMES` for a tuned file, or None for any other file name."""
    return next(((keys, match) for keys, pattern in _NAMES.items() if (match := pattern.fullmatch(name))), None)


def block_of(match: re.Match[str]) -> tuple[int, int] | None:
    """Return the block size (n, k) in a file's name, or None."""
    if not match.groupdict().get("block"):
        return None
    n, k = match["block"].split(",")
    return int(n), int(k)


def experts_of(name: str) -> tuple[TunedFile | None, str]:
    """Parse the name of a tuned file for experts. Return (tuned file, title of a model that has layers of these sizes).

    Return (None, "") if the sizes match no known model or the data type is not supported.
    """
    match = _NAMES[EXPERTS].fullmatch(name)
    if match is None or not match["experts"] or match["dtype"] not in LEAST_SM:
        return None, ""
    quantization = Quantization(match["dtype"], block_of(match))
    experts, width = int(match["experts"]), int(match["width"])
    for title, (count, whole_width, hidden, top) in MODELS.items():
        if experts == count and whole_width in (width, 2 * width, 4 * width, 8 * width):
            products = ProductShape(2 * width, hidden, count, top), ProductShape(hidden, width, count, top)
            return TunedFile(Kind.EXPERTS, name, "experts", products, match["dtype"], quantization), title
    return None, ""
