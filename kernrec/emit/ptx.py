"""A recommended config as PTX, with how to launch it in a comment in front."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernrec.emit.cuda import launch_comment
from kernrec.emit.files import Files
from kernrec.emit.machine_code import compiled_choice, launches_of

if TYPE_CHECKING:
    from kernrec.recommender.result import Recommendation


def emit(answers: "Sequence[Recommendation]") -> Files:
    """The PTX of the best config."""
    best = answers[0].best
    compiled = compiled_choice(best)
    text = "\n".join(launch_comment(best, launches_of(best, compiled))) + "\n" + compiled.ptx
    return {f"{best.kernel.name}.ptx": text.encode()}
