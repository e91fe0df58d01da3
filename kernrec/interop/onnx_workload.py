"""The workload of an ONNX model, read by a process of its own (`read_onnx_file`) and checked again here."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kernrec.op.workload import Workload, layer_from, printable
from kernrec.store.reader import read_apart
from kernrec.util.optional import require_optional


def onnx_workload(path: Path, fixed: Mapping[str, int]) -> Workload:
    """The workload of a model; equal problems are one layer.

    Args:
        path: the file.
        fixed: values of dimensions that the model leaves open, by name.

    Raises:
        UsageError: the file cannot be used; the message says why, or which dimensions to fix.
        KernrecError: the package `onnx` is not installed.
    """
    require_optional(("onnx",), "an .onnx workload", "onnx")
    request = {"path": str(path.absolute()), "fixed": dict(fixed)}
    with tempfile.TemporaryDirectory(prefix="kernrec-") as folder:
        read_apart("onnx", request, str(path), path.stat().st_size, Path(folder), "kernrec.interop.read_onnx_file")
        content = json.loads(Path(folder, "workload.json").read_text(encoding="utf-8"))
    layers = tuple(layer_from(entry) for entry in content["layers"])
    unknown = tuple(printable(str(line)) for line in content["unknown"])
    return Workload(path.stem, printable(path.name), str(path), layers, unknown=unknown)
