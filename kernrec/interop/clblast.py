"""Read CLBlast's tuner files (`clblast_xgemm_1_32.json`), whose format has not changed since 2015.

    {"kernel_family": "xgemm_1", "precision": "32", "arg_m": "1024", "arg_n": "1024", "arg_k": "1024",
     "clblast_device_name": "NVIDIA GeForce RTX 3060", "results": [
      {"kernel": "Xgemm", "time": 0.62, "parameters": {"MWG": 64, "NWG": 64}}]}

Times are those of the OpenCL kernel in milliseconds, and the header stores numbers as text. A time of 0 means less than
the file's resolution of a microsecond.
"""

from typing import Any

from kernrec.interop.json_document import TextFile, finite, numbered
from kernrec.interop.results import (
    ForeignResult,
    ForeignResults,
    ReadOptions,
    StatedProblem,
    config_of,
    latency_of,
    name_of,
)
from kernrec.store.measurement import Outcome

TOOL = "CLBlast"
_DTYPES = {"16": "f16", "32": "f32", "64": "f64"}
_MILLI = 1e-3
_OPS = {
    "xgemm": ("matmul", {"m": "arg_m", "n": "arg_n", "k": "arg_k"}),
    "xgemv": ("matvec", {"m": "arg_m", "k": "arg_n"}),
}
"""Op and the header members that hold its dimensions, by prefix of the kernel family."""


def read_clblast(file: TextFile, options: ReadOptions) -> ForeignResults:
    """Return the results of a tuner file; errors are those of `read_results.Format`."""
    document = file.document()
    family, entries = name_of(document, "kernel_family"), document.get("results")
    if not isinstance(entries, list):
        raise ValueError("missing 'results' (expected a list)")
    problem = _problem(document, family or "")
    read = numbered(entries, lambda entry: _result(entry, problem), "result")
    results = [result for result in read if result is not None]
    device = name_of(document, "clblast_device_name") or name_of(document, "device")
    return ForeignResults(TOOL, device, family, results, not_run=len(read) - len(results))


def _problem(document: dict[str, Any], family: str) -> StatedProblem:
    precision = document.get("precision")
    if precision is not None and str(precision) not in _DTYPES:
        raise ValueError(f"its precision is {precision!r:.20} (complex numbers); {', '.join(_DTYPES)} are read")
    dtype = _DTYPES.get(str(precision))
    op, members = next((of_family for start, of_family in _OPS.items() if family.startswith(start)), (None, {}))
    if op is None or str(document.get("arg_batch_count", "1")) != "1":
        return StatedProblem(dtype=dtype)
    sizes = {dim: str(document.get(member, "")) for dim, member in members.items()}
    return StatedProblem(op, tuple((dim, int(text)) for dim, text in sizes.items() if text.isdecimal()), dtype)


def _result(entry: object, problem: StatedProblem) -> ForeignResult | None:
    """Return the result of a config; None if its time is below the file's resolution."""
    if not isinstance(entry, dict) or not isinstance(entry.get("parameters"), dict):
        raise ValueError("expected an object with parameters")
    config = config_of({name: value for name, value in entry["parameters"].items() if name != "PRECISION"})
    if finite(entry.get("time"), "time") == 0:
        return None
    return ForeignResult(config, Outcome.OK, None, latency_of(entry["time"], _MILLI), problem=problem)
