"""Files of results into a database, and out of one again."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kernrec.errors import KernrecError, UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.gpu.find import UnknownGPU
from kernrec.interop.read_results import read_results
from kernrec.interop.results import ForeignResults, measurement_rows
from kernrec.interop.t4 import write_t4
from kernrec.kernel.library import kernel_names
from kernrec.op import Problem
from kernrec.store import Database


@dataclass(frozen=True)
class ImportSummary:
    """What an import did. results: in the file; added: rows that were new; outcomes: of all; best_s: least latency.

    dropped: incomplete entries at the end of a file that was cut short.
    """

    gpu: GPU
    kernel: str
    results: int
    added: int
    outcomes: Mapping[str, int]
    best_s: float | None
    dropped: int


@dataclass(frozen=True)
class ExportedDocument:
    """A T4 document, and how many rows it has no word for and leaves out."""

    text: str
    results: int
    left_out: int


def import_results(
    database: Database, path: Path, problem: Problem, gpu: str | None = None, kernel: str | None = None
) -> ImportSummary:
    """Adds the results of a T4 file or Kernel Tuner cache, all or nothing; raises `UsageError` for a file that is bad.

    gpu, kernel: what the results are of, where the file does not say; a GPU that contradicts the file is refused.
    """
    file = read_results(path)
    card = _card(file, gpu, path)
    name = kernel or file.kernel
    if name is None:
        raise UsageError(f"{path} does not say which kernel it is about; name it with --kernel")
    if name in kernel_names():
        raise UsageError(
            f"{name} is a kernel of the library, and nothing says that these results are of its source;"
            " give them another name with --kernel"
        )
    before = database.counts()["measurement"]
    database.add_measurements(measurement_rows(file, card.name, problem, name))
    return ImportSummary(
        card,
        name,
        len(file.results),
        database.counts()["measurement"] - before,
        Counter(result.outcome for result in file.results),
        min((result.latency_s for result in file.results if result.latency_s is not None), default=None),
        file.dropped,
    )


def _card(file: ForeignResults, given: str | None, path: Path) -> GPU:
    if given is None:
        if file.device is None:
            raise UsageError(f"{path} does not say which GPU it is about; name it with --gpu")
        return find_gpu(file.device)
    card = find_gpu(given)
    try:
        said = card if file.device is None else find_gpu(file.device)
    except UnknownGPU:
        said = card  # a name that the catalog does not know contradicts nothing
    if said != card:
        raise UsageError(f"{path} is about {file.device}, not about {card.title}")
    return card


def export_t4(
    database: Database, gpu: GPU, problems: list[Problem] | None, op: str, kernel: str | None
) -> ExportedDocument:
    """The measurements of one kernel on one problem and GPU as a T4 document: of the source that was measured last.

    problems: among which to look; None: all of the op. Raises `UsageError` where nothing or more than one pair of
    kernel and problem is found.
    """
    wanted = None if problems is None else {problem.key for problem in problems}
    found: dict[tuple[str, str], list[dict[str, object]]] = {}
    replayed = 0
    for problem in database.rows("problem", op=op):
        if wanted is None or problem["key"] in wanted:
            for row in database.rows("spoken", gpu=gpu.name, problem_id=problem["problem_id"]):
                if row["replayed"]:  # another tuner would take it for measured
                    replayed += 1
                elif kernel is None or row["kernel"] == kernel:
                    found.setdefault((str(row["kernel"]), str(problem["key"])), []).append(row)
    if not found and replayed:
        raise KernrecError(f"{database.path} holds only replayed rows of that: export the recording they came from")
    if not found:
        raise KernrecError(f"{database.path} holds no such measurement on {gpu.name} (`kernrec db info` lists them)")
    if len(found) > 1:
        some = "; ".join(f"{name} on {key}" for name, key in sorted(found)[:3])
        raise UsageError(f"{len(found)} were measured, a file holds one: choose with --shape and --kernel ({some} ...)")
    (((name, key), rows),) = found.items()
    last = max(rows, key=lambda row: str(row["measured_at"]))["kernel_hash"]
    configs = {row["config_id"]: json.loads(str(row["tunables"])) for row in database.rows("config", kernel=name)}
    chosen = [row | {"config": configs[row["config_id"]]} for row in rows if row["kernel_hash"] == last]
    device = next((row["device"] for row in chosen if row["device"]), gpu.title)
    metadata = {"device_name": device, "kernel_name": name, "problem": key, "tool": "kernrec"}
    written = [row for row in chosen if row["outcome"] != "quarantined"]
    written.sort(key=lambda row: (str(row["measured_at"]), str(row["config"])))
    return ExportedDocument(write_t4(written, metadata), len(written), len(rows) - len(written))
