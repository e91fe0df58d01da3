"""List the tuned files of an engine's releases, from the installed package or from a table in kernrec.

`shipped_files.json` contains the names for NVIDIA GPUs in a few releases, with the date of each release's newest file.
`tools/list_engine_files.py` writes it from wheels. Names are grouped by kind, device and the releases that have them;
`*` replaces the device in each name:

    {"vllm": {"dates": {"0.33.0": "2026-11-01", "0.32.0": "2026-10-15"},
              "files": {"experts": {"NVIDIA_L40S": {"0.32.0 0.33.0": ["E=8,N=3584,device_name=*.json"]}}}}}

A name of SGLang begins with the folder of its release of Triton.
"""

import importlib.util
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError, unknown
from kernrec.recommender.serving.engines import Kind
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
"""Folders of the files in an installed package, by kind."""
_DEVICE = re.compile(r"device(?:_name)?=([^,]+?)(?=,|(?:_down)?\.json$)")
_TRITON = re.compile(r"triton_(\d+_\d+_\d+)/")


@dataclass(frozen=True)
class Shipped:
    """Tuned files of one release of an engine."""

    engine: str
    version: str
    source: str
    """Description of where the names come from."""
    names: Mapping[Kind, frozenset[str]]
    """Names below the folder of each kind; SGLang's begin with `triton_3_6_0/`, for example."""
    folder: Path | None = None
    """Folder of the installed package; None if the names come from the table."""

    def place_of(self, kind: Kind, name: str, triton: str) -> tuple[str, bool]:
        """Return the shipped file that the engine reads (or an empty text), and whether it is for this Triton release.

        If SGLang has no file for a release of Triton, it reads the file of another release, newest first.
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
        """Return the releases of Triton that have folders for experts, oldest first."""
        matches = {match[1] for name in self.names.get(Kind.EXPERTS, ()) if (match := _TRITON.match(name))}
        return sorted((m.replace("_", ".") for m in matches), key=numbers)


def release(name: str) -> tuple[int, ...]:
    """Return, for comparisons, the Triton release in a name's folder; empty if there is no such folder."""
    match = _TRITON.match(name)
    return tuple(map(int, match[1].split("_"))) if match else ()


def shipped_of(engine: str, wanted: str | None = None) -> Shipped:
    """Return the tuned files of a release of an engine.

    Args:
        engine: `vllm` or `sglang`.
        wanted: the release; None for the installed one, else the newest of the table.

    Raises:
        UsageError: the release is neither installed nor in the table.
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
        note = f", and {installed[1]} is installed" if installed else " (of an installed engine any release is read)"
        raise UsageError(f"{unknown(f'release of {engine}', wanted, releases)}{note}")
    names = {Kind(kind): frozenset(_of_release(devices, wanted)) for kind, devices in table()[engine]["files"].items()}
    return Shipped(engine, wanted, f"kernrec's list of {engine} {wanted} of {releases[wanted]}", names)


def _of_release(devices: Mapping[str, Mapping[str, Sequence[str]]], wanted: str) -> Iterable[str]:
    for device, by_releases in devices.items():
        for releases, names in by_releases.items():
            if wanted in releases.split():
                yield from (whole(name, device) for name in names)


def numbers(text: str) -> tuple[int, ...]:
    """Return a release such as 3.10.0 as numbers, for comparisons; a part that is not a number counts as 0."""
    return tuple(int(part) if part.isdecimal() else 0 for part in text.split("."))


def installed_package(engine: str) -> tuple[Path, str] | None:
    """Return folder and release of an installed engine without importing it; None if it is not installed."""
    try:
        spec, number = importlib.util.find_spec(engine), version(engine)
    except (ImportError, ValueError, PackageNotFoundError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return (Path(places[0]), number) if places else None


def names_below(folder: Path) -> Iterable[str]:
    """Return the names of a folder's files, including folders of Triton releases."""
    return (path.relative_to(folder).as_posix() for path in folder.rglob("*.json"))


@cache
def table() -> Mapping[str, Mapping[str, Any]]:
    """Return kernrec's table of names, by engine and release."""
    document: Mapping[str, Mapping[str, Any]] = json.loads(TABLE.read_text(encoding="utf-8"))
    return document


def divided(name: str) -> tuple[str, str] | None:
    """Return the device in a file name, and the name with `*` instead; None if the name has no device."""
    match = _DEVICE.search(name)
    return (match[1], name[: match.start(1)] + "*" + name[match.end(1) :]) if match else None


def whole(name: str, device: str) -> str:
    """Return the original file name, given the results of `divided`."""
    return name.replace("*", device, 1)
