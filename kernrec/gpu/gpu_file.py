"""Read the description of a GPU that is not in the catalog from a TOML file in data-sheet units."""

import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError, file_errors, unknown
from kernrec.gpu.entry import GPU
from kernrec.gpu.find import add_gpu, arch_rates, catalog_gpu, gpu_from
from kernrec.util.files import open_input
from kernrec.util.human import short

_LARGEST_BYTES = 65_536
_LONGEST = 80
_AGREES = 0.05
"""Maximum relative difference between a stated peak or bandwidth and the value that other figures imply."""

GENERATIONS = {
    60: "pascal", 61: "pascal", 70: "volta", 75: "turing", 80: "ampere", 86: "ampere", 89: "ada", 90: "hopper",
    100: "blackwell", 103: "blackwell", 120: "blackwell", 121: "blackwell",
}  # fmt: skip
RATES = ("f64", "f32", "f16", "bf16", "i32", "i32_add")
TENSOR_RATES = ("f64", "f16", "bf16", "tf32", "fp8", "fp4", "i8")

_Range = tuple[str, float, float]
_RATE = "FMA per clock and SM"
_FIGURES: dict[str, _Range] = {
    "sm": ("", 60, 121), "sms": ("", 1, 1024), "l2_mib": ("MiB", 0.1, 4096), "f32_tflops": ("TFLOP/s", 0.01, 10_000),
}  # fmt: skip
"""Unit, minimum and maximum of each top-level figure of a file."""
_TABLES: dict[str, dict[str, _Range]] = {
    "clock_mhz": dict.fromkeys(("base", "boost", "tensor"), ("MHz", 100, 5000)),
    "memory": {
        "gib": ("GiB", 0.5, 4096), "bus_bits": ("bits", 32, 65_536), "pin_gbps": ("Gbit/s", 0.1, 100),
        "bandwidth_gbs": ("GB/s", 1, 100_000), "usable_gib": ("GiB", 0.5, 4096),
    },
    "power_w": dict.fromkeys(("tdp", "min", "max", "idle"), ("W", 1, 5000)),
    "tensor_tflops": dict.fromkeys(TENSOR_RATES, ("TFLOP/s", 0.01, 1_000_000)),
    "fma_per_clk_sm": dict.fromkeys(RATES, (_RATE, 1, 1024)),
    "tensor_fma_per_clk_sm": dict.fromkeys(TENSOR_RATES, (_RATE, 1, 262_144)),
}  # fmt: skip
_OPTIONAL = {
    "clock_mhz": ("tensor",), "memory": ("usable_gib",), "power_w": ("idle",), "tensor_tflops": TENSOR_RATES,
    "fma_per_clk_sm": RATES, "tensor_fma_per_clk_sm": TENSOR_RATES,
    "": ("tensor_tflops", "fma_per_clk_sm", "tensor_fma_per_clk_sm"),
}  # fmt: skip
_WHOLE = ("", "bits", _RATE)
_TEXTS = ("name", "title", "chip")


def read_gpu_file(path: Path) -> GPU:
    """Return the GPU that a file describes, and register the GPU for `find_gpu` in this process. Raise `UsageError` if
    the file cannot be read, or a figure is missing, impossible or inconsistent with other figures."""
    with file_errors(path, "read"), open_input(path) as file:
        content = file.read(_LARGEST_BYTES + 1)
    try:
        return add_gpu(gpu_of(_parsed(content), f"GPU file {path.name}"))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def gpu_name(gpu: str | Path | GPU) -> str:
    """Return a GPU's name for `find_gpu`. Register the GPU first if `gpu` is a GPU file or a `GPU`."""
    if isinstance(gpu, Path):
        return read_gpu_file(gpu).name
    return add_gpu(gpu).name if isinstance(gpu, GPU) else gpu


def gpu_names(text: str) -> str:
    """Replace each GPU file in a comma-separated list by the name of its GPU."""
    if ".toml" not in text.lower():
        return text
    if os.path.isfile(text):
        return read_gpu_file(Path(text)).name  # The name of the file may contain a comma.
    parts = (part.strip() for part in text.split(","))
    return ",".join(read_gpu_file(Path(part)).name if part.lower().endswith(".toml") else part for part in parts)


def _parsed(content: bytes) -> dict[str, Any]:
    import tomllib

    if len(content) > _LARGEST_BYTES:
        raise UsageError(f"the file is larger than {_LARGEST_BYTES} bytes")
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError:
        raise UsageError("not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not TOML: {short(str(error))}") from None


