"""A recommended config as PTX, with how to launch it in a comment in front."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernrec.emit.cuda import launch_comment, variant_source
from kernrec.emit.files import Files
from kernrec.errors import KernrecError

if TYPE_CHECKING:
    from kernrec.compile import Compiled
    from kernrec.recommender.result import Choice, Recommendation


def emit(answers: "Sequence[Recommendation]") -> Files:
    """The PTX of the best config."""
    best = answers[0].best
    text = "\n".join(launch_comment(best)) + "\n" + compiled_choice(best).ptx
    return {f"{best.kernel.name}.ptx": text.encode()}


def compiled_choice(choice: "Choice") -> "Compiled":
    """What the compiler makes of a config.

    Raises:
        KernrecError: there is no compiler, or the kernel is in Triton.
    """
    if choice.kernel.triton is not None:
        raise KernrecError(f"{choice.kernel.name} is a Triton kernel, of which only the source is emitted: --emit cuda")
    from kernrec.compile import compile_source

    source = variant_source(choice.kernel, choice.config, choice.problem.dtype, choice.problem.layout)
    return compile_source(source, choice.gpu.sm, name=choice.kernel.source_name)
