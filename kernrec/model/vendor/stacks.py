"""The stacks: what people run today, by name and by the other spellings people type."""

from collections.abc import Collection, Iterable

from kernrec.errors import fold, unknown
from kernrec.model.vendor.releases import known_versions

STACKS = ("PyTorch", "vLLM", "SGLang", "TensorRT-LLM", "cuBLAS", "cuDNN", "FlashAttention")

AT = "@"
"""Separates a backend from a version that is not its newest: `TensorRT-LLM@1.2.0rc5`."""

_SPELLINGS = {fold(name): name for name in STACKS} | {
    "torch": "PyTorch", "trtllm": "TensorRT-LLM", "tensorrt": "TensorRT-LLM", "trt": "TensorRT-LLM",
    "flashattn": "FlashAttention", "fa3": "FlashAttention", "fa2": "FlashAttention",
}  # fmt: skip


def stacks_named(names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the backends of these names, given one by one or with commas between them; none for None.

    A name may end in `@` and a version.

    Raises:
        UsageError: a backend is unknown, or no recording is of the version.
    """
    texts = [names] if isinstance(names, str) else list(names or ())
    typed = [part.strip() for text in texts for part in str(text).split(",")]
    return tuple(dict.fromkeys(map(_named, typed)))


def _named(typed: str) -> str:
    name, _, version = typed.partition(AT)
    if (stack := _SPELLINGS.get(fold(name))) is None:
        raise unknown("backend", name, STACKS)
    if version and version not in (versions := known_versions(stack)):
        raise unknown(f"version of {stack}", version, versions)
    return f"{stack}{AT}{version}" if version else stack


def backend_of(stack: str) -> str:
    """Return the backend of a stack, without version and variant: `SGLang` of `SGLang (static scales)@0.5.12`."""
    return stack.partition(AT)[0].partition(" (")[0]


def is_wanted(stack: str, wanted: Collection[str], version: str | None = None) -> bool:
    """Whether a stack is among those wanted (empty: all); `SGLang (static scales)` is one of SGLang.

    Args:
        stack: its name.
        wanted: names, some with `@` and a version.
        version: of the stack, perhaps with a variant behind a comma.
    """
    names = stack, stack.partition(" (")[0]
    if not wanted or any(name in wanted for name in names):
        return True
    number = (version or "").partition(",")[0]
    return any(f"{name}{AT}{number}" in wanted for name in names)
