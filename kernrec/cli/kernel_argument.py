"""The kernel that `kernrec analyze` is about: PTX, a Triton function with a call, or CUDA source with a spec."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec.cli import options
from kernrec.cli.emulate import extents
from kernrec.errors import UsageError

if TYPE_CHECKING:
    from kernrec.kernel import Kernel


class AnalyzeOptions(options.Options):
    """The options of `kernrec analyze`."""

    source: Annotated[
        Path, typer.Argument(help="The kernel: a .cu or .ptx file, or a Triton function as kernels.py:matmul.")
    ]
    arguments: Annotated[
        list[str] | None, typer.Argument(help="For PTX, in parameter order: a=f32[4096], a=@values.npy, i32:4096.")
    ] = None
    spec: Annotated[Path | None, typer.Option(help="Spec with the tunables: a kernel.toml or a T1 .json.")] = None
    call: Annotated[
        Path | None, typer.Option(help="For Triton: a .toml with the arguments, the grid and perhaps the configs.")
    ] = None
    gpu: options.Gpu = ""
    shape: Annotated[
        str | None, typer.Option(help="Dimensions, such as width=4096,height=64; default: the spec's or call's.")
    ] = None
    dtype: Annotated[str | None, typer.Option(help="Data type, if the spec has several.")] = None
    layout: Annotated[str | None, typer.Option(help="Tensor layout, if the spec has several.")] = None
    objective: options.Objective = "pareto"
    clocks: options.Clocks = False
    inputs: options.Inputs = "random"
    top: options.Top = 5
    grid: Annotated[str | None, typer.Option(help="For PTX: blocks of the grid, 16 or 16,2,1; default 1.")] = None
    block: Annotated[str | None, typer.Option(help="For PTX: threads of a block, 256 or 16,16; default 128.")] = None
    entry: Annotated[str | None, typer.Option(help="For PTX: the kernel, if the file has several.")] = None
    shared: Annotated[int | None, typer.Option(help="For PTX: dynamic shared memory in bytes; default 0.")] = None
    budget: Annotated[int, typer.Option(help="Instructions that a block may execute before it is given up.")] = (
        2_000_000
    )
    every: Annotated[
        bool, typer.Option("--all", help="Profile every config, also where a space has more than 10,000.")
    ] = False
    processes: Annotated[int | None, typer.Option(help="Number of processes; default: one per CPU.")] = None
    measure: Annotated[bool, typer.Option("--measure", help="Also measure the configs on this machine's GPU.")] = False
    effort: Annotated[str | None, typer.Option(help="With --measure: quick, normal or exhaustive; default normal.")] = (
        None
    )
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Compile and emulate on all cores of a Ray cluster: auto or host:port."),
    ] = None
    printed: options.Printed
    db: Annotated[Path | None, typer.Option(help="Database that keeps the profiles; default: your own.")] = None


def kernel_argument(wanted: AnalyzeOptions) -> tuple["Kernel", list[str], Path]:
    """(the kernel, notes on it, the folder where its files are); `UsageError` for options that do not go together."""
    source, spec, call, shape = wanted.source, wanted.spec, wanted.call, wanted.shape
    ptx, triton = source.suffix == ".ptx", ".py" in (source.suffix, source.suffix.partition(":")[0])
    if triton and call is None:
        raise UsageError(f"{source} needs a --call, which gives the arguments, the grid and perhaps the configs")
    if call is not None and not triton:
        raise UsageError(f"--call is for a Triton function, given as kernels.py:matmul, not for {source}")
    if (spec or shape) and ptx:
        raise UsageError("--spec and --shape are for source; PTX takes --grid, --block and arguments")
    if wanted.arguments and not ptx:
        text = wanted.arguments[0]
        raise UsageError(f"argument {text!r:.60}: arguments are for PTX; a spec has its own, and so has a call")
    for name in () if ptx else ("grid", "block", "entry", "shared"):
        if getattr(wanted, name) is not None:
            described = "call" if triton else "spec"
            raise UsageError(f"--{name} is for PTX; of {source.name} the {described} says how it is launched")
    if ptx:
        from kernrec.profile.ptx_kernel import kernel_of_ptx

        grid, block = extents("--grid", wanted.grid or "1"), extents("--block", wanted.block or "128")
        arguments, shared_bytes = wanted.arguments or [], wanted.shared or 0
        return *kernel_of_ptx(source, wanted.entry, grid, block, arguments, shared_bytes), source.parent
    if call is not None:
        return _triton_kernel(call, wanted)
    if spec is None:
        raise UsageError(f"{source} needs a --spec, which says what can be tuned: a kernel.toml or a T1 .json")
    from kernrec.interop.load_spec import load_spec

    return *load_spec(spec, source), spec.parent


def _triton_kernel(path: Path, wanted: AnalyzeOptions) -> tuple["Kernel", list[str], Path]:
    from kernrec.op import parse_shape
    from kernrec.profile.triton_call import kernel_of_triton, read_call

    if wanted.spec is not None:
        raise UsageError("--spec and --call were both given; a Triton function has a call")
    call = read_call(path, str(wanted.source), parse_shape(wanted.shape) if wanted.shape else {})
    if call.configs_file is not None:
        from kernrec.interop.config_list import read_config_list
        from kernrec.kernel.source_files import read_text

        call = replace(call, configs=read_config_list(call.configs_file, read_text(call.path, call.path.name)))
    return *kernel_of_triton(call), call.path.parent
