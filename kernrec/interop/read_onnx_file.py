"""The child that reads a stranger's ONNX model, with limits: started by `workload_files`, prints its answer.

A model that makes the parser or the inference of shapes crash, hang or take all memory costs this process alone.
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
    """Do what the request on standard input says; the exit status."""
    request = json.loads(sys.stdin.read())
    limits = Limits(**request["limits"])
    limits.apply()
    end_with_parent()
    print(json.dumps(answer(request, limits)))
    return 0


def answer(request: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """The answer to a request, written to `workload.json` in its folder, or the line with which its file is refused."""
    try:
        workload = read_onnx(Path(request["path"]), request["fixed"])
    except KernrecError as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"refused": f"{request['title']} takes more memory than a file of its size may"}
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
