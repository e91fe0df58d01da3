"""A recommended config as a fat binary: machine code of the GPU, and PTX for later ones."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernrec.emit.files import Files
from kernrec.emit.machine_code import compiled_choice

if TYPE_CHECKING:
    from kernrec.recommender.result import Recommendation


def emit(answers: "Sequence[Recommendation]") -> Files:
    """The fat binary of the best config."""
    from kernrec.compile.assemble import fat_binary

    best = answers[0].best
    return {f"{best.kernel.name}.fatbin": fat_binary(compiled_choice(best), best.gpu.sm)}
