"""Read results of autotuners: Kernel Tuner's cache, T4, KTT's JSON and CLBlast's tuner files.

Kernel Tuner's cache, which is incomplete if the tuner was killed:

    {"device_name": "NVIDIA A100", "kernel_name": "vector_add", "problem_size": [1000], "tune_params_keys": ["bx"],
     "tune_params": {"bx": [32, 64]}, "objective": "time", "cache": {
    "32": {"bx": 32, "time": 0.0123, "times": [0.0124, 0.0122], "nvml_energy": 0.0021, "timestamp": "2024-05-01 12:00"},
    "64": {"bx": 64, "time": "RuntimeFailedConfig", "timestamp": "2024-05-01 12:00"}}
    }

The tuner appends entries while it runs, and closes the brackets when it ends. So a file may end at any byte. kernrec
reads all complete entries. Times are in milliseconds, energies in joules, powers in watts. If a config failed, the name
of an error replaces the number (Kernel Tuner 1.5, `util.py` and `observers/`).

T4, the results format that autotuners share, in schema 1.0.0 of Kernel Tuner 1.5 (`schema/T4`):

    {"schema_version": "1.0.0", "metadata": {"timeunit": "milliseconds"}, "results": [
     {"timestamp": "2024-05-01 12:00:00", "configuration": {"bx": 32}, "invalidity": "correct", "correctness": 1,
      "times": {"runtimes": [0.0124, 0.0122]}, "measurements": [{"name": "time", "value": 0.0123, "unit": ""}],
      "objectives": ["time"]}]}

Each time must have a unit, or the file must state `metadata.timeunit`. `metadata` may also name the device and the
kernel. For differences in files of KTT, see `KTT`.

KTT's own JSON (`SaveResults(..., OutputFormat::JSON)`):

    {"Metadata": {"Device": "NVIDIA GeForce RTX 3090", "KttVersion": "2.1", "TimeUnit": "Microseconds"},
     "Results": [{"KernelName": "nbody", "Status": "Ok", "TotalDuration": 310.2, "ExtraDuration": 0.0,
                  "Configuration": [{"Name": "WORK_GROUP_SIZE", "Value": 64}],
                  "ComputationResults": [{"Duration": 310.2, "CompilationData": {"RegistersCount": 40}}]}]}

`TotalDuration` includes all launches of the config, and the additional time that KTT's launcher takes.

CLBlast's tuner file (`clblast_xgemm_1_32.json`), whose format has not changed since 2015:

    {"kernel_family": "xgemm_1", "precision": "32", "arg_m": "1024", "arg_n": "1024", "arg_k": "1024",
     "clblast_device_name": "NVIDIA GeForce RTX 3060", "results": [
      {"kernel": "Xgemm", "time": 0.62, "parameters": {"MWG": 64, "NWG": 64}}]}

Times are OpenCL kernel times in milliseconds. The header stores numbers as text. A time of 0 means that the time is
less than the file's resolution of one microsecond.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from kernrec.errors import UsageError, unknown
from kernrec.interop.json_document import CutShort, TextFile, finite, numbered, whole_document
from kernrec.interop.results import (
    ENERGIES,
    ForeignResult,
    ForeignResults,
    ReadOptions,
    StatedProblem,
    config_of,
    latency_of,
    name_of,
    ran,
    samples_of,
    split_limits,
    text_of,
    time_of,
)
from kernrec.store.measurement import Outcome

_KERNEL_TUNER = "Kernel Tuner"
_MILLI = 1e-3

_OUTCOMES = {
    "InvalidConfig": Outcome.CONSTRAINT,
    "CompilationFailedConfig": Outcome.COMPILE,
    "RuntimeFailedConfig": Outcome.CRASH,
    "ErrorConfig": Outcome.CRASH,
}


def outcome_of(error: str) -> Outcome:
    """Convert the name of an error to an outcome. Raise `ValueError` for an unknown name."""
    if error in _OUTCOMES:
        return _OUTCOMES[error]
    if "timeout" in error.lower():
        return Outcome.TIMEOUT
    raise ValueError(f"{error!r:.40} is neither a time nor a known error ({', '.join(_OUTCOMES)})")


def read_cache(file: TextFile, options: ReadOptions) -> ForeignResults:
    """Read a Kernel Tuner cache, which may be truncated."""
    document, dropped = _closed(file.text)
    entries = document.get("cache") if isinstance(document, dict) else None
    if not isinstance(entries, dict):
        raise ValueError("missing 'cache' (expected an object)")
    keys, params, results = document.get("tune_params_keys"), document.get("tune_params"), []
    if not keys and isinstance(params, dict):
        keys = list(params)
    if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
        raise ValueError("missing 'tune_params_keys' (expected the names of the tunables) before the entries")
    for name, entry in entries.items():
        try:
            results.append(_cache_entry(entry, keys))
        except ValueError as error:
            raise ValueError(f"entry {name!r:.60}: {error}") from None
    return ForeignResults(
        _KERNEL_TUNER, name_of(document, "device_name"), name_of(document, "kernel_name"), results, dropped=dropped
    )


def _closed(text: str) -> tuple[Any, int]:
    """Parse a Kernel Tuner cache. Return (parsed JSON, number of incomplete entries that were dropped at the end)."""
    try:
        return whole_document(text), 0
    except CutShort:
        pass
    stripped = text.rstrip().rstrip(",")
    before = stripped[: max(stripped.rfind("\n"), 0)].rstrip().rstrip(",")
    for closed, dropped in ((stripped + "}", 0), (stripped + "}}", 0), (before + "}}", 1)):
        with suppress(ValueError):
            if (document := whole_document(closed)).get("cache"):
                return document, dropped
    raise ValueError("it is cut short before its first complete entry")


def _cache_entry(entry: object, keys: list[str]) -> ForeignResult:
    if not isinstance(entry, dict):
        raise ValueError(f"expected an object, found {entry!r:.40}")
    if missing := [key for key in keys if key not in entry]:
        raise ValueError(f"missing tunable {missing[0]}")
    config, limits = split_limits(config_of({key: entry[key] for key in keys}))
    if not config:
        raise ValueError("it has no tunables except limits of the GPU")
    measured_at = time_of(entry.get("timestamp"))
    texts = [entry[name] for name in ("__error__", "time") if isinstance(entry.get(name), str)]
    texts += [value for value in entry.values() if isinstance(value, str) and value in _OUTCOMES]
    if texts:
        return ForeignResult(config, outcome_of(texts[0]), texts[0], measured_at=measured_at, **limits)
    if "time" not in entry:
        raise ValueError("missing 'time'")
    latency = latency_of(entry["time"], _MILLI)
    samples = samples_of(entry["times"], _MILLI) if "times" in entry else ()
    return ran(config, latency, entry, samples, measured_at=measured_at, **limits)


_T4 = "T4"
VERSION = "1.0.0"
KTT = "KTT"
"""Name of KTT in T4 documents. KTT 2.2 omits the schema version, calls the GPU `device`, and writes values as text."""

INVALIDITIES = {
    "correct": Outcome.OK,
    "timeout": Outcome.TIMEOUT,
    "compile": Outcome.COMPILE,
    "runtime": Outcome.CRASH,
    "correctness": Outcome.INCORRECT,
    "constraints": Outcome.CONSTRAINT,
}
"""Outcomes, keyed by the value of `invalidity` in the T4 schema."""

SECONDS = {
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "ms": 1e-3, "millisecond": 1e-3, "milliseconds": 1e-3, "miliseconds": 1e-3,  # benchmark_hub writes "miliseconds"
    "us": 1e-6, "microsecond": 1e-6, "microseconds": 1e-6,
    "ns": 1e-9, "nanosecond": 1e-9, "nanoseconds": 1e-9,
    "msecond": 1e-3, "usecond": 1e-6, "nsecond": 1e-9,  # Nsight Compute's names
}  # fmt: skip
_JOULES = {"": 1.0, "j": 1.0, "joule": 1.0, "joules": 1.0, "mj": 1e-3, "millijoules": 1e-3}
_WATTS = {"": 1.0, "w": 1.0, "watt": 1.0, "watts": 1.0, "mw": 1e-3, "milliwatts": 1e-3}

_INTEGER = re.compile(r"-?\d{1,18}")


def read_t4(file: TextFile, options: ReadOptions) -> ForeignResults:
    """Read the results in a T4 document."""
    document = file.document()
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    version, of_ktt = document.get("schema_version"), metadata.get("autotuner") == KTT
    if version != VERSION and not (of_ktt and version is None):
        raise ValueError(f"schema_version is {version!r:.40}; only {VERSION!r} is supported")
    entries = document.get("results")
    if not isinstance(entries, list):
        raise ValueError("missing 'results' (expected a list)")
    results = numbered(entries, partial(_t4_result, metadata.get("timeunit"), of_ktt), "result", 0)
    device = name_of(metadata, "device" if of_ktt else "device_name")
    return ForeignResults(KTT if of_ktt else _T4, device, name_of(metadata, "kernel_name"), results)


def _t4_result(timeunit: object, of_ktt: bool, entry: object) -> ForeignResult:
    if not isinstance(entry, dict):
        raise ValueError(f"expected an object, found {entry!r:.40}")
    configuration, times = entry.get("configuration"), entry.get("times")
    if not isinstance(configuration, dict) or not isinstance(times, dict):
        missing = "times" if isinstance(configuration, dict) else "configuration"
        raise ValueError(f"missing {missing!r} (expected an object)")
    invalidity = entry.get("invalidity")
    if not isinstance(invalidity, str) or invalidity not in INVALIDITIES:
        raise unknown("invalidity", invalidity, INVALIDITIES)
    if of_ktt:
        texts = {name: value for name, value in configuration.items() if isinstance(value, str)}
        configuration |= {name: int(value) for name, value in texts.items() if _INTEGER.fullmatch(value)}
    config, limits = split_limits(config_of(configuration))
    entries = entry.get("measurements", [])
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise ValueError("measurements is not a list of objects")
    measured = {str(each.get("name")): (each.get("value"), str(each.get("unit") or "")) for each in entries}
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
    values = {name: value for name, (value, _) in measured.items()}
    for names, units in zip(zip(*ENERGIES, strict=True), (_JOULES, _WATTS), strict=True):
        for name in names:
            if name in measured:
                values[name] = finite(measured[name][0], name) * _unit(name, measured[name][1], units)
    compiled = entry.get("compilation_data") if of_ktt else None
    return ran(config, latency, values | compiled if isinstance(compiled, dict) else values, samples, **fields)


def _seconds(unit: object) -> float:
    if unit in (None, ""):
        raise ValueError("its times have no unit; add it to each time, or set metadata.timeunit")
    return _unit("time", str(unit), SECONDS)


def _unit(quantity: str, unit: str, units: Mapping[str, float]) -> float:
    try:
        return units[unit.strip().lower()]
    except KeyError:
        # The dict keeps the last name of each factor, so reverse `units`, in which short names come first.
        short = {factor: name for name, factor in reversed(list(units.items())) if name}
        listed = ", ".join([*short.values()][::-1])
        raise UsageError(f"unknown unit of {quantity} {unit!r}; known: {listed}, in full or short") from None


_KTT_OUTCOMES = {
    "Ok": Outcome.OK,
    "ComputationFailed": Outcome.CRASH,
    "ValidationFailed": Outcome.INCORRECT,
    "CompilationFailed": Outcome.COMPILE,
    "DeviceLimitsExceeded": Outcome.CONSTRAINT,
}


def read_ktt(file: TextFile, options: ReadOptions) -> ForeignResults:
    """Read the results in KTT's own JSON format."""
    document = file.document()
    metadata, entries = document.get("Metadata"), document.get("Results")
    if not isinstance(metadata, dict) or not isinstance(entries, list):
        raise ValueError("it is not KTT's JSON; expected the object Metadata and the list Results")
    results = numbered(entries, partial(_ktt_result, _seconds(metadata.get("TimeUnit"))), "result", 0)
    return ForeignResults(KTT, name_of(metadata, "Device"), None, results)


