"""Helion's autotune log: the CSV file that it writes where HELION_AUTOTUNE_LOG names a path.

    run_id,timestamp_s,config_id,generation,status,perf_ms,compile_time_s,config
    5d42...,0.91,10db...,0,ok,0.065100,0.50,"Config(block_sizes=[128, 64], num_warps=8)"

Columns differ between releases; `status`, `perf_ms` and `config` are in all of them (seen: 0.2 to 1.5). A run is one
kernel on one shape. The file names neither the kernel, the shape nor the card. Times are medians, in milliseconds; a
config that was measured again has several.
"""

import re
from collections.abc import Mapping

from kernrec.errors import unknown
from kernrec.interop.csv_text import csv_rows
from kernrec.interop.json_document import TextFile, finite, numbered
from kernrec.interop.python_literals import printed_config
from kernrec.interop.repeated_rows import as_runs
from kernrec.interop.results import ForeignResult, ForeignResults, ReadOptions, latency_of
from kernrec.store.measurement import Outcome

TOOL = "Helion"
HELION_HEADER = re.compile(r"\A[\w,]*\bgeneration,status,perf_ms,[\w,]*\bconfig\s*$", re.MULTILINE)

_OUTCOMES = {
    "ok": Outcome.OK,
    "deduplicated": Outcome.OK,  # of the same code, with its time
    "error": Outcome.CRASH,
    "timeout": Outcome.TIMEOUT,
    "accuracy_error": Outcome.INCORRECT,
}
_NOT_RUN = ("filtered", "peer_compilation_fail", "source_rejected", "unknown")
_BEGUN = "started"


def read_helion(file: TextFile, options: ReadOptions) -> ForeignResults:
    """The results of a run; errors as of `read_results.Format`."""
    _, rows = csv_rows(file.text)
    runs: set[str] = set()

    def read(row: Mapping[str, str]) -> ForeignResult | None:
        runs.add(row.get("run_id", ""))
        return _result(row)

    read_rows = numbered((row for row in rows if row["status"] != _BEGUN), read, "row")
    if len(runs) > 1:
        raise ValueError(f"it has {len(runs)} runs, each of another kernel or shape; split it by run_id")
    results = [result for result in read_rows if result is not None]
    return ForeignResults(TOOL, None, None, as_runs(results), not_run=len(read_rows) - len(results))


def _result(row: Mapping[str, str]) -> ForeignResult | None:
    status = row["status"]
    if status in _NOT_RUN:
        return None
    if status not in _OUTCOMES:
        raise unknown("status", status, (*_OUTCOMES, *_NOT_RUN, _BEGUN))
    config, outcome = printed_config(row["config"]), _OUTCOMES[status]
    if outcome != Outcome.OK:
        return ForeignResult(config, outcome, status)
    try:
        perf = float(row["perf_ms"])
    except ValueError:
        raise ValueError(f"perf_ms is {row['perf_ms']!r:.40}, not a number") from None
    return ForeignResult(config, outcome, None, latency_of(finite(perf, "perf_ms"), 1e-3))
