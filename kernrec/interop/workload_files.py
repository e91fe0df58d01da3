"""Read workloads from user files: TOML, CSV, query logs, ONNX models, and the `config.json` of language models.

The ending of the file name determines the format. `Workload.unknown` lists parts of a file that no op supports.
"""

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError, cannot_be, unknown
from kernrec.interop.model_workload import PHASES, model_workload
from kernrec.op import Problem
from kernrec.op.scaled_workload import with_context
from kernrec.op.workload import Layer, Workload, layer_from, load_workload, printable, workload, workloads
from kernrec.util.files import check_input, open_input
from kernrec.util.human import short

MOST_BYTES = 64 << 20
"""Maximum size of a text file in bytes."""
MOST_LAYERS = 20_000
"""Maximum number of distinct layers in a file."""

_COMMON = ("name", "op", "count", "dtype", "layout")
_WHOLE = re.compile(r"[0-9]{1,18}", re.ASCII)


def find_workload(
    name: str, fixed: Mapping[str, int] | None = None, context: int | None = None, phase: str | None = None
) -> Workload:
    """Return a workload that ships with kernrec, or read a workload from a file.

    Args:
        name: Name of a shipped workload, path of a file, or path of a folder with a model's `config.json`.
        fixed: Values of an ONNX model's symbolic dimensions, keyed by dimension name.
        context: Number of tokens. In the phase `decode`, a new token attends to them. In the phase `prefill`, they are
            the prompt. None selects the default.
        phase: `decode` or `prefill`. It must be None unless the workload is a model with a `config.json`.

    Raises:
        UsageError: The workload does not exist, the file is invalid, or an argument does not apply. The message is one
            line.
    """
    path = Path(name)
    ending = path.suffix.lower()
    if fixed and ending != ".onnx":
        raise UsageError(
            f"--shape with --workload sets the open dimensions of an .onnx file; {path.name} is not an .onnx file"
        )
    if ending == ".json" or path.is_dir():
        return model_workload(name, context, phase or PHASES[0])
    if phase is not None:
        raise UsageError(f"a phase needs the config.json of a model; {name!r:.60} is not one")
    chosen = _find(name, path, ending, fixed)
    return chosen if context is None else with_context(chosen, context)


def _find(name: str, path: Path, ending: str, fixed: Mapping[str, int] | None) -> Workload:
    if ending not in ENDINGS and not path.is_file():
        if "/" in name or ending in (".txt", ".yaml", ".yml", ".pb", ".pt"):
            raise UsageError(
                f"workload {name!r:.80}: no such file; expected a file ({', '.join(ENDINGS)}), a built-in workload"
                f" ({', '.join(workloads())}) or a model of the Hugging Face Hub (hf:ORG/NAME)"
            )
        return workload(name)
    check_input(path, f"workload file {path}")
    if not path.is_file():
        raise UsageError(cannot_be("read", f"workload file {path}", FileNotFoundError()))
    if ending not in ENDINGS:
        raise unknown("ending of a workload file", ending or path.name, ENDINGS)
    if ending == ".onnx":
        return _onnx(path, fixed or {})
    if (size := path.stat().st_size) > MOST_BYTES:
        raise UsageError(f"workload file {path} has {size >> 20} MiB; at most {MOST_BYTES >> 20} MiB are read")
    return _READERS[ending](path)


def _onnx(path: Path, fixed: Mapping[str, int]) -> Workload:
    """Read an ONNX workload in a separate process (`onnx_layers`), because the model is untrusted."""
    import tempfile  # Import late: only ONNX needs the module.

    from kernrec.store.reader import read_apart
    from kernrec.util.optional import require_optional

    require_optional(("onnx",), "an .onnx workload", "onnx")
    request = {"path": str(path.absolute()), "fixed": dict(fixed)}
    with tempfile.TemporaryDirectory(prefix="kernrec-") as folder:
        read_apart("onnx", request, str(path), path.stat().st_size, Path(folder), "kernrec.interop.onnx_layers")
        content = json.loads(Path(folder, "workload.json").read_text(encoding="utf-8"))
    layers = tuple(layer_from(entry) for entry in content["layers"])
    unknown_lines = tuple(printable(str(line)) for line in content["unknown"])
    batch = max(1, fixed.get("batch", 1))
    return Workload(
        path.stem, printable(path.name), str(path), layers, batch=batch, unknown=unknown_lines, one_network=True
    )


