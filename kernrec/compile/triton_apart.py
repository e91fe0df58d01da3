"""One Triton source compiled in a process of its own, which needs no `__main__` guard in the program that starts it.

The process gets the job in JSON on its standard input and leaves the result in a folder, as the compile cache does.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from kernrec.compile.cache import CompileCache
from kernrec.compile.compiled import Compiled, CompileError, CompileJob, TritonTarget
from kernrec.compile.nvrtc import cache_key, compile_job
from kernrec.compile.triton_process import answer_of

_LIMIT_S = 600.0


def compile_apart(job: CompileJob, cache: CompileCache) -> Compiled:
    """The result of a job whose `triton` is set, from `cache`, else from a process, and then kept.

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
                "job": {"source": job.source, "sm": job.sm, "defines": dict(job.defines), "name": job.name},
                "target": {"function": target.function, "signature": dict(target.signature), "key": target.key},
                "imports": str(target.folder) if target.folder else None,
                "result": folder,
            }
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            answer = answer_of(
                __name__, json.dumps(request), job.name, work="compiles it", limit_s=_LIMIT_S, environment=environment
            )
            result = CompileCache(Path(folder)).get(key)
        if result is None:
            raise CompileError(answer.get("refused", f"{job.name}: the process that compiles it left no result"))
        cache.put(key, result)
    if isinstance(result, CompileError):
        raise result
    return result


def main() -> int:
    """The process that `compile_apart` starts; the exit status."""
    from kernrec.compile.pool import limit_memory

    request = json.loads(sys.stdin.read())
    limit_memory()
    imports = request["imports"]
    target = TritonTarget(**request["target"], folder=Path(imports) if imports else None)
    answer = {}
    try:
        compile_job(CompileJob(**request["job"], triton=target), CompileCache(Path(request["result"])))
    except CompileError as error:
        answer = {"refused": str(error)}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
