"""The kernel that `kernrec analyze` is about: CUDA source, PTX, or a Triton function with a call."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec.cli import options
from kernrec.cli.emulate import extents
from kernrec.errors import UsageError

if TYPE_CHECKING:
    from kernrec.interop.spec_draft import Draft
    from kernrec.interop.spec_text import LaunchWords
    from kernrec.kernel import Kernel


class LaunchOptions(options.Options):
    """How a kernel is launched, where no spec says it."""

    entry: Annotated[str | None, typer.Option(help="The kernel, if the file has several.")] = None
    grid: Annotated[
        str | None,
        typer.Option(help='Blocks of the grid: "ceil(n/block_x)", an expression for each axis; of PTX 16 or 16,2,1.'),
    ] = None
    block: Annotated[
        str | None,
        typer.Option(
            help="Blocks to try, 64,128,256 or 16x16,32x8; or an expression for each axis, bx,by. Of PTX one: 16x16."
        ),
    ] = None
    arg: Annotated[
        list[str] | None,
        typer.Option("--arg", help="A parameter: n=4096, x=f32[n], x=zeros:f32[n] or x=@values.npy; may be repeated."),
    ] = None
    tune: Annotated[
        list[str] | None,
        typer.Option("--tune", help="A macro of the source and its values: TILE=1,2,4; may be repeated."),
    ] = None
    shared: Annotated[str | None, typer.Option(help="Dynamic shared memory in bytes.")] = None
    include: Annotated[
        list[Path] | None, typer.Option("--include", "-I", help="Folder with headers of the source; may be repeated.")
    ] = None

    @property
    def words(self) -> "LaunchWords":
        """The same for the draft of a spec."""
        from kernrec.interop.spec_text import LaunchWords

        include = [str(folder.absolute()) for folder in self.include or ()]
        return LaunchWords(self.entry, self.grid, self.block, self.arg or (), self.tune or (), self.shared, include)

    def used_names(self) -> list[str]:
        """The options that were used."""
        return [f"--{name}" for name in type(self).__annotations__ if getattr(self, name)]


class AnalyzeOptions(options.Options):
    """The options of `kernrec analyze`."""

    source: Annotated[
        Path,
        typer.Argument(
            help="The kernel: a .cu or .ptx file, a Triton function as kernels.py:matmul or package.kernels:matmul, or"
            " a .toml of `kernrec capture`."
        ),
    ]
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="For PTX, in parameter order: a=f32[4096], a=@values.npy, i32:4096. Or further calls."),
    ] = None
    spec: Annotated[
        Path | None,
        typer.Option(help="Spec with the tunables: a kernel.toml (`kernrec spec` begins one) or a T1 .json."),
    ] = None
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
    launch: LaunchOptions
    save_spec: Annotated[
        Path | None, typer.Option(help="Write the spec that --grid, --block, --arg and --tune make; a new .toml file.")
    ] = None
    budget: Annotated[int, typer.Option(help="Instructions that a block may execute before it is given up.")] = (
        2_000_000
    )
    every: Annotated[
        bool, typer.Option("--all", help="Profile every config, also where a space has more than 10,000.")
    ] = False
    recorded: Annotated[
        Path | None,
        typer.Option(
            metavar="DATABASE",
            help="Profile the configs that this database has rows of, and no others: what `kernrec train` needs.",
        ),
    ] = None
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
    ptx, triton = source.suffix == ".ptx", source.suffix == ".py" or ":" in source.name
    if source.suffix == ".toml":
        if call is not None:
            raise UsageError(f"{source} is a call already, and --call names another; give one")
        call, triton = source, True
    if triton and call is None:
        raise UsageError(f"{source} needs a --call, which gives the arguments, the grid and perhaps the configs")
    if call is not None and not triton:
        raise UsageError(f"--call is for a Triton function, given as kernels.py:matmul, not for {source}")
    if (spec or shape) and ptx:
        raise UsageError("--spec and --shape are for source; PTX takes --grid, --block and arguments")
    if wanted.arguments and not ptx:
        text = wanted.arguments[0]
        raise UsageError(f"argument {text!r:.60}: arguments are for PTX; of source write --arg {text!r:.60}")
    if (described := spec or call) and (used := wanted.launch.used_names()):
        raise UsageError(f"{used[0]} and {described.name} were both given; the file says how the kernel is launched")
    if wanted.save_spec and (ptx or triton or spec):
        raise UsageError("--save-spec writes the spec of a CUDA source that is analyzed without one")
    if ptx:
        return _ptx_kernel(wanted)
    if call is not None:
        return _triton_kernel(call, wanted)
    if spec is None:
        return _drafted_kernel(wanted)
    from kernrec.interop.load_spec import load_spec

    return *load_spec(spec, source), spec.parent


def _ptx_kernel(wanted: AnalyzeOptions) -> tuple["Kernel", list[str], Path]:
    from kernrec.profile.ptx_kernel import kernel_of_ptx

    launch, source = wanted.launch, wanted.source
    if launch.arg or launch.tune:
        raise UsageError("--arg and --tune are for source; the arguments of PTX follow the file, in parameter order")
    grid, block = extents("--grid", launch.grid or "1"), extents("--block", launch.block or "128")
    shared = (launch.shared or "0").strip()
    if not shared.lstrip("-").isdecimal():
        raise UsageError(f"--shared {shared!r:.40}: expected a number of bytes")
    return *kernel_of_ptx(source, launch.entry, grid, block, wanted.arguments or [], int(shared)), source.parent


def _drafted_kernel(wanted: AnalyzeOptions) -> tuple["Kernel", list[str], Path]:
    """The kernel of a CUDA source by the options of its launch."""
    from kernrec.gpu import find_gpu
    from kernrec.interop.spec_draft import draft_spec

    draft = draft_spec(wanted.source, wanted.launch.words, find_gpu(wanted.gpu).sm)
    kernel = draft.kernel()
    if wanted.save_spec is not None:
        save_draft(draft, wanted.save_spec, force=False)
    return kernel, [f"assumed: {'; '.join(draft.assumed)}"] if draft.assumed else [], wanted.source.parent


def save_draft(draft: "Draft", path: Path, force: bool) -> None:
    """Writes a spec; `UsageError` for a file that is there, unless forced, or one that is not beside its source."""
    from kernrec.emit.files import write_file

    if path.suffix != ".toml":
        raise UsageError(f"{path}: a spec is a .toml file")
    if path.absolute().parent.resolve() != draft.source.absolute().parent.resolve():
        raise UsageError(f"{path}: a spec is in the folder of its source, {draft.source.parent}")
    if path.exists() and not force:
        raise UsageError(f"{path} is there already; give another name")
    write_file(path, draft.text.encode())


def _triton_kernel(path: Path, wanted: AnalyzeOptions) -> tuple["Kernel", list[str], Path]:
    from kernrec.op import parse_shape
    from kernrec.profile.triton_call import kernel_of_triton
    from kernrec.profile.triton_call_file import read_call

    if wanted.spec is not None:
        raise UsageError("--spec and --call were both given; a Triton function has a call")
    target = None if path == wanted.source else str(wanted.source)
    call = read_call(path, target, parse_shape(wanted.shape) if wanted.shape else {})
    if call.configs_file is not None:
        from kernrec.interop.config_list import read_config_list
        from kernrec.kernel.source_files import read_text

        call = replace(call, configs=read_config_list(call.configs_file, read_text(call.path, call.path.name)))
    return *kernel_of_triton(call), call.path.parent
