"""Write the compiler's PTX of a recommended config, and how to launch it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kernrec.emit.cuda import launch_comment, variant_source
from kernrec.emit.files import Files

if TYPE_CHECKING:
    from kernrec.compile import Compiled
    from kernrec.kernel import Kernel
    from kernrec.kernel.binding import BoundLaunch
    from kernrec.recommender.result import Answer, Recommendation


def compiled_recommendation(recommendation: "Recommendation") -> "Compiled":
    """Return the compiled code of a config; Triton's PTX requests shared memory at the launch, like machine code.
    Raises `KernrecError` if there is no compiler, or the source does not compile.
    """
    from kernrec.compile import CompileCache, compile_source

    kernel, problem, sm = recommendation.kernel, recommendation.problem, recommendation.gpu.sm
    if kernel.triton is None:
        source = variant_source(kernel, recommendation.config, problem)
        return compile_source(source, sm, name=kernel.source_name)
    from kernrec.compile.triton_compile import with_dynamic_shared
    from kernrec.compile.triton_process import compile_apart
    from kernrec.profile.kernel_code import compile_job_for

    job = compile_job_for(kernel, recommendation.config, problem, sm, source_folder(kernel))
    compiled = compile_apart(job, CompileCache.default())
    return replace(compiled, ptx=with_dynamic_shared(compiled.ptx))


def source_folder(kernel: "Kernel") -> Path | None:
    """Return the folder from which a Triton source imports other files: the current folder, if it contains the
    source.
    """
    return Path.cwd() if Path(kernel.source_name).is_file() else None


def launches_of(recommendation: "Recommendation", compiled: "Compiled") -> "tuple[BoundLaunch, ...]":
    """Return the launches of a config with the shared memory that its code needs."""
    from kernrec.profile.kernel_code import dynamic_shared_bytes

    return tuple(
        replace(bound, shared_bytes=dynamic_shared_bytes(recommendation.kernel, bound, compiled))
        for bound in recommendation.launches
    )


def emit(answers: "Sequence[Answer]") -> Files:
    """Return the PTX of the best config, with the launch in a comment at the top."""
    best = answers[0].best
    compiled = compiled_recommendation(best)
    text = "\n".join(launch_comment(best, launches_of(best, compiled))) + "\n" + compiled.ptx
    return {f"{best.kernel.name}.ptx": text.encode()}