def gpu_of(data: Mapping[str, Any], source: str) -> GPU:
    """Return the GPU that a parsed GPU file describes. `source` states where the figures come from. Raise `UsageError`
    if a figure is missing, impossible or inconsistent with other figures."""
    _check_names("", data, (*_TEXTS, *_FIGURES, *_TABLES), _OPTIONAL[""])
    texts = {name: _text(name, data[name]) for name in _TEXTS}
    figures = {name: _figure(name, data[name], span) for name, span in _FIGURES.items()}
    tables = {name: _table(name, data.get(name, {}), spans) for name, spans in _TABLES.items()}
    sm = int(figures["sm"])
    if sm not in GENERATIONS:
        raise UsageError(f"sm is {sm}; known compute capabilities are {', '.join(map(str, GENERATIONS))}")
    clock, power = tables["clock_mhz"], tables["power_w"]
    ascending = {"base": clock["base"], "tensor": clock.get("tensor", clock["boost"]), "boost": clock["boost"]}
    _ascending("clock_mhz", ascending, "MHz")
    memory = tables["memory"]
    _ascending("memory", {name: memory[name] for name in ("usable_gib", "gib") if name in memory}, "GiB")
    _ascending("power_w", {name: power[name] for name in ("idle", "min", "tdp", "max") if name in power}, "W")
    figures_of = set(GPU.__annotations__) - {"name", "title", "aliases", "generation", "sources"}
    gpu = gpu_from(
        {**texts, **figures, **tables},
        name=texts["name"],
        aliases=(),
        generation=GENERATIONS[sm],
        fma_per_clk_sm={**arch_rates(sm), **{name: int(rate) for name, rate in tables["fma_per_clk_sm"].items()}},
        tensor_fma_per_clk_sm={name: int(rate) for name, rate in tables["tensor_fma_per_clk_sm"].items()},
        sources=dict.fromkeys(sorted(figures_of), source),
    )
    _check_consistent(gpu, figures["f32_tflops"], tables)
    return gpu


def _check_consistent(gpu: GPU, f32_tflops: float, tables: Mapping[str, Mapping[str, float]]) -> None:
    if catalog_gpu(gpu.name) is not None:
        raise UsageError(f"name is {gpu.name!r}, already in the catalog (--gpu {gpu.name}); choose another name")
    boost = gpu.boost_clock_hz / 1e6
    rate = gpu.fma_per_clk_sm["f32"]
    shown = f"{gpu.sms} SMs x {rate} FMA x 2 x {boost:g} MHz"
    _agrees("f32_tflops", f32_tflops, gpu.peak_flops("f32") / 1e12, "TFLOP/s", shown)
    for dtype, stated in tables["tensor_tflops"].items():
        if dtype not in gpu.tensor_fma_per_clk_sm:
            raise UsageError(f"tensor_tflops has {dtype}, but tensor_fma_per_clk_sm does not; give the rate as well")
        # Data sheets use the boost clock for tensor peaks of f64, and `tensor_clock_hz` for other tensor peaks.
        clock_hz = gpu.boost_clock_hz if dtype == "f64" else gpu.tensor_clock_hz
        rate = gpu.tensor_fma_per_clk_sm[dtype]
        shown = f"{gpu.sms} SMs x {rate} FMA x 2 x {clock_hz / 1e6:g} MHz"
        _agrees(f"tensor_tflops {dtype}", stated, 2.0 * gpu.sms * rate * clock_hz / 1e12, "TFLOP/s", shown)
    memory = tables["memory"]
    implied = memory["bus_bits"] / 8 * memory["pin_gbps"]
    shown = f"{memory['bus_bits']:g} bits / 8 x {memory['pin_gbps']:g} Gbit/s"
    _agrees("memory bandwidth_gbs", memory["bandwidth_gbs"], implied, "GB/s", shown)


def _agrees(name: str, stated: float, implied: float, unit: str, shown: str) -> None:
    if abs(stated / implied - 1) > _AGREES:
        raise UsageError(
            f"{name} is {stated:g} {unit}, but {shown} are {implied:.4g} {unit}; they may differ by at most"
            f" {_AGREES:.0%}"
        )


def _check_names(table: str, data: Any, accepted: tuple[str, ...], optional: tuple[str, ...]) -> None:
    inside = f"[{table}] " if table else ""
    if not isinstance(data, Mapping):
        raise UsageError(f"{table} is {short(data)}; expected a table of {', '.join(accepted)}")
    for name in data:
        if name not in accepted:
            raise unknown(f"GPU property{f' in [{table}]' if table else ''}", str(name)[:_LONGEST], accepted)
    if missing := [name for name in accepted if name not in data and name not in optional]:
        raise UsageError(f"missing {inside}{', '.join(missing)}; `kernrec list gpus rtx4090` prints a complete file")


