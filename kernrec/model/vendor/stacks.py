"""The stacks: what people run today, by name and by the other spellings people type."""

from collections.abc import Collection, Iterable

from kernrec.errors import fold, unknown

STACKS = ("PyTorch", "vLLM", "SGLang", "TensorRT-LLM", "cuBLAS", "cuDNN", "FlashAttention")

_SPELLINGS = {fold(name): name for name in STACKS} | {
    "torch": "PyTorch", "trtllm": "TensorRT-LLM", "tensorrt": "TensorRT-LLM", "trt": "TensorRT-LLM",
    "flashattn": "FlashAttention", "fa3": "FlashAttention", "fa2": "FlashAttention",
}  # fmt: skip


def stacks_named(names: str | Iterable[str] | None) -> tuple[str, ...]:
    """The stacks of these names, given one by one or with commas between them; none for None. Raises `UsageError`."""
    texts = [names] if isinstance(names, str) else list(names or ())
    typed = [part.strip() for text in texts for part in str(text).split(",")]
    for name in typed:
        if fold(name) not in _SPELLINGS:
            raise unknown("backend", name, STACKS)
    return tuple(dict.fromkeys(_SPELLINGS[fold(name)] for name in typed))


def is_wanted(stack: str, wanted: Collection[str]) -> bool:
    """Whether a stack is among those wanted (empty: all); `SGLang (static scales)` is one of SGLang."""
    return not wanted or stack in wanted or stack.partition(" (")[0] in wanted
