"""Represent a kernel's source with one launch, for a check or an analysis."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from kernrec.checking.limits import Limits
from kernrec.compile.nvrtc import check_files
from kernrec.errors import UsageError
from kernrec.gpu import find_gpu
from kernrec.profile.launch_arguments import (
    BufferDescription,
    ImageDescription,
    MapDescription,
    read_arguments,
    read_description,
)
from kernrec.ptx import BufferPlace, TensorMap
from kernrec.util.light_dataclass import dataclass

_PTX = re.compile(r"^\s*\.version\b", re.MULTILINE)
_MOST_BLOCKS = 1 << 20


@dataclass(frozen=True)
class SourceLaunch:
    """Source with the launch of one of its kernels."""

    source: str
    """CUDA C++ or PTX text."""
    arguments: Mapping[str, np.ndarray | np.generic | int]
    """Arguments by name, in the order of the kernel's parameters: C-contiguous arrays, and numbers."""
    grid: Sequence[int]
    """Thread blocks: one to three extents."""
    block: Sequence[int]
    """Threads per block: one to three extents."""
    gpu: str = "a100"
    """GPU whose architecture the source is compiled for."""
    entry: str | None = None
    """Name of the kernel; None for the only one."""
    shared_bytes: int = 0
    """Dynamic shared memory per block in bytes."""
    defines: Mapping[str, str] = field(default_factory=dict)
    """Macros for compiling CUDA C++."""

    @property
    def file(self) -> str:
        """Name of the source in messages."""
        return file_of(self.source)

    def check(self, limits: Limits) -> None:
        """Raise `UsageError` for sizes that are too large, an impossible launch, or a source that opens files."""
        check_source(self.source, self.file, limits)
        find_gpu(self.gpu)
        for name, extents in (("grid", self.grid), ("block", self.block)):
            if not 1 <= len(extents) <= 3 or not all(isinstance(n, int) and 0 < n <= _MOST_BLOCKS for n in extents):
                raise UsageError(f"{name} is {list(extents)!r:.60}; expected one to three positive whole numbers")
        if not 0 <= self.shared_bytes <= 256 << 10:
            raise UsageError(f"shared memory is {self.shared_bytes} bytes; expected 0 to {256 << 10}")
        for name, value in self.defines.items():
            if not (name.isidentifier() and name.isascii() and re.fullmatch(r"[\w.+-]{0,80}", value, re.ASCII)):
                raise UsageError(f"define {name!r:.40}: expected a name, and as its value a number or a name")
        total = sum(value.nbytes for value in self.arguments.values() if isinstance(value, np.ndarray))
        if total > limits.tensor_bytes:
            raise UsageError(f"the arrays have {total} bytes together; at most {limits.tensor_bytes} are accepted")


def file_of(source: str) -> str:
    """Return the name of a source in messages: kernel.ptx or kernel.cu."""
    return "kernel.ptx" if _PTX.search(source) else "kernel.cu"


def check_source(source: str, file: str, limits: Limits) -> None:
    """Raise `UsageError` for a source that is empty, is too large or opens files."""
    if not source.strip():
        raise UsageError("the source is empty; expected CUDA C++ or PTX")
    if len(source.encode(errors="replace")) > limits.source_bytes:
        raise UsageError(f"the source is larger than {limits.source_bytes} bytes")
    if "\0" in source:
        raise UsageError("the source is not text: it contains a NUL byte")
    check_files(source, file)


def check_descriptions(descriptions: Sequence[str], limits: Limits) -> None:
    """Raise `UsageError` for descriptions of arguments that name files or are too large."""
    total = 0
    for text in descriptions:
        described = read_description(text)
        content = described.content if isinstance(described, ImageDescription | MapDescription) else described
        if isinstance(content, BufferDescription):
            if content.path is not None:
                raise UsageError(f"argument {text!r:.60}: files are not read here; describe it as a=f32[4096]")
            total += 8 * content.elements
    if total > limits.tensor_bytes:
        raise UsageError(f"the arrays would have {total} bytes in total; at most {limits.tensor_bytes} are accepted")


def described_arguments(descriptions: Sequence[str], limits: Limits) -> dict[str, Any]:
    """Create arguments by name from descriptions as for `kernrec check`; the position names a number.

    Raises:
        UsageError: a description cannot be read, names a file, is a texture or a tensor map, or is too large.
    """
    check_descriptions(descriptions, limits)
    read = read_arguments(descriptions)
    if read.images or any(isinstance(argument, TensorMap) for argument in read.order):
        raise UsageError("textures and tensor maps cannot be checked here; use `kernrec check FILE.cu`")
    if any(isinstance(argument, BufferPlace | bytes) for argument in read.order):
        raise UsageError("structures and pointers into a buffer cannot be checked here; use `kernrec check FILE.cu`")
    named = {a if isinstance(a, str) else f"argument{n}": a for n, a in enumerate(read.order)}
    return {name: read.buffers[name] if isinstance(value, str) else value for name, value in named.items()}