def _csv(path: Path) -> Workload:
    with _opened(path) as lines:
        reader = csv.DictReader(lines, strict=True)
        try:
            heads = [head.strip().lower() for head in reader.fieldnames or ()]
            if "op" not in heads:
                raise UsageError(
                    f"{path}: the first line has no column op; expected the columns op, count and the op's dimensions"
                )
            if len(set(heads)) < len(heads):
                raise UsageError(f"{path}: a column is named twice")
            reader.fieldnames = heads
            rows = ((reader.line_num, row) for row in reader)
            return _of_entries(path, ((line, _csv_entry(path, line, row)) for line, row in rows))
        except csv.Error as error:
            raise UsageError(f"{path}, line {reader.line_num}: {error}") from None


def _csv_entry(path: Path, line: int, row: Mapping[str | None, Any]) -> dict[str, Any]:
    if None in row:
        raise UsageError(f"{path}, line {line}: more fields than the first line has columns")
    entry: dict[str, Any] = {}
    for key, cell in row.items():
        text = (cell or "").strip()
        if not text or key is None:
            continue
        if key in _COMMON and key != "count":
            entry[key] = text
        elif _WHOLE.fullmatch(text):
            entry[key] = int(text)
        else:
            raise UsageError(f"{path}, line {line}: {key} is {short(text)}; expected a whole number")
    if "op" not in entry:
        raise UsageError(f"{path}, line {line}: op is empty")
    return entry


def _log(path: Path) -> Workload:
    with _opened(path) as lines:
        return _of_entries(path, _log_entries(path, lines), ordered=False)


def _log_entries(path: Path, lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            raise UsageError(f"{path}, line {number}: not a JSON object") from None
        shape = request.get("shape") if isinstance(request, dict) else None
        if not isinstance(shape, dict) or not isinstance(request.get("op"), str):
            raise UsageError(
                f"{path}, line {number}: expected an object with op (a name) and shape (an object of dimensions)"
            )
        common = {key: request[key] for key in _COMMON if request.get(key) is not None}
        if clash := next((key for key in shape if key in _COMMON), None):
            raise UsageError(f"{path}, line {number}: {clash!r} is not a dimension")
        yield number, common | shape


def _of_entries(path: Path, entries: Iterator[tuple[int, dict[str, Any]]], ordered: bool = True) -> Workload:
    """Return a workload with one layer per distinct problem, most frequent first unless `ordered`.

    Each entry is a line number and the description of a problem.
    """
    layers: dict[Any, Layer] = {}
    counts: Counter[Any] = Counter()
    strange: Counter[str] = Counter()
    for line, entry in entries:
        try:
            layer = layer_from(entry)
        except UsageError as error:
            if str(error).startswith("unknown op "):
                strange[str(entry["op"])] += 1
                continue
            raise UsageError(f"{path}, line {line}: {error}") from None
        layers.setdefault(layer.problem, layer)
        counts[layer.problem] += layer.count
        if len(layers) > MOST_LAYERS:
            raise UsageError(f"{path}: more than {MOST_LAYERS} distinct layers")
    lines = tuple(f"{times} of the unknown op {short(op)}" for op, times in strange.most_common())
    if not layers:
        raise UsageError(f"{path} has no layer" + (f" of a known op: {lines[0]}" if lines else ""))
    order = list(layers) if ordered else [problem for problem, _ in counts.most_common()]
    named = []
    for problem in order:
        layer, dims = layers[problem], ",".join(f"{name}={value}" for name, value in problem.dims)
        name = f"{layer.name} {dims}" if layer.name == problem.op else layer.name
        named.append(replace(layer, name=name, count=counts[problem]))
    return Workload(path.stem, path.name, str(path), tuple(named), unknown=lines)


def _opened(path: Path) -> Any:
    """Open a UTF-8 file with or without a byte order mark."""
    try:
        return io.TextIOWrapper(open_input(path), encoding="utf-8-sig", errors="replace", newline="")
    except OSError as error:
        raise UsageError(cannot_be("read", f"workload file {path}", error)) from None


_READERS: dict[str, Callable[[Path], Workload]] = {
    ".toml": lambda path: load_workload(path.resolve()),
    ".csv": _csv,
    ".jsonl": _log,
}
ENDINGS = (*_READERS, ".onnx", ".json")


def append_query(path: Path, problem: Problem) -> None:
    """Append a query to a query log, and create the log if necessary. Raise `UsageError` if it cannot be written."""
    line = {"op": problem.op, "shape": problem.dim, "dtype": problem.dtype, "layout": problem.layout}
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            # Write everything at once, because programs that run at the same time append to the same file.
            os.write(descriptor, json.dumps(line).encode() + b"\n")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UsageError(cannot_be("written", f"the query log {path}", error)) from None
