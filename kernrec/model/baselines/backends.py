"""Find backends by name or spelling, and list the release dates of recorded versions."""

import re
from collections.abc import Collection, Iterable, Mapping

from kernrec.errors import fold, unknown

_RELEASED: Mapping[str, Mapping[str, str]] = {
    "vLLM": {
        "0.14.0": "2026-01-20", "0.18.0": "2026-03-20", "0.19.0": "2026-04-03", "0.22.0": "2026-05-29",
        "0.24.0": "2026-06-30",
    },
    "SGLang": {
        "0.5.6.post2": "2025-12-11", "0.5.9": "2026-02-23", "0.5.10": "2026-04-05", "0.5.12": "2026-05-16",
        "0.5.14": "2026-06-26",
    },
    "TensorRT-LLM": {
        "1.0.0": "2025-09-24", "1.2.0rc5": "2025-12-10", "1.3.0rc10": "2026-03-31", "1.3.0rc15": "2026-05-21",
        "1.3.0rc17": "", "1.3.0rc20": "",
    },
    "PyTorch": {"2.1": "2023-10-04", "of August 2024": "2024-08"},
}  # fmt: skip
"""Release dates of the first wheels on PyPI (looked up on 28 November 2026), keyed by backend, then by version. Empty
if there is no wheel."""
_TO = " to "


def released(backend: str, version: str | None) -> str | None:
    """Return the release date of a version, such as `2026-06-30`, or None if the date is unknown. Return two dates if
    `version` is a range from `versions_text`."""
    dates = _RELEASED.get(backend.partition(" (")[0], {})
    end_dates = [dates.get(end) for end in (version or "").partition(",")[0].split(_TO)]
    known_dates = [date for date in end_dates if date]
    return _TO.join(dict.fromkeys(known_dates)) if len(known_dates) == len(end_dates) else None


def known_versions(backend: str) -> tuple[str, ...]:
    """Return the recorded versions of a backend, oldest first."""
    return tuple(_RELEASED.get(backend, {}))


def versions_text(versions: Iterable[str | None]) -> str | None:
    """Return the range of versions as a text, such as `0.14.0 to 0.24.0`, or None if all versions are None."""
    ordered = sorted({version for version in versions if version}, key=by_number)
    return _TO.join(dict.fromkeys((ordered[0], ordered[-1]))) if ordered else None


def by_number(version: str) -> list[tuple[int, str]]:
    """Return a sort key for a version, so that 0.5.9 comes before 0.5.10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|[a-z]+", version)]


BACKENDS = ("PyTorch", "vLLM", "SGLang", "TensorRT-LLM", "cuBLAS", "cuDNN", "FlashAttention")

AT = "@"
"""Separator between a backend and an old version, as in `TensorRT-LLM@1.2.0rc5`."""

_LEAST_SM = {"vLLM": 70, "SGLang": 75, "TensorRT-LLM": 80}
"""Lowest compute capability (times ten) that a backend supports, according to the installation guides of vLLM 0.14 and
FlashInfer 0.7, and TensorRT-LLM's list of hardware. Other backends run on every GPU in the catalog."""

_SPELLINGS = {fold(name): name for name in BACKENDS} | {
    "torch": "PyTorch", "trtllm": "TensorRT-LLM", "tensorrt": "TensorRT-LLM", "trt": "TensorRT-LLM",
    "flashattn": "FlashAttention", "fa3": "FlashAttention", "fa2": "FlashAttention",
}  # fmt: skip


def known_backends(names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the official names of backends, given as a sequence or a comma-separated text. A name may end in `@` and a
    version. Raise `UsageError` if a name is unknown."""
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
    """Return a backend's name without version and variant: `SGLang` for `SGLang (static scales)@0.5.12`."""
    return backend.partition(AT)[0].partition(" (")[0]


def supports(backend: str, sm: int) -> bool:
    """Return whether a backend runs on GPUs of compute capability `sm`, such as 75 for 7.5."""
    return sm >= _LEAST_SM.get(backend_of(backend), 0)


def is_wanted(backend: str, wanted: Collection[str], version: str | None = None) -> bool:
    """Return whether the user requested a backend. An empty `wanted` requests every backend."""
    # `SGLang` also requests variants, such as `SGLang (static scales)`. `vLLM@0.14.0` requests only one version.
    names = backend, backend.partition(" (")[0]
    if not wanted or any(name in wanted for name in names):
        return True
    number = (version or "").partition(",")[0]
    return any(f"{name}{AT}{number}" in wanted for name in names)
