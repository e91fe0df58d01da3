"""Read the kernel to analyze with `kernrec analyze`: a CUDA source, a PTX file, a Triton function or a call file."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from kernrec.cli import options
from kernrec.cli.check import extents, with_entry
from kernrec.cli.options import argument, option
from kernrec.cli.output import AsJson
from kernrec.errors import UsageError

if TYPE_CHECKING:
    from kernrec.gpu import GPU
    from kernrec.interop.draft import Draft
    from kernrec.interop.spec_text import LaunchWords
    from kernrec.kernel import Kernel
    from kernrec.op import Problem

_LAUNCH = "Launch, if no spec describes it"


class AnalyzeOptions(options.Options):
    source: Annotated[
        Path,
        argument(
            "A .cu or .ptx file (blur.cu:blur selects a kernel), a Triton function (kernels.py:matmul "
            "or package.kernels:matmul), or a call that `kernrec capture` wrote (.toml)."
        ),
    ]
    arguments: Annotated[
        list[str] | None,
        argument(
            "CUDA, by name: n=4096, x=f32\\[n], x=@values.npy. PTX, in order: a=f32[4096], i32:4096. Call: more calls."
        ),
    ] = None
    gpu: options.Gpus = ""
    shape: Annotated[str | None, option("Dimensions. Default: those of the spec.", panel=options.PROBLEM)] = None
    dtype: options.Dtype = None
    l2: options.L2 = "cold"
    objective: options.Objective = "pareto"
    top: options.Top = None
    why: options.Why = False
    spec: Annotated[Path | None, option("kernel.toml or T1 .json; for Triton the call's .toml.", panel=_LAUNCH)] = None
    grid: Annotated[str | None, option('Grid size: "ceil(n/block_x)".', panel=_LAUNCH)] = None
    block: Annotated[str | None, option("Block sizes to try: 64,128 or 16x16,32x8.", panel=_LAUNCH)] = None
    tune: Annotated[list[str] | None, option("Macro and values to try: TILE=1,2,4.", panel=_LAUNCH)] = None
    shared: Annotated[str | None, option("Dynamic shared memory in bytes.", panel=_LAUNCH)] = None
    include: Annotated[
        list[Path] | None, option("Folder with headers; may be repeated.", "--include", "-I", panel=_LAUNCH)
    ] = None
    define: Annotated[list[str] | None, option(options.DEFINE, "-D", panel=_LAUNCH)] = None
    init: Annotated[bool, option("Write a draft of a spec, and stop.", "--init", panel=_LAUNCH)] = False
    effort: Annotated[str | None, option("How many configs: quick, normal, exhaustive or recorded.")] = None
    budget: Annotated[int, option("Maximum instructions per block.")] = 20_000_000
    measure: Annotated[bool, option("Also measure on this machine's GPU.", "--measure")] = False
    as_json: AsJson = False

    @property
    def file(self) -> Path:
        """Return the path of the source file without the kernel's name."""
        return with_entry(self.source)[0]

    @property
    def kernel_name(self) -> str | None:
        """Return the kernel's name in `kernel.cu:name`, or None if there is none."""
        return with_entry(self.source)[1]

    @property
    def on_gpu(self) -> "GPU":
        from kernrec.gpu import find_gpu

        return find_gpu(self.gpu)

    @cached_property
    def words(self) -> "LaunchWords":
        """Return the options that describe a CUDA kernel's launch."""
        from kernrec.interop.spec_text import LaunchWords
        from kernrec.kernel.source_files import compile_flags

        flags = compile_flags(self.file, self.define or (), self.include or ())
        launch = self.kernel_name, self.grid, self.block, self.arguments or (), self.tune or (), self.shared
        return LaunchWords(*launch, **vars(flags))

    @cached_property
    def draft(self) -> "Draft | None":
        """Return a draft of the spec, or None if the user gave a spec or the kernel is not a CUDA file."""
        if self.spec is not None or self.file.suffix in (".ptx", ".py", ".toml") or ":" in self.file.name:
            return None
        from kernrec.interop.spec_draft import draft_spec

        return draft_spec(self.file, self.words, self.on_gpu.sm, assume=True)

    @cached_property
    def subject(self) -> "tuple[Kernel, list[str], Path]":
        """Return (kernel to analyze, notes for the user, folder of the kernel's files).

        Raise `UsageError` if options contradict each other, or the kernel cannot be read.
        """
        return _subject(self)

    @cached_property
    def problem(self) -> "Problem":
        kernel, *_ = self.subject
        shape = None if kernel.triton is not None else self.shape
        return self.request(shape, kernel=kernel.name).problem_of(kernel)

    def single(self, gpu: str, source: Path) -> "AnalyzeOptions":
        """Return the options for the analysis of one kernel or call on one GPU."""
        return AnalyzeOptions(vars(self) | {"gpu": gpu, "source": source}, self.databases or ())

    def enlarge(self, error: str) -> bool:
        """Enlarge a buffer of assumed size after a kernel accessed memory past its end. Return whether the options
        changed.

        Raise `UsageError` if other assumed values may be wrong. `error` is the emulator's message.
        """
        from kernrec.checking.findings import readable
        from kernrec.interop.assumed_words import enlarged_words, wrong_values

        draft = self.draft
        if draft is None:
            return False
        if (words := enlarged_words(self.words, draft, error)) is not None:
            self.words = words
            for name in ("draft", "subject", "problem"):
                self.__dict__.pop(name, None)
            return True
        if wrong := wrong_values(draft, self.gpu, error):
            raise UsageError(readable(str(wrong)))
        return False


