"""What the files of vLLM and SGLang have in common: the same entries, under names of their own."""

from typing import TYPE_CHECKING

from kernrec.emit.files import Files
from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.interop.moe_configs import ExpertLayer, read_moe_configs, tiles_of, write_moe_configs

if TYPE_CHECKING:
    from kernrec.recommender.result import Recommendation


def expert_file(answer: "Recommendation", detail: str, tool: str) -> Files:
    """A file with one entry: the first choice of an answer about an expert product.

    Args:
        answer: about a Triton function with the tunables of `moe_configs.TILES`.
        detail: the layer, as `ExpertLayer.parse` takes it.
        tool: `vllm` or `sglang`.

    Raises:
        UsageError: the layer or the kernel does not fit.
    """
    layer = ExpertLayer.parse(detail)
    if find_gpu(layer.device) != answer.gpu:
        raise UsageError(f"device is {layer.device!r}, but the answer is for {answer.gpu.title}")
    kernel = answer.best.kernel
    if kernel.triton is None:
        raise UsageError(f"{kernel.name} is no Triton function, and {tool} runs one")
    tiles = tiles_of(kernel, answer.best.config)
    return {layer.file_name(tool): write_moe_configs({layer.tokens: tiles}).encode()}


def merged(before: bytes, new: bytes, where: str) -> bytes:
    """The entries of two files; those of `new` count. `where` names the first in errors."""
    known, version = read_moe_configs(before.decode("utf-8", "replace"), where)
    added, _ = read_moe_configs(new.decode(), "what is emitted")
    return write_moe_configs(known | added, version).encode()
