"""A recommended config as machine code of the GPU."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernrec.emit.files import Files
from kernrec.emit.machine_code import compiled_choice

if TYPE_CHECKING:
    from kernrec.recommender.result import Recommendation


def emit(answers: "Sequence[Recommendation]") -> Files:
    """The machine code of the best config."""
    best = answers[0].best
    return {f"{best.kernel.name}.cubin": compiled_choice(best).cubin}
