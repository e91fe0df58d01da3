"""The best configs of an expert product in Triton as a file of vLLM's tuned configs, one entry a number of tokens."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernrec.emit.expert_configs import expert_file, merged
from kernrec.emit.files import Files

if TYPE_CHECKING:
    from kernrec.recommender.result import Recommendation


def emit(answers: "Sequence[Recommendation]", detail: str) -> Files:
    """The file, under the name by which vLLM looks for it; `detail` as `ExpertLayer.parse` takes it."""
    return expert_file(answers, detail, "vllm")


def merge(before: bytes, new: bytes, where: str) -> bytes:
    """The entries of a file that is there, and the new ones in place of those for as many tokens."""
    return merged(before, new, where)
