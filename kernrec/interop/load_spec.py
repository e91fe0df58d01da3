"""Loading the kernel of a spec file, a kernel.toml or a T1 file."""

from pathlib import Path

from kernrec.errors import UsageError, cannot_be
from kernrec.interop.spec_text import refuse_marks
from kernrec.interop.t1 import load_t1
from kernrec.kernel import Kernel, load_kernel
from kernrec.kernel.source_files import read_text


def load_spec(spec: Path, source: Path) -> tuple[Kernel, list[str]]:
    """(the kernel that a spec describes, notes on the parts of the spec that were ignored).

    Args:
        spec: a kernel.toml or a T1 file.
        source: the file of the kernel.

    Raises:
        UsageError: for a bad spec, and for a kernel.toml that describes another source.
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
