"""Read call files of CUDA kernels, which describe launches that `kernrec.capture.recorded_calls` recorded."""

import re
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError, unknown
from kernrec.gpu import GPU
from kernrec.kernel import Kernel
from kernrec.kernel.cuda_signature import source_name
from kernrec.kernel.expression import identifier
from kernrec.kernel.source_files import read_toml
from kernrec.profile.ptx_kernel import kernel_of_ptx
from kernrec.recommender.analyze.kernel import Analysis, analyze
from kernrec.recommender.analyze.profile_configs import ProfilingOptions
from kernrec.recommender.request import Query
from kernrec.util.light_dataclass import dataclass

_KEYS = ("ptx", "launches", "entry", "grid", "block", "shared", "arguments")


@dataclass(frozen=True)
class CudaCall:
    """Recorded launch of a CUDA kernel."""

    path: Path
    ptx: Path
    entry: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[str, ...]
    shared: int = 0
    """Dynamic shared memory per thread block in bytes."""
    launches: int = 1

    def kernel(self) -> tuple[Kernel, list[str]]:
        """Return the launched kernel, and notes for the user."""
        return kernel_of_ptx(self.ptx, self.entry, self.grid, self.block, self.arguments, self.shared, captured=True)

    def seconds(self, gpu: GPU, database: Path, budget: int) -> float:
        """Predict the time of one launch in seconds. The block size is the program's.

        Args:
            database: Path of the database that stores the kernel's profile.
            budget: Maximum number of PTX instructions of a thread block.
        """
        kernel, _ = self.kernel()
        problem = kernel.definition.problem()
        x, y = (*self.block, 1)[:2]
        config = {"block_x": x, "block_y": y}
        options = ProfilingOptions(folder=self.path.parent, only=[config], budget=budget, processes=1)
        analysis: Analysis = analyze(kernel, problem, gpu, database, Query(each_config=True, top=1 << 20), options)
        rows = [row for row in analysis.answer.recommendations if dict(row.config) == config]
        return float((rows or list(analysis.answer.recommendations))[0].latency_s.value)


def is_cuda_call(path: Path) -> bool:
    """Return whether a call file describes a CUDA kernel instead of a Triton function."""
    try:
        return path.suffix == ".toml" and bool(re.search(r"^ptx\s*=", path.read_text(encoding="utf-8"), re.MULTILINE))
    except (OSError, UnicodeDecodeError):
        return False


def read_cuda_call(path: Path) -> CudaCall:
    """Read a call file. Raise `UsageError` if the file has another format."""
    data = read_toml(path, path.name)
    for key in data:
        if key not in _KEYS:
            raise UsageError(f"{path.name}: {unknown('key', key, _KEYS)}")

    def checked(key: str, kind: type, default: Any = None) -> Any:
        value = data.get(key, default)
        if type(value) is not kind:
            expected = {str: "text", int: "a whole number"}.get(kind, f"a {kind.__name__}")
            raise UsageError(f"{path.name}: {key}: expected {expected}, got {value!r:.40}")
        return value

    grid, block = (tuple(checked(key, list)) for key in ("grid", "block"))
    if not all(
        len(extents) in (1, 2, 3) and all(type(n) is int and n > 0 for n in extents) for extents in (grid, block)
    ):
        raise UsageError(f"{path.name}: grid and block: expected one to three positive numbers each")
    arguments = [
        re.sub(r"@(?!/)", lambda _: f"@{path.parent.resolve()}/", text, count=1) if isinstance(text, str) else text
        for text in checked("arguments", list)
    ]
    if odd := [text for text in arguments if not isinstance(text, str)]:
        raise UsageError(f'{path.name}: arguments: expected strings such as "i32:4096", got {odd[0]!r:.40}')
    if (launches := checked("launches", int, 1)) < 1:
        raise UsageError(f"{path.name}: launches: expected a positive number, got {launches}")
    return CudaCall(
        path, path.parent / checked("ptx", str), checked("entry", str), grid, block, tuple(arguments),
        checked("shared", int, 0), launches,
    )  # fmt: skip


def short_name(entry: str) -> str:
    """Return a kernel's source name without parameters and namespaces."""
    return identifier(source_name(entry))
