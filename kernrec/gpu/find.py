"""Find a GPU by name or alias. The files in `catalog/` use the units of data sheets, and a `GPU` uses SI units."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError, fold, unknown
from kernrec.gpu.entry import GPU, SmLimits
from kernrec.util.cache import shipped_toml

_CATALOG = Path(__file__).with_name("catalog")
_LEADING_WORDS = ("nvidia", "geforce", "tesla", "rtx")

# Fields of `GPU` that each key of a catalog file sets. The data sheet cited for a key applies to all its fields.
_FIGURES = {
    "chip": ("chip", "sm"),
    "sms": ("sms",),
    "clock_mhz": ("base_clock_hz", "boost_clock_hz", "tensor_clock_hz"),
    "memory": ("memory_bytes", "usable_bytes", "memory_bandwidth", "memory_bus_bits", "memory_rate_hz"),
    "l2_mib": ("l2_bytes",),
    "power_w": ("tdp_w",),
    "power_range": ("power_min_w", "power_max_w"),
    "idle_w": ("idle_w",),
    "f32_tflops": ("datasheet_f32_flops",),
    "tensor_tflops": ("datasheet_tensor_flops",),
    "fma_per_clk_sm": ("fma_per_clk_sm",),
}


_OLD = "its compute capability is older than 7.5, the oldest of the compiler, and it has no recorded baselines"
_INTEGRATED = "integrated GPUs, which share memory and power with a processor, are not supported"
_UNSUPPORTED = (
    (r"(amd|instinct|radeon|rx[5-9]\d{3}|mi\d{2,3}|gfx\d)", "AMD is not supported, only NVIDIA"),
    (r"(intel|arc[ab]?\d|gaudi|datacentergpu|gpumax|pontevecchio)", "Intel is not supported, only NVIDIA"),
    (r"(apple|m[1-5](pro|max|ultra)?$)", "Apple is not supported, only NVIDIA"),
    (r"(jetson|agx|orin|xavier|thor)", _INTEGRATED),
    (
        r"(rubin|verarubin|vr200|r100$)",
        "the compiler does not know its compute capability, and no data sheet is public",
    ),
    (r"(p40|p6$|gtx10\d\d|10[5-8]0|titanx|gtx9\d\d|m40|m60|k40|k80)", _OLD),
    (
        r"l20y",
        "no data sheet is public; describe it in a file (`kernrec list gpus h800` prints one to start from)",
    ),
    (r"(sm|compute)\d+", "it is an architecture; name a GPU, such as a100 for sm_80"),
    (r"all$", "name each GPU, such as h100,l40s"),
)
"""Names of unsupported devices that users try: (regular expression for the result of `fold_gpu`, reason) pairs."""


class UnknownGPU(UsageError):  # noqa: N818 - clearer than UnknownGPUError
    """The catalog has no GPU of this name."""


def find_gpu(name: str) -> GPU:
    """Return the GPU with this catalog name, alias or NVML device name. Case, spaces, `-`, `_` and the leading words
    NVIDIA, GeForce, Tesla and RTX are ignored. A GPU from a file (`gpu_file`) is found only by its exact name. If there
    is no such GPU, raise `UnknownGPU`, which suggests similar names."""
    if (gpu := catalog_gpu(name)) is not None:
        return gpu
    if name in _added:
        return _added[name]
    if isinstance(name, str) and name.lower().endswith(".toml"):
        raise UnknownGPU(f"{name!r} is a GPU file for predictions; here, a GPU of the catalog is needed")
    folded = fold_gpu(name) if isinstance(name, str) else ""
    if reason := next((why for pattern, why in _UNSUPPORTED if re.match(pattern, folded)), None):
        raise UnknownGPU(f"unknown GPU {name!r}: {reason} (`kernrec list gpus` lists them)")
    # List names of GPUs first, so that they are suggested before aliases.
    gpus = {gpu: aliases for group in _file("names").values() for gpu, aliases in group.items()}
    names = [*gpus, *(alias for aliases in gpus.values() for alias in aliases)]
    raise UnknownGPU(str(unknown("GPU", name, names, see="kernrec list gpus")))


def find_gpus(names: str) -> list[GPU]:
    """Return the distinct GPUs in a comma-separated list. Raise `UsageError` if the list is empty or a name is
    unknown."""
    gpus = [find_gpu(name.strip()) for name in names.split(",") if name.strip()]
    if not gpus:
        raise UsageError("--gpu is empty; expected names such as h200,l40s (`kernrec list gpus` lists them)")
    return list({gpu.name: gpu for gpu in gpus}.values())


def catalog_gpu(name: str) -> GPU | None:
    """Return the catalog's GPU with this name, alias or NVML device name, or None."""
    entry = _names().get(fold_gpu(name)) if isinstance(name, str) else None
    return None if entry is None else _load(*entry)


_added: dict[str, GPU] = {}


