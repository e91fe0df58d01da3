"""Load the kernel of a spec file: a kernel.toml or a T1 file."""

from pathlib import Path

from kernrec.errors import UsageError, cannot_be
from kernrec.interop.spec_text import refuse_marks
from kernrec.interop.t1 import load_t1
from kernrec.kernel import Kernel, load_kernel
from kernrec.kernel.source_files import read_text


def load_spec(spec: Path, source: Path) -> tuple[Kernel, list[str]]:
    """Return the kernel that a spec describes, and notes on ignored parts of the spec.

    Args:
        spec: a kernel.toml or a T1 file.
        source: file of the kernel.

    Raises:
        UsageError: the spec is bad, or a kernel.toml describes another source.
    """
    if spec.suffix == ".json":
        return load_t1(spec, source)
    refuse_marks(read_text(spec, str(spec)), str(spec))
    kernel = load_kernel(spec)
    if not source.is_file():
        raise UsageError(cannot_be("read", source, FileNotFoundError()))
    if kernel.source_name != source.name or spec.resolve().parent != source.resolve().parent:
        raise UsageError(f"{spec} describes {spec.parent / kernel.source_name}, not {source}")
    return kernel, []
