"""Find backends by name or by other common spellings."""

from collections.abc import Collection, Iterable

from kernrec.errors import fold, unknown
from kernrec.model.vendor.releases import known_versions

BACKENDS = ("PyTorch", "vLLM", "SGLang", "TensorRT-LLM", "cuBLAS", "cuDNN", "FlashAttention")

AT = "@"
"""Separator between a backend and a superseded version, as in `TensorRT-LLM@1.2.0rc5`."""

_LEAST_SM = {"vLLM": 70, "SGLang": 75, "TensorRT-LLM": 80}
"""Lowest compute capability according to the installation guide of vLLM 0.14, FlashInfer 0.7 (SGLang's kernels) and
the list of supported hardware of TensorRT-LLM. Other backends run on every GPU of the catalog.
"""

_SPELLINGS = {fold(name): name for name in BACKENDS} | {
    "torch": "PyTorch", "trtllm": "TensorRT-LLM", "tensorrt": "TensorRT-LLM", "trt": "TensorRT-LLM",
    "flashattn": "FlashAttention", "fa3": "FlashAttention", "fa2": "FlashAttention",
}  # fmt: skip


def known_backends(names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the backends with these names, given as a sequence or comma-separated; empty for None.

    A name may end in `@` and a version.

    Raises:
        UsageError: A backend is unknown, or no recording has the version.
    """
    texts = [names] if isinstance(names, str) else list(names or ())
    typed = [part.strip() for text in texts for part in str(text).split(",")]
    return tuple(dict.fromkeys(map(_named, typed)))


def _named(typed: str) -> str:
    name, _, version = typed.partition(AT)
    if (backend := _SPELLINGS.get(fold(name))) is None:
        raise unknown("backend", name, BACKENDS)
    if version and version not in (versions := known_versions(backend)):
        raise unknown(f"version of {backend}", version, versions)
    return f"{backend}{AT}{version}" if version else backend


def backend_of(backend: str) -> str:
    """Return the backend without version and variant: `SGLang` of `SGLang (static scales)@0.5.12`."""
    return backend.partition(AT)[0].partition(" (")[0]


def supports(backend: str, sm: int) -> bool:
    """Return whether a backend runs on GPUs of compute capability `sm`, such as 75."""
    return sm >= _LEAST_SM.get(backend_of(backend), 0)


def is_wanted(backend: str, wanted: Collection[str], version: str | None = None) -> bool:
    """Return whether a backend is requested; `SGLang (static scales)` counts as SGLang.

    Args:
        backend: Name of the backend.
        wanted: Requested names, some with `@` and a version; empty for all.
        version: Version of the backend, which may have a variant after a comma.
    """
    names = backend, backend.partition(" (")[0]
    if not wanted or any(name in wanted for name in names):
        return True
    number = (version or "").partition(",")[0]
    return any(f"{name}{AT}{number}" in wanted for name in names)