def _subject(wanted: AnalyzeOptions) -> tuple["Kernel", list[str], Path]:
    source, spec = wanted.file, wanted.spec
    ptx, triton = source.suffix == ".ptx", source.suffix == ".py" or ":" in source.name
    if source.suffix == ".toml":
        if spec is not None:
            raise UsageError(f"{source} describes a whole call, so --spec does not apply: omit --spec")
        from kernrec.capture.call_file import is_cuda_call, read_cuda_call

        if is_cuda_call(source):
            return *read_cuda_call(source).kernel(), source.parent
        spec, triton = source, True
    if triton and spec is None:
        raise UsageError(
            f"{source} needs --spec CALL.toml, with grid and arguments; `kernrec capture -- python PROGRAM` writes one"
        )
    if (spec or wanted.shape) and ptx:
        raise UsageError("--spec and --shape are for source code; PTX takes --grid, --block and arguments")
    names = [name for name in ("grid", "block", "tune", "shared", "include", "define") if getattr(wanted, name)]
    used = [f"--{name}" for name in names] + [f"argument {text!r:.60}" for text in wanted.arguments or ()]
    if spec and used:
        raise UsageError(f"{used[0]} cannot be used with {spec.name}, which describes the launch")
    if ptx:
        return _ptx_kernel(wanted)
    if triton and spec is not None:
        return _triton_kernel(spec, wanted)
    if spec is None:
        draft = wanted.draft
        assert draft is not None
        try:
            kernel = draft.kernel()
        except UsageError as error:
            raise UsageError(f"{error}; such as {draft.command(wanted.gpu)}") if draft.missing else error from None
        return kernel, draft.notes, source.parent
    from kernrec.interop.t1 import load_spec

    return *load_spec(spec, source), spec.parent


def _ptx_kernel(wanted: AnalyzeOptions) -> tuple["Kernel", list[str], Path]:
    from kernrec.profile.ptx_kernel import kernel_of_ptx

    if wanted.tune:
        raise UsageError("--tune needs source code: the macros of PTX are fixed")
    source, entry = wanted.file, wanted.kernel_name
    grid, block = extents("--grid", wanted.grid or "1"), extents("--block", wanted.block or "128")
    shared = (wanted.shared or "0").strip()
    if not shared.lstrip("-").isdecimal():
        raise UsageError(f"--shared {shared!r:.40}: expected a number of bytes")
    return *kernel_of_ptx(source, entry, grid, block, wanted.arguments or [], int(shared)), source.parent


def write_draft(wanted: AnalyzeOptions) -> None:
    """Write the draft of a spec next to a CUDA source, and print its missing parts."""
    from kernrec.cli.output import print_notes
    from kernrec.emit.formats import write_file
    from kernrec.interop.spec_draft import draft_spec

    source = wanted.file
    if source.suffix != ".cu" or wanted.spec is not None:
        raise UsageError("--init is for .cu files without --spec; `kernrec capture` writes the calls of Triton kernels")
    path = source.with_suffix(".toml")
    if path.exists():
        raise UsageError(f"{path} exists already; move it first")
    draft: Draft = draft_spec(source, wanted.words, suggest=True)
    write_file(path, draft.text.encode())
    print(path)
    print_notes([*draft.notes, *([f'fill in each "?": {"; ".join(draft.missing)}'] if draft.missing else [])])


def _triton_kernel(path: Path, wanted: AnalyzeOptions) -> tuple["Kernel", list[str], Path]:
    from kernrec.op import parse_shape
    from kernrec.profile.triton_call import kernel_of_triton
    from kernrec.profile.triton_call_file import read_call

    target = None if path == wanted.source else str(wanted.source)
    call = read_call(path, target, parse_shape(wanted.shape) if wanted.shape else {})
    return *kernel_of_triton(call), call.path.parent
