"""Read T4, the results format that autotuners share: schema 1.0.0 of Kernel Tuner 1.5 (`schema/T4`).

    {"schema_version": "1.0.0", "metadata": {"timeunit": "milliseconds"}, "results": [
     {"timestamp": "2024-05-01 12:00:00", "configuration": {"bx": 32}, "invalidity": "correct", "correctness": 1,
      "times": {"runtimes": [0.0124, 0.0122]}, "measurements": [{"name": "time", "value": 0.0123, "unit": ""}],
      "objectives": ["time"]}]}

A time must have a unit, its own or the file's `metadata.timeunit`. `metadata` may name the device and the kernel. KTT's
documents differ (`KTT`).
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from kernrec.errors import UsageError, unknown
from kernrec.interop.json_document import TextFile, finite, numbered
from kernrec.interop.results import (
    ENERGIES,
    ForeignResult,
    ForeignResults,
    ReadOptions,
    code_of,
    config_of,
    energy_of,
    latency_of,
    name_of,
    samples_of,
    split_limits,
    text_of,
    time_of,
)
from kernrec.store.measurement import Outcome

TOOL = "T4"
VERSION = "1.0.0"
KTT = "KTT"
"""Name of KTT 2.2 in its documents, which have no version, name the GPU as `device`, and store values as text."""

INVALIDITIES = {
    "correct": Outcome.OK,
    "timeout": Outcome.TIMEOUT,
    "compile": Outcome.COMPILE,
    "runtime": Outcome.CRASH,
    "correctness": Outcome.INCORRECT,
    "constraints": Outcome.CONSTRAINT,
}
"""Outcomes by values of `invalidity` in the schema."""

SECONDS = {
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "ms": 1e-3, "millisecond": 1e-3, "milliseconds": 1e-3, "miliseconds": 1e-3,  # benchmark_hub's spelling
    "us": 1e-6, "microsecond": 1e-6, "microseconds": 1e-6,
    "ns": 1e-9, "nanosecond": 1e-9, "nanoseconds": 1e-9,
}  # fmt: skip
_JOULES = {"": 1.0, "j": 1.0, "joule": 1.0, "joules": 1.0, "mj": 1e-3, "millijoules": 1e-3}
_WATTS = {"": 1.0, "w": 1.0, "watt": 1.0, "watts": 1.0, "mw": 1e-3, "milliwatts": 1e-3}

_INTEGER = re.compile(r"-?\d{1,18}")


def read_t4(file: TextFile, options: ReadOptions) -> ForeignResults:
    """Return the results of a T4 document; errors are those of `read_results.Format`."""
    document = file.document()
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    version, of_ktt = document.get("schema_version"), metadata.get("autotuner") == KTT
    if version != VERSION and not (of_ktt and version is None):
        raise ValueError(f"it has T4 schema {version!r:.40}; only {VERSION!r} is supported")
    entries = document.get("results")
    if not isinstance(entries, list):
        raise ValueError("missing 'results' (expected a list)")
    results = numbered(entries, partial(_result, metadata.get("timeunit"), of_ktt), "result", 0)
    device = name_of(metadata, "device" if of_ktt else "device_name")
    return ForeignResults(KTT if of_ktt else TOOL, device, name_of(metadata, "kernel_name"), results)


def _result(timeunit: object, of_ktt: bool, entry: object) -> ForeignResult:
    if not isinstance(entry, dict):
        raise ValueError(f"expected an object, found {entry!r:.40}")
    configuration, times = entry.get("configuration"), entry.get("times")
    if not isinstance(configuration, dict) or not isinstance(times, dict):
        missing = "times" if isinstance(configuration, dict) else "configuration"
        raise ValueError(f"missing {missing!r} (expected an object)")
    invalidity = entry.get("invalidity")
    if not isinstance(invalidity, str) or invalidity not in INVALIDITIES:
        raise unknown("invalidity", invalidity, INVALIDITIES)
    config, limits = split_limits(config_of(_numbers(configuration) if of_ktt else configuration))
    measured = _measurements(entry.get("measurements", []))
    fields: dict[str, Any] = {"measured_at": time_of(entry.get("timestamp")), **limits}
    outcome = INVALIDITIES[invalidity]
    if outcome == Outcome.OK and finite(entry.get("correctness"), "correctness") == 0:
        outcome = Outcome.INCORRECT
    if outcome != Outcome.OK:
        error = next((value for value, _ in measured.values() if isinstance(value, str) and value), invalidity)
        text_of(error, "the text in place of a measurement")
        return ForeignResult(config, outcome, error, **fields)
    value, unit = measured.get("time", (None, ""))
    samples: tuple[float, ...] = ()
    if times.get("runtimes"):
        samples = samples_of(times["runtimes"], _seconds(timeunit))
    if value is not None:
        latency = latency_of(value, _seconds(unit or timeunit))
    elif samples:
        latency = sum(samples) / len(samples)
    else:
        raise ValueError("it is marked correct, but has neither a measurement named time nor runtimes")
    joules = {name: _number(measured, name, _JOULES) for name, _ in ENERGIES if name in measured}
    watts = {name: _number(measured, name, _WATTS) for _, name in ENERGIES if name in measured}
    compiled = entry.get("compilation_data") if of_ktt else None
    fields |= code_of(compiled if isinstance(compiled, dict) else {n: value for n, (value, _) in measured.items()})
    return ForeignResult(config, Outcome.OK, None, latency, samples, **fields, **energy_of(joules, watts, latency))


def _numbers(configuration: Mapping[str, object]) -> dict[str, object]:
    return {
        name: int(value) if isinstance(value, str) and _INTEGER.fullmatch(value) else value
        for name, value in configuration.items()
    }


def _measurements(values: object) -> dict[str, tuple[object, str]]:
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ValueError("measurements is not a list of objects")
    return {str(value.get("name")): (value.get("value"), str(value.get("unit") or "")) for value in values}


def _seconds(unit: object) -> float:
    if unit in (None, ""):
        raise ValueError("its times have no unit; state it there or as metadata.timeunit")
    return _unit("time", str(unit), SECONDS)


def _number(measured: Mapping[str, tuple[object, str]], name: str, units: Mapping[str, float]) -> float:
    value, unit = measured[name]
    return finite(value, name) * _unit(name, unit, units)


def _unit(quantity: str, unit: str, units: Mapping[str, float]) -> float:
    try:
        return units[unit.strip().lower()]
    except KeyError:
        spellings: dict[float, str] = {}
        for name, factor in units.items():
            if name:
                spellings.setdefault(factor, name)  # the first spelling is short
        listed = ", ".join(spellings.values())
        raise UsageError(f"unknown unit of {quantity} {unit!r}; known: {listed}, in full or short") from None
