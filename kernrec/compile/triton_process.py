"""Run code of users' Triton sources in separate processes.

A process reads a request as JSON from standard input, and prints its answer as JSON in the last line. Stopping a
process also stops everything that it started.
"""

import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from kernrec.compile.compiled import CompileCache, Compiled, CompileError, CompileJob, TritonTarget
from kernrec.compile.nvrtc import cache_key, compile_job
from kernrec.errors import KernrecError, UsageError
from kernrec.util.process import end_with_parent, module_command, module_environment, run_in_group

_COMPILE_LIMIT_S = 600.0


def answer_of(
    module: str,
    request: str,
    about: str,
    *,
    work: str = "loads it",
    limit_s: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run `python -m module` with `request` as standard input, and return the JSON value that it prints last.

    Args:
        about: name of the function, for messages.
        work: name of the task, for the message if the process dies.
        limit_s: time limit in seconds, or None.
        environment: environment of the process, or None to inherit it.

    Raises:
        UsageError: the process exceeds the time limit.
        KernrecError: the process died.
    """
    try:
        done = run_in_group(module_command(module), request.encode(), limit_s, environment or module_environment())
    except subprocess.TimeoutExpired:
        raise UsageError(f"{about}: the process that {work} took longer than {limit_s:g} s") from None
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise KernrecError(f"{about}: the process that {work} died: {reason:.200}") from None


def answer_request(
    task: Callable[[dict[str, Any]], Mapping[str, Any]], plain: Callable[[Any], Any] | None = None
) -> int:
    """Answer a request from standard input with limited memory, and return the exit status of the process.

    Args:
        task: function that answers a request. Printed text is dropped. If it raises an error, the answer is
            `{"refused": MESSAGE}`. The request's key `name` names the user's file.
        plain: function that converts a value that JSON cannot represent.
    """
    from kernrec.compile.pool import limit_memory

    request = json.loads(sys.stdin.read())
    name = request["name"]
    limit_memory()
    end_with_parent()
    try:
        with redirect_stdout(io.StringIO()):
            answer = json.dumps(task(request), default=plain)
    except KernrecError as error:
        answer = _refusal(str(error))
    except ModuleNotFoundError as error:
        answer = _refusal(f"{name}: needs the module {error.name}, which is not installed")
    except SyntaxError as error:
        answer = _refusal(f"{name}:{error.lineno}: {error.msg}")
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[-1]
        answer = _refusal(f"{name}: {type(error).__name__}: {line:.200}")
    print(answer)
    return 0


def _refusal(message: str) -> str:
    return json.dumps({"refused": message})


def compile_apart(job: CompileJob, cache: CompileCache) -> Compiled:
    """Return the result of a Triton job, from `cache` or from a separate process.

    Raises:
        CompileError: the source does not compile.
        UsageError: compiling took too long.
        KernrecError: the process died, or Triton is not installed.
    """
    key = cache_key(job)
    result = cache.get(key)
    if result is None:
        with tempfile.TemporaryDirectory() as folder:
            # JSON represents the target's folder as text.
            request = {"name": job.name, "job": {**vars(job), "triton": vars(job.triton)}, "result": folder}
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            answer = answer_of(
                "kernrec.compile.triton_process",
                json.dumps(request, default=str),
                job.name,
                work="compiles it",
                limit_s=_COMPILE_LIMIT_S,
                environment=environment,
            )
            result = CompileCache(Path(folder)).get(key)
        if result is None:
            raise CompileError(answer.get("refused", f"{job.name}: the process that compiles it left no result"))
        cache.put(key, result)
    if isinstance(result, CompileError):
        raise result
    return result


def _compile(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Compile the job of a request, and write the result to a folder in the cache's format."""
    job, target = request["job"], request["job"]["triton"]
    target = TritonTarget(**{**target, "folder": target["folder"] and Path(target["folder"])})
    compile_job(CompileJob(**{**job, "triton": target}), CompileCache(Path(request["result"])))
    return {}


if __name__ == "__main__":
    sys.exit(answer_request(_compile))
