"""Read KTT's own JSON (`SaveResults(..., OutputFormat::JSON)`); t4.py reads its T4 files.

    {"Metadata": {"Device": "NVIDIA GeForce RTX 3090", "KttVersion": "2.1", "TimeUnit": "Microseconds"},
     "Results": [{"KernelName": "nbody", "Status": "Ok", "TotalDuration": 310.2, "ExtraDuration": 0.0,
                  "Configuration": [{"Name": "WORK_GROUP_SIZE", "Value": 64}],
                  "ComputationResults": [{"Duration": 310.2, "CompilationData": {"RegistersCount": 40}}]}]}

A duration includes all launches of the config, and the extra time of its launcher.
"""

from functools import partial

from kernrec.errors import unknown
from kernrec.interop.json_document import TextFile, numbered
from kernrec.interop.results import ForeignResult, ForeignResults, ReadOptions, code_of, config_of, latency_of, name_of
from kernrec.interop.t4 import KTT
from kernrec.store.measurement import Outcome

_UNITS = {"Nanoseconds": 1e-9, "Microseconds": 1e-6, "Milliseconds": 1e-3, "Seconds": 1.0}
_OUTCOMES = {
    "Ok": Outcome.OK,
    "ComputationFailed": Outcome.CRASH,
    "ValidationFailed": Outcome.INCORRECT,
    "CompilationFailed": Outcome.COMPILE,
    "DeviceLimitsExceeded": Outcome.CONSTRAINT,
}


def read_ktt(file: TextFile, options: ReadOptions) -> ForeignResults:
    """Return the results in KTT's JSON; errors are those of `read_results.Format`."""
    document = file.document()
    metadata, entries = document.get("Metadata"), document.get("Results")
    if not isinstance(metadata, dict) or not isinstance(entries, list):
        raise ValueError("it is not KTT's JSON: Metadata, an object, and Results, a list, are expected")
    if (unit := metadata.get("TimeUnit")) not in _UNITS:
        raise unknown("Metadata.TimeUnit", str(unit), _UNITS)
    results = numbered(entries, partial(_result, _UNITS[unit]), "result", 0)
    return ForeignResults(KTT, name_of(metadata, "Device"), None, results)


def _result(unit_s: float, entry: object) -> ForeignResult:
    if not isinstance(entry, dict) or not isinstance(pairs := entry.get("Configuration"), list):
        raise ValueError("expected an object with Configuration, a list")
    if not all(isinstance(pair, dict) for pair in pairs):
        raise ValueError("Configuration is not a list of objects")
    config, status = config_of({str(pair.get("Name")): pair.get("Value") for pair in pairs}), entry.get("Status")
    if status not in _OUTCOMES:
        raise unknown("Status", str(status), _OUTCOMES)
    kernel = name_of(entry, "KernelName")
    if (outcome := _OUTCOMES[status]) is not Outcome.OK:
        return ForeignResult(config, outcome, status, kernel=kernel)
    compiled: dict[str, object] = {}
    launches = entry.get("ComputationResults")
    if isinstance(launches, list) and len(launches) == 1 and isinstance(launches[0], dict):
        data = launches[0].get("CompilationData")
        compiled = {"registers": data.get("RegistersCount")} if isinstance(data, dict) else {}
    latency_s = latency_of(entry.get("TotalDuration"), unit_s)
    return ForeignResult(config, outcome, None, latency_s, kernel=kernel, **code_of(compiled))