def _ktt_result(unit_s: float, entry: object) -> ForeignResult:
    if not isinstance(entry, dict) or not isinstance(pairs := entry.get("Configuration"), list):
        raise ValueError("expected an object with the list Configuration")
    if not all(isinstance(pair, dict) for pair in pairs):
        raise ValueError("Configuration is not a list of objects")
    config, status = config_of({str(pair.get("Name")): pair.get("Value") for pair in pairs}), entry.get("Status")
    if status not in _KTT_OUTCOMES:
        raise unknown("Status", str(status), _KTT_OUTCOMES)
    kernel = name_of(entry, "KernelName")
    if (outcome := _KTT_OUTCOMES[status]) is not Outcome.OK:
        return ForeignResult(config, outcome, status, kernel=kernel)
    compiled: dict[str, object] = {}
    launches = entry.get("ComputationResults")
    if isinstance(launches, list) and len(launches) == 1 and isinstance(launches[0], dict):
        data = launches[0].get("CompilationData")
        compiled = {"registers": data.get("RegistersCount")} if isinstance(data, dict) else {}
    latency_s = latency_of(entry.get("TotalDuration"), unit_s)
    return ran(config, latency_s, compiled, kernel=kernel)


_CLBLAST = "CLBlast"
_DTYPES = {"16": "f16", "32": "f32", "64": "f64"}
_OPS = {
    "xgemm": ("matmul", {"m": "arg_m", "n": "arg_n", "k": "arg_k"}),
    "xgemv": ("matvec", {"m": "arg_m", "k": "arg_n"}),
}
"""Op of each kernel family, and the file's key for each dimension. The keys are prefixes of the families' names."""


