"""The kernel of a spec file in whichever of the known forms it is written."""

from pathlib import Path

from kernrec.errors import UsageError
from kernrec.interop.t1 import load_t1
from kernrec.kernel import Kernel, load_kernel


def load_spec(spec: Path, source: Path) -> tuple[Kernel, list[str]]:
    """The kernel that `spec`, a kernel.toml or a T1 file, makes of `source`; and what of the spec was left out.

    Raises `UsageError`, also where a kernel.toml is about another source.
    """
    if spec.suffix == ".json":
        return load_t1(spec, source)
    kernel = load_kernel(spec)
    if kernel.source_name != source.name or spec.resolve().parent != source.resolve().parent:
        raise UsageError(f"{spec} describes {kernel.source_name} beside it, not {source}")
    return kernel, []
