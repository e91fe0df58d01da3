"""Read an untrusted ONNX model in a limited child process of `workload_files`, and print the answer.

A model that makes the parser or shape inference crash, hang or exhaust memory affects only this process.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernrec.errors import KernrecError
from kernrec.interop.onnx_layers import read_onnx
from kernrec.store.reader import Limits
from kernrec.util.process import end_with_parent


def main() -> int:
    """Perform the request on standard input, and return the exit status."""
    request = json.loads(sys.stdin.read())
    limits = Limits(**request["limits"])
    limits.apply()
    end_with_parent()
    print(json.dumps(answer(request, limits)))
    return 0


def answer(request: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Write `workload.json` to the request's folder, and return the answer or the reason for rejecting the file."""
    try:
        workload = read_onnx(Path(request["path"]), request["fixed"])
    except KernrecError as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"refused": f"{request['title']} needs more memory than a file of its size should"}
    layers = [
        {"name": x.name, "op": x.problem.op, "count": x.count, "dtype": x.problem.dtype, "layout": x.problem.layout}
        | x.problem.dim
        for x in workload.layers
    ]
    content = {"layers": layers, "unknown": list(workload.unknown)}
    Path(request["folder"], "workload.json").write_text(json.dumps(content), encoding="utf-8")
    return {"found": {"layers": len(layers)}}


if __name__ == "__main__":
    sys.exit(main())
