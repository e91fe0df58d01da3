"""Read Kernel Tuner's cache files, including those of a killed tuner.

    {"device_name": "NVIDIA A100", "kernel_name": "vector_add", "problem_size": [1000], "tune_params_keys": ["bx"],
     "tune_params": {"bx": [32, 64]}, "objective": "time", "cache": {
    "32": {"bx": 32, "time": 0.0123, "times": [0.0124, 0.0122], "nvml_energy": 0.0021, "timestamp": "2024-05-01 12:00"},
    "64": {"bx": 64, "time": "RuntimeFailedConfig", "timestamp": "2024-05-01 12:00"}}
    }

The tuner appends entries while it runs, and closes the brackets when it ends. So a file may end at any byte; kernrec
reads every complete entry. Times are in milliseconds, energies in joules, powers in watts. A failed config has an error
name in place of a number (Kernel Tuner 1.5, `util.py` and `observers/`).
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kernrec.interop.json_document import CutShort, TextFile, finite, whole_document
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
    time_of,
)
from kernrec.store.measurement import Outcome

TOOL = "Kernel Tuner"
_MILLI = 1e-3

_OUTCOMES = {
    "InvalidConfig": Outcome.CONSTRAINT,
    "CompilationFailedConfig": Outcome.COMPILE,
    "RuntimeFailedConfig": Outcome.CRASH,
    "ErrorConfig": Outcome.CRASH,
}


def outcome_of(error: str) -> Outcome:
    """Return the outcome for an error name. Raises `ValueError` for an unknown name."""
    if error in _OUTCOMES:
        return _OUTCOMES[error]
    if "timeout" in error.lower():
        return Outcome.TIMEOUT
    raise ValueError(f"{error!r:.40} is neither a time nor a known error ({', '.join(_OUTCOMES)})")


def read_cache(file: TextFile, options: ReadOptions) -> ForeignResults:
    """Return the results of a complete or truncated cache; errors are those of `read_results.Format`."""
    document, dropped = _closed(file.text)
    entries = document.get("cache") if isinstance(document, dict) else None
    if not isinstance(entries, dict):
        raise ValueError("missing 'cache' (expected an object)")
    keys, results = _keys(document), []
    for name, entry in entries.items():
        try:
            results.append(_result(entry, keys))
        except ValueError as error:
            raise ValueError(f"entry {name!r:.60}: {error}") from None
    return ForeignResults(TOOL, name_of(document, "device_name"), name_of(document, "kernel_name"), results, dropped)


def _closed(text: str) -> tuple[Any, int]:
    """Return (document with closed brackets, number of incomplete entries at its end).

    Kernel Tuner writes one entry per line.
    """
    try:
        return whole_document(text), 0
    except CutShort:
        pass
    stripped = text.rstrip().rstrip(",")
    before = stripped[: max(stripped.rfind("\n"), 0)].rstrip().rstrip(",")
    for closed, dropped in ((stripped + "}", 0), (stripped + "}}", 0), (before + "}}", 1)):
        with suppress(CutShort, ValueError):
            if (document := whole_document(closed)).get("cache"):
                return document, dropped
    raise ValueError("it is cut short before its first complete entry")


def _keys(header: Mapping[str, Any]) -> list[str]:
    """Return the names of the tunables from the header."""
    keys, params = header.get("tune_params_keys"), header.get("tune_params")
    if not keys and isinstance(params, dict):
        keys = list(params)
    if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
        raise ValueError("missing 'tune_params_keys' (expected the names of the tunables) before the entries")
    return keys


def _result(entry: object, keys: list[str]) -> ForeignResult:
    if not isinstance(entry, dict):
        raise ValueError(f"expected an object, found {entry!r:.40}")
    if missing := [key for key in keys if key not in entry]:
        raise ValueError(f"missing tunable {missing[0]}")
    config, limits = split_limits(config_of({key: entry[key] for key in keys}))
    if not config:
        raise ValueError("it has no tunables except limits of the GPU")
    measured_at = time_of(entry.get("timestamp"))
    error = _error(entry)
    if error is not None:
        return ForeignResult(config, outcome_of(error), error, measured_at=measured_at, **limits)
    if "time" not in entry:
        raise ValueError("missing 'time'")
    latency = latency_of(entry["time"], _MILLI)
    samples = samples_of(entry["times"], _MILLI) if "times" in entry else ()
    joules = {name: finite(entry[name], name) for name, _ in ENERGIES if name in entry}
    watts = {name: finite(entry[name], name) for _, name in ENERGIES if name in entry}
    energy = energy_of(joules, watts, latency)
    code = code_of(entry)
    return ForeignResult(
        config, Outcome.OK, None, latency, samples, measured_at=measured_at, **energy, **limits, **code
    )


def _error(entry: Mapping[str, Any]) -> str | None:
    for name in ("__error__", "time"):
        if isinstance(entry.get(name), str):
            return str(entry[name])
    return next((value for value in entry.values() if isinstance(value, str) and value in _OUTCOMES), None)
