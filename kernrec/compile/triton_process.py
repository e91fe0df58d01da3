"""Processes of their own for users' Triton sources: a request in JSON on standard input, an answer in JSON's last line.

A process is killed with all that it started. `compile_apart` compiles one source in such a process, which needs no
`__main__` guard in the program that starts it.
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

from kernrec.compile.cache import CompileCache
from kernrec.compile.compiled import Compiled, CompileError, CompileJob, TritonTarget
from kernrec.compile.nvrtc import cache_key, compile_job
from kernrec.errors import KernrecError, UsageError
from kernrec.util.process import end_with_parent, kill_group, module_command, module_environment, own_group

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
    """The last line that `python -m module` prints, as JSON; standard input is `request`.

    Args:
        module: to run.
        request: JSON text.
        about: the function that messages name.
        work: of the process, for the message where it dies.
        limit_s: how long it may take, seconds; None: as long as it likes.
        environment: of the process; None: that of this one.

    Raises:
        UsageError: it took too long.
        KernrecError: it died.
    """
    pipe = subprocess.PIPE
    environment = environment or module_environment()
    command = module_command(module)
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, **own_group())
    try:
        output, errors = process.communicate(request.encode(), timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise UsageError(f"{about}: the process that {work} took longer than {limit_s:g} s") from None
    finally:
        kill_group(process)
        process.wait()
    try:
        return dict(json.loads(output.splitlines()[-1]))
    except (ValueError, IndexError):
        reason = (errors.decode(errors="replace").strip().splitlines() or [f"exit status {process.returncode}"])[-1]
        raise KernrecError(f"{about}: the process that {work} died: {reason:.200}") from None


def answer_request(
    task: Callable[[dict[str, Any]], Mapping[str, Any]], plain: Callable[[Any], Any] | None = None
) -> int:
    """The main function of such a process, with limited memory; the exit status.

    Args:
        task: makes the answer to a request, which has the `name` of the file; its errors become `refused`. Its output
            is dropped.
        plain: of a value in the answer that is no JSON: one that is.
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
    """The result of a job whose `triton` is set, from `cache`, else from a process, and then cached.

    Raises:
        CompileError: the source does not compile.
        UsageError: compiling took too long.
        KernrecError: the process died, or Triton is missing.
    """
    key = cache_key(job)
    result = cache.get(key)
    if result is None:
        target = job.triton
        assert target is not None
        with tempfile.TemporaryDirectory() as folder:
            request = {
                "name": job.name,
                "job": {"source": job.source, "sm": job.sm, "defines": dict(job.defines), "name": job.name},
                "target": {
                    "function": target.function,
                    "signature": dict(target.signature),
                    "key": target.key,
                    "module": target.module,
                },
                "imports": str(target.folder) if target.folder else None,
                "result": folder,
            }
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            answer = answer_of(
                "kernrec.compile.triton_process",
                json.dumps(request),
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
    """The task of the process that `compile_apart` starts: it leaves the result in a folder, as in the cache."""
    imports = request["imports"]
    target = TritonTarget(**request["target"], folder=Path(imports) if imports else None)
    compile_job(CompileJob(**request["job"], triton=target), CompileCache(Path(request["result"])))
    return {}


if __name__ == "__main__":
    sys.exit(answer_request(_compile))
