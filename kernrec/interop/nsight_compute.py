"""Read CSV files of Nsight Compute, which have a row per metric (`ncu --csv`) or a row per launch (`--page raw`).

    "ID","Process ID","Process Name","Host Name","Kernel Name",...,"Block Size","Grid Size","Device",...,"Metric Value"
    "0","4021","app","host","smooth(const float *, float *, int)",...,"(256, 1, 1)","(64, 1, 1)","NVIDIA A100",...

The files contain no tunables, so the launch is stored as the config: the block and, if needed, the grid and the dynamic
shared memory. `bind_rows.match_launches` later finds the spec's config for the launch.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from kernrec.errors import UsageError, unknown
from kernrec.interop.bind_rows import as_runs
from kernrec.interop.json_document import TextFile, finite, numbered
from kernrec.interop.results import (
    ForeignResult,
    ForeignResults,
    ReadOptions,
    latency_of,
    ran,
    text_of,
)
from kernrec.interop.table import csv_rows
from kernrec.interop.tuner_results import SECONDS

TOOL = "Nsight Compute"
NCU_HEADER = re.compile(r'^"ID","Process ID","Process Name","Host Name","Kernel Name",', re.MULTILINE)

_TIMES = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")
_CLOCKS = ("smsp__cycles_elapsed.avg.per_second", "sm__cycles_elapsed.avg.per_second", "SM Frequency")
_REGISTERS = ("launch__registers_per_thread", "Registers Per Thread")
_STATIC = ("launch__shared_mem_per_block_static", "Static Shared Memory Per Block")
_DYNAMIC = ("launch__shared_mem_per_block_dynamic", "Dynamic Shared Memory Per Block")
_PROFILED = "the profiler empties the caches before each launch and, by default, holds the base clock"

_HERTZ = {"hz": 1.0, "khz": 1e3, "mhz": 1e6, "ghz": 1e9}
_HERTZ |= {"cycle/second": 1.0, "cycle/msecond": 1e3, "cycle/usecond": 1e6, "cycle/nsecond": 1e9}
_BYTES = {"byte": 1.0, "kbyte": 1e3, "mbyte": 1e6, "byte/block": 1.0, "kbyte/block": 1e3, "mbyte/block": 1e6}
_COUNT = {"": 1.0, "register/thread": 1.0}
_SIZES = re.compile(r"\(?(\d{1,10}), *(\d{1,10}), *(\d{1,10})\)?")

_Metrics = Mapping[str, tuple[str, str]]
"""Metrics of a launch: (value as text, unit), keyed by metric name."""


def read_ncu(file: TextFile, options: ReadOptions) -> ForeignResults:
    """Read the launches of one kernel."""
    header = NCU_HEADER.search(file.text)
    text = re.sub(r"^==.*$", "", file.text[header.start() if header else 0 :], flags=re.MULTILINE)
    columns, rows = csv_rows(text)
    launches: list[tuple[Mapping[str, str], _Metrics]]
    if "Metric Name" in columns:
        by_launch: dict[tuple[str, str], tuple[Mapping[str, str], dict[str, tuple[str, str]]]] = {}
        for row in rows:
            _, metrics = by_launch.setdefault((row["ID"], row["Process ID"]), (row, {}))
            metrics[row["Metric Name"]] = row.get("Metric Value", ""), row.get("Metric Unit", "")
        launches = [*by_launch.values()]
    else:
        units = next(rows, {})
        if units.get("ID"):
            raise ValueError("the line after its header has no units of the metrics; export it with --page raw")
        launches = [(row, {name: (row[name], units[name]) for name in columns}) for row in rows]
    name = _kernel_name([_name(row) for row, _ in launches], options)
    mine = [launch for launch in launches if _name(launch[0]) == name]
    results = numbered(mine, lambda launch: _result(*launch), "launch")
    devices = {each.get("Device", "") for each, _ in mine}
    if len(devices) > 1:
        raise ValueError(f"{name} ran on {len(devices)} devices; export each device separately")
    device = next(iter(devices))
    note = "" if any(result.sm_clock_hz for result in results) else "; it states no clock of the SMs"
    title = (
        text_of(device, "Device") if device and not device.isdecimal() else None
    )  # The command line writes an index.
    return ForeignResults(TOOL, title, name, as_runs(_configs(results)), notes=(_PROFILED + note,))


def _kernel_name(names: Iterable[str], options: ReadOptions) -> str:
    there = list(dict.fromkeys(names))
    folded = {name.casefold() for name in options.kernels}
    if chosen := [name for name in there if name.casefold() in folded]:
        return chosen[0]
    if not there:
        raise UsageError("it holds no results")
    if len(there) > 1 and options.kernels:
        raise unknown("kernel", options.kernels[0], there)
    if len(there) > 1:
        listed = ", ".join(there[:6]) + (", ..." if len(there) > 6 else "")
        raise UsageError(f"it has results of several kernels ({listed}); select one with --kernel")
    return there[0]


def _name(row: Mapping[str, str]) -> str:
    name = re.split(r"[<(]", row["Kernel Name"].removeprefix("void "), maxsplit=1)[0].strip()
    return text_of(name or row["Kernel Name"], "Kernel Name")


def _result(row: Mapping[str, str], metrics: _Metrics) -> ForeignResult:
    latency = _metric(metrics, _TIMES, SECONDS)
    if latency is None:
        raise ValueError(f"it has no time: none of the metrics {', '.join(_TIMES)}")
    static, dynamic = (_metric(metrics, names, _BYTES) for names in (_STATIC, _DYNAMIC))
    code = {"registers": _metric(metrics, _REGISTERS, _COUNT)}
    if static is not None and dynamic is not None and (static + dynamic).is_integer():
        exact = all(metrics[name][1].startswith("byte") for name in (*_STATIC, *_DYNAMIC) if name in metrics)
        code["smem_bytes"] = static + dynamic if exact else None  # Kilobytes are rounded, so they are not exact.
    launch = _sizes(row, "Grid Size"), _sizes(row, "Block Size"), dynamic
    clock_hz = _metric(metrics, _CLOCKS, _HERTZ)
    return ran({}, latency_of(latency, 1.0), code, sm_clock_hz=clock_hz, launch=launch)


def _sizes(row: Mapping[str, str], column: str) -> tuple[int, ...]:
    match = _SIZES.fullmatch(row.get(column, ""))
    if not match:
        seen = f"is {row[column]!r:.40}" if column in row else "is no column"
        raise ValueError(f"{column} {seen}; expected a value such as (256, 1, 1) (use --page raw)")
    return tuple(int(size) for size in match.groups())


def _metric(metrics: _Metrics, names: Iterable[str], units: Mapping[str, float]) -> float | None:
    """Return the first available metric of `names` in SI units, or None. `units` maps units to factors."""
    for name in names:
        if name in metrics and (text := metrics[name][0]) not in ("", "N/A", "n/a"):
            unit = metrics[name][1].strip()
            if unit.lower() not in units:
                raise ValueError(f"{name} has unit {unit!r:.40}; expected one of {', '.join(filter(None, units))}")
            try:
                return finite(float(text.replace(",", "")), name) * units[unit.lower()]
            except ValueError:
                raise ValueError(f"{name} is {text!r:.40}, not a number") from None
    return None


def _configs(results: list[ForeignResult]) -> Iterator[ForeignResult]:
    """Yield results with the launch as config."""
    named: list[dict[str, int]] = []
    for result in results:
        assert result.launch is not None
        grid, block, shared = result.launch
        values = {f"grid_{axis}": size for axis, size in zip("xyz", grid, strict=True)}
        values |= {f"block_{axis}": size for axis, size in zip("xyz", block, strict=True)}
        named.append(values | {"shared_bytes": round(shared or 0.0)})
    blocks = [name for name in named[0] if name.startswith("block")]
    keep = {"block_x", *(name for name in blocks if any(each[name] != 1 for each in named))}
    others: dict[tuple[int, ...], dict[str, int]] = {}
    for each in named:
        first = others.setdefault(tuple(each[name] for name in blocks), each)
        keep |= {name for name, value in each.items() if value != first[name]}
    for result, values in zip(results, named, strict=True):
        yield replace(result, config={name: value for name, value in values.items() if name in keep})