def read_clblast(file: TextFile, options: ReadOptions) -> ForeignResults:
    """Read the results in a tuner file of CLBlast."""
    document = file.document()
    family, entries = name_of(document, "kernel_family"), document.get("results")
    if not isinstance(entries, list):
        raise ValueError("missing 'results' (expected a list)")
    problem = _clblast_problem(document, family or "")
    read = numbered(entries, _clblast_result, "result")
    results = [result for result in read if result is not None]
    device = name_of(document, "clblast_device_name") or name_of(document, "device")
    return ForeignResults(_CLBLAST, device, family, results, problem, not_run=len(read) - len(results))


def _clblast_problem(document: dict[str, Any], family: str) -> StatedProblem:
    precision = document.get("precision")
    if precision is not None and str(precision) not in _DTYPES:
        raise ValueError(f"its precision is {precision!r:.20} (complex numbers); {', '.join(_DTYPES)} are read")
    dtype = _DTYPES.get(str(precision))
    op, members = next((of_family for start, of_family in _OPS.items() if family.startswith(start)), (None, {}))
    if op is None or str(document.get("arg_batch_count", "1")) != "1":
        return StatedProblem(dtype=dtype)
    sizes = {dim: str(document.get(member, "")) for dim, member in members.items()}
    return StatedProblem(op, tuple((dim, int(text)) for dim, text in sizes.items() if text.isdecimal()), dtype)


def _clblast_result(entry: object) -> ForeignResult | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("parameters"), dict):
        raise ValueError("expected an object with parameters")
    config = config_of({name: value for name, value in entry["parameters"].items() if name != "PRECISION"})
    if finite(entry.get("time"), "time") == 0:
        return None
    return ran(config, latency_of(entry["time"], _MILLI), {})
