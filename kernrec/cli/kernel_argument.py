"""Which kernel `kernrec analyze` is asked about: PTX, a Triton function with a call, or CUDA source with a spec."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernrec.cli.emulate import extents
from kernrec.errors import UsageError

if TYPE_CHECKING:
    from kernrec.kernel import Kernel


def kernel_argument(
    source: Path, arguments: list[str], spec: Path | None, call: Path | None, shape: str | None, ptx: Mapping[str, Any]
) -> tuple["Kernel", list[str], Path]:
    """(the kernel, notes on it, the folder where its files are).

    Args:
        source: the file, for Triton with the function: `kernels.py:matmul`.
        arguments: of PTX.
        spec: a kernel.toml or a T1 file.
        call: of a Triton function.
        shape: dimensions in place of the spec's or the call's.
        ptx: the options that are for PTX, by name; None where not given.
    """
    triton = ".py" in (source.suffix, source.suffix.partition(":")[0])
    if triton and call is None:
        raise UsageError(f"{source} needs a --call, which gives the arguments, the grid and perhaps the configs")
    if call is not None and not triton:
        raise UsageError(f"--call is for a Triton function, given as kernels.py:matmul, not for {source}")
    if (spec or shape) and source.suffix == ".ptx":
        raise UsageError("--spec and --shape are for source; PTX takes --grid, --block and arguments")
    if source.suffix != ".ptx" and arguments:
        raise UsageError(f"argument {arguments[0]!r:.60}: arguments are for PTX; a spec has its own, and so has a call")
    if source.suffix != ".ptx" and (given := [name for name, value in ptx.items() if value is not None]):
        raise UsageError(
            f"{given[0]} is for PTX; of {source.name} the {'call' if triton else 'spec'} says how it is launched"
        )
    if source.suffix == ".ptx":
        from kernrec.profile.ptx_kernel import kernel_of_ptx

        grid, block = extents("--grid", ptx["--grid"] or "1"), extents("--block", ptx["--block"] or "128")
        return *kernel_of_ptx(source, ptx["--entry"], grid, block, arguments, ptx["--shared"] or 0), source.parent
    if call is not None:
        from kernrec.op import parse_shape
        from kernrec.profile.triton_call import kernel_of_triton, read_call

        if spec is not None:
            raise UsageError("--spec and --call were both given; a Triton function has a call")
        described = read_call(call, str(source), parse_shape(shape) if shape else {})
        if described.configs_file is not None:
            from kernrec.interop.config_list import read_config_list
            from kernrec.kernel.source_files import read_text

            text = read_text(described.path, described.path.name)
            described = replace(described, configs=read_config_list(described.configs_file, text))
        return *kernel_of_triton(described), described.path.parent
    if spec is None:
        raise UsageError(f"{source} needs a --spec, which says what can be tuned: a kernel.toml or a T1 .json")
    from kernrec.interop.load_spec import load_spec

    return *load_spec(spec, source), spec.parent
