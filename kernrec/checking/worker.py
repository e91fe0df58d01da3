"""Check or analyze one source, as the main program of a child process of `kernrec.checking.child_process`.

The process imports everything before it loses access to files. It writes `outcome` and either `message` or `result` to
`result.json`. It writes only `misuse` if the request is invalid, and only `missing` if a package is missing.
"""

import contextlib
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kernrec.checking.child_process import Limits, limit_process, load_arrays, save_arrays
from kernrec.compile.compiled import CompileError, NoCompilerError
from kernrec.compile.nvrtc import compile_source
from kernrec.errors import KernrecError, UsageError
from kernrec.ptx import KernelLaunch, emulate, parse
from kernrec.ptx.state.results import EmulationError
from kernrec.store.measurement import Outcome
from kernrec.util import engine
from kernrec.util.process import holds_no_lock

_QUOTED = re.compile(r'"?(/[^\s"\']+)')


def main(folder: Path) -> None:
    """Carry out the request in a folder's file `request.json`, and write the result to the folder."""
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    limits = Limits(**request["limits"])
    watch = threading.Thread(target=_end_with_parent, daemon=True)
    holds_no_lock(watch)
    watch.start()
    with contextlib.suppress(KernrecError):  # If the engine is missing, the task reports it.
        engine.module()  # Load kernrec's C++ engine before this process loses access to its file.
    limit_process(limits, folder)
    try:
        answer = {"outcome": Outcome.OK, "result": _TASKS[request["task"]](request, folder)}
    except NoCompilerError as error:
        answer = {"missing": str(error)}
    except CompileError as error:
        outcome = {"timeout": Outcome.TIMEOUT, "crash": Outcome.CRASH}.get(error.reason, Outcome.COMPILE)
        answer = {"outcome": outcome, "message": str(error)}
    except EmulationError as error:
        answer = {"outcome": Outcome.CRASH, "message": str(error)}
    except UsageError as error:
        answer = {"misuse": str(error)}
    except KernrecError as error:
        answer = {"outcome": Outcome.CRASH, "message": str(error)}
    except MemoryError:
        answer = {"outcome": Outcome.CRASH, "message": f"it needs more than {limits.memory_bytes >> 20} MiB of memory"}
    for name in ("message", "misuse"):
        if name in answer:  # Do not reveal names of files on this machine.
            answer[name] = _QUOTED.sub("(a file)", str(answer[name]).replace(str(folder), "."))[:600]
    (folder / "result.json").write_text(json.dumps(answer), encoding="utf-8")


def _end_with_parent() -> None:
    if not os.read(sys.stdin.fileno(), 1):
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)  # The group contains only the checking process and its children.
        os._exit(1)


def _check(request: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Emulate a launch. Write its arrays to `outputs.npz` and the expected values to `expected.npz`."""
    arguments = load_arrays(folder / "arguments.npz")
    buffers = {name: np.ascontiguousarray(value) for name, value in arguments.items() if value.ndim}
    # Pass integers as Python integers, which fit integer parameters of any size.
    whole = request["whole"]
    order = [name if name in buffers else whole.get(name, arguments[name][()]) for name in request["order"]]
    expected = _expected(request["reference"], arguments)
    ptx, resources = request["source"], {}
    if request["file"].endswith(".cu"):
        compiled = compile_source(ptx, request["sm"], request["defines"], request["file"])
        ptx, resources = compiled.ptx, compiled.resources
    module = parse(ptx)
    entry = _entry(module.entries, request["entry"])
    shapes = {name: buffer.shape for name, buffer in buffers.items()}
    flat = {name: buffer.reshape(-1) for name, buffer in buffers.items()}
    launch = KernelLaunch(entry, request["grid"], request["block"], order, flat, request["shared_bytes"])
    counts = emulate(module, launch, check_races=True, budget=request["budget"])
    save_arrays(folder / "outputs.npz", {name: flat[name].reshape(shapes[name]) for name in flat})
    save_arrays(folder / "expected.npz", expected)
    used = resources.get(entry)
    return {
        "entry": entry,
        "counts": dict(sorted(counts.items())),
        "registers": used.registers if used else None,
        "spill_bytes": used.spill_store_bytes + used.spill_load_bytes if used else None,
    }


def _expected(reference: Mapping[str, str], arguments: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    if not reference:
        return {}
    from kernrec.checking.reference import evaluate

    exact: dict[str, Any] = {
        name: value.astype(np.float64 if value.dtype.kind == "f" else np.int64)[()] for name, value in arguments.items()
    }
    return {name: evaluate(text, exact) for name, text in reference.items()}


def _entry(entries: list[str] | tuple[str, ...], name: str | None) -> str:
    """Return a kernel's name in the compiled code. If `name` is None, return the only kernel."""
    if not entries:
        raise UsageError("the source has no kernel: expected a function that is __global__, or .entry in PTX")
    if name is None and len(entries) == 1:
        return entries[0]
    matches = [
        entry for entry in entries if entry == name or re.match(rf"_Z\d+{re.escape(name or '')}(?![a-z_])", entry)
    ]
    if name is None or len(matches) != 1:
        raise UsageError(f"the source has the kernels {', '.join(entries)}: name one of them as entry")
    return matches[0]


def _analyze(request: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    from kernrec.checking.analyze_source import analyze_here

    return analyze_here(request, folder)


_TASKS = {"check": _check, "analyze": _analyze}

if __name__ == "__main__":
    main(Path(sys.argv[1]))