def _table(table: str, data: Any, spans: Mapping[str, _Range]) -> dict[str, float]:
    _check_names(table, data, tuple(spans), _OPTIONAL.get(table, ()))
    return {name: _figure(f"{table} {name}", data[name], spans[name]) for name in spans if name in data}


def _figure(shown: str, value: Any, span: _Range) -> float:
    unit, least, largest = span
    of_unit = f" {unit}" if unit else ""
    whole = unit in _WHOLE
    text = f"an integer of {value.bit_length()} bits" if isinstance(value, int) and abs(value) >> 64 else short(value)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or value != value:
        expected = "a whole number" if whole else "a number"
        raise UsageError(f"{shown} is {text}; expected {expected} of {least:g} to {largest:g}{of_unit}")
    if not least <= value <= largest:
        nearest = min(max(value, least), largest)
        expected = f"{least:g} to {largest:g}{of_unit}; the nearest valid value is {nearest:g}"
        raise UsageError(f"{shown} is {text}; expected {expected}")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST or not value.isprintable():
        raise UsageError(f"{name} is {short(value)}; expected text of 1 to {_LONGEST} printable characters")
    if name == "name" and not all(c.isascii() and (c.isalnum() or c in "._-") for c in value):
        raise UsageError(f"name is {short(value)}; letters, digits, '.', '_' and '-' are accepted, such as my-gpu")
    return value


def _ascending(table: str, figures: Mapping[str, float], unit: str) -> None:
    names = list(figures)
    for low, high in pairwise(names):
        if figures[low] > figures[high]:
            raise UsageError(
                f"{table} {low} ({figures[low]:g} {unit}) is above {high} ({figures[high]:g} {unit}); expected"
                f" {' <= '.join(names)}"
            )


def gpu_text(gpu: GPU, name: str) -> str:
    """Return the text of a commented GPU file for `read_gpu_file`. `name` must not be in the catalog."""

    def table(figures: Mapping[str, float | None]) -> str:
        return "{ " + ", ".join(f"{key} = {value:.10g}" for key, value in figures.items() if value is not None) + " }"

    tensor_clock = None if gpu.tensor_clock_hz == gpu.boost_clock_hz else gpu.tensor_clock_hz / 1e6
    usual = arch_rates(gpu.sm)
    own_rates = {key: rate for key, rate in gpu.fma_per_clk_sm.items() if usual.get(key) != rate}
    clocks = {"base": gpu.base_clock_hz / 1e6, "boost": gpu.boost_clock_hz / 1e6, "tensor": tensor_clock}
    memory = {
        "gib": gpu.memory_bytes / 2**30, "bus_bits": gpu.memory_bus_bits, "pin_gbps": gpu.memory_rate_hz / 1e9,
        "bandwidth_gbs": gpu.memory_bandwidth / 1e9,
        "usable_gib": None if gpu.usable_bytes == gpu.memory_bytes else gpu.usable_bytes / 2**30,
    }  # fmt: skip
    lines = [
        f"# A GPU for `--gpu FILE.toml`, started from {gpu.title}: data sheet figures, dense tensor peaks.",
        f'name = "{name}"',
        f'title = "{gpu.title}"  # with "GeForce" in it, clocks and power follow GeForce boards',
        f'chip = "{gpu.chip}"',
        f"sm = {gpu.sm}  # compute capability: 89 for 8.9",
        f"sms = {gpu.sms}",
        f"l2_mib = {gpu.l2_bytes / 2**20:.10g}",
        f"f32_tflops = {gpu.datasheet_f32_flops / 1e12:.10g}  # checked against SMs, lanes and boost clock",
        "# tensor: the clock of the tensor peaks, where it is below the boost clock",
        f"clock_mhz = {table(clocks)}",
        "# the bandwidth must equal bus width x rate per pin; usable_gib: memory left with ECC on (optional)",
        f"memory = {table(memory)}",
        "# the default limit, and the range that can be set; idle is optional",
        f"power_w = {table({'tdp': gpu.tdp_w, 'min': gpu.power_min_w, 'max': gpu.power_max_w, 'idle': gpu.idle_w})}",
        "# fused multiply-adds per SM and clock on tensor cores; GeForce has half the rate with f32 accumulation",
        f"tensor_fma_per_clk_sm = {table(gpu.tensor_fma_per_clk_sm)}",
        "# each is checked against SMs, rate and clock; optional",
        f"tensor_tflops = {table({key: flops / 1e12 for key, flops in gpu.datasheet_tensor_flops.items()})}",
    ]
    if own_rates:
        lines += [f"# unlike other GPUs of sm_{gpu.sm}", f"fma_per_clk_sm = {table(own_rates)}"]
    return "\n".join(lines) + "\n"