def add_gpu(gpu: GPU) -> GPU:
    """Register a GPU outside the catalog for `find_gpu`, and return it. If another GPU has the same name, the new name
    ends in a hash, because answers are cached by name."""
    if catalog_gpu(gpu.name) == gpu:
        return gpu
    if catalog_gpu(gpu.name) is not None or _added.setdefault(gpu.name, gpu) != gpu:
        from hashlib import sha256

        gpu = replace(gpu, name=f"{gpu.name}@{sha256(repr(vars(gpu)).encode()).hexdigest()[:8]}")
    return _added.setdefault(gpu.name, gpu)


def all_gpus() -> tuple[GPU, ...]:
    """Return every GPU of the catalog, ordered by generation from Pascal to Blackwell."""
    return tuple(_load(*entry) for entry in dict.fromkeys(_names().values()))


@lru_cache
def fold_gpu(name: str) -> str:
    """Normalize a GPU's name for comparison: lower-case letters and digits, without leading words such as NVIDIA."""
    text = fold(name)
    while word := next((w for w in _LEADING_WORDS if text.startswith(w)), None):
        text = text.removeprefix(word)
    return text


@cache
def _file(stem: str) -> dict[str, Any]:
    return shipped_toml(_CATALOG / f"{stem}.toml")


@cache
def _names() -> Mapping[str, tuple[str, str]]:
    return {
        fold_gpu(name): (generation, gpu)
        for generation, gpus in _file("names").items()
        for gpu, aliases in gpus.items()
        for name in (gpu, *aliases)
    }


@cache
def limits(sm: int) -> SmLimits:
    file = _file("limits")
    if f"sm_{sm}" not in file:
        raise unknown("architecture", f"sm_{sm}", [key for key in file if key.startswith("sm_")])
    own = {key: value for key, value in file[f"sm_{sm}"].items() if isinstance(value, int)}
    return SmLimits(sm=sm, **file["common"] | own, carveouts=tuple(file[f"sm_{sm}"]["carveouts"]))


def arch_rates(sm: int) -> Mapping[str, int]:
    """Return the FMAs per SM and clock outside the tensor cores for a compute capability, keyed by dtype."""
    rates: Mapping[str, int] = _file("limits")[f"sm_{sm}"]["fma_per_clk_sm"]
    return rates


@cache
def _load(generation: str, name: str) -> GPU:
    file = _file(generation)
    entry = file["gpu"][name]
    tensor = file["tensor"][entry["tensor"]]
    limits_file = _file("limits")
    arch = limits_file[f"sm_{entry['sm']}"]

    cited = {key: file["sources"][entry["sources"].get(key, entry["source"])] for key in _FIGURES}
    sources = {figure: cited[key] for key, figures in _FIGURES.items() for figure in figures}
    sources["tensor_fma_per_clk_sm"] = file["sources"][tensor["source"]]
    if "fma_per_clk_sm" not in entry:
        sources["fma_per_clk_sm"] = limits_file["sources"][arch["fma_source"]]
    if "usable_gib" in entry["memory"]:
        sources["usable_bytes"] = "nvidia-smi with ECC on, the default: a sixteenth less than the data sheet's memory"
    sources["limits"] = limits_file["sources"][arch["source"]]
    if "idle" not in entry["power_w"]:
        del sources["idle_w"]

    return gpu_from(
        entry,
        name=name,
        aliases=tuple(_file("names")[generation][name]),
        generation=generation,
        fma_per_clk_sm=arch["fma_per_clk_sm"] | entry.get("fma_per_clk_sm", {}),
        tensor_fma_per_clk_sm=tensor["rates"],
        sources=sources,
    )


def gpu_from(entry: Mapping[str, Any], **fields: Any) -> GPU:
    """Return the GPU that an entry of the catalog or a GPU file describes.

    Args:
        entry: Figures in data-sheet units, keyed as in a GPU file: `title`, `sm`, `clock_mhz` and others.
        fields: Fields of the `GPU` that the entry does not set.
    """
    clock, memory, power = entry["clock_mhz"], entry["memory"], entry["power_w"]
    sm = int(entry["sm"])
    return GPU(
        title=entry["title"], chip=entry["chip"], sm=sm, sms=int(entry["sms"]), base_clock_hz=clock["base"] * 1e6,
        boost_clock_hz=clock["boost"] * 1e6, tensor_clock_hz=clock.get("tensor", clock["boost"]) * 1e6,
        memory_bytes=int(memory["gib"] * 2**30), usable_bytes=int(memory.get("usable_gib", memory["gib"]) * 2**30),
        memory_bandwidth=memory["bandwidth_gbs"] * 1e9,
        memory_bus_bits=int(memory["bus_bits"]), memory_rate_hz=memory["pin_gbps"] * 1e9,
        l2_bytes=int(entry["l2_mib"] * 2**20), tdp_w=float(power["tdp"]), power_min_w=float(power["min"]),
        power_max_w=float(power["max"]), idle_w=float(power["idle"]) if "idle" in power else None,
        datasheet_f32_flops=entry["f32_tflops"] * 1e12,
        datasheet_tensor_flops={dtype: peak * 1e12 for dtype, peak in entry["tensor_tflops"].items()},
        limits=limits(sm), **fields,
    )  # fmt: skip
