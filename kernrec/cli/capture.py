"""`kernrec capture`: run a program, and write its CUDA and Triton launches to call files for `kernrec analyze`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from kernrec.cli import options
from kernrec.cli.options import argument, option
from kernrec.cli.output import print_notes
from kernrec.errors import KernrecError, UsageError
from kernrec.util.human import counted


class CaptureOptions(options.Options):
    databases_used = options.OWN
    command: Annotated[
        list[str] | None,
        argument("Program: ./app args, python app.py, or FILE.cu -- args (nvcc compiles it).", "-- COMMAND..."),
    ] = None
    output: Annotated[Path, option("Folder for the calls; existing calls are kept.", "--output", "-o")] = Path("calls")
    gpu: Annotated[str, option("GPU that the program sees.", "--gpu")] = "a100"
    include: Annotated[list[Path] | None, option("Folder with headers for FILE.cu.", "--include", "-I")] = None
    define: Annotated[list[str] | None, option("Macro for FILE.cu: NAME=VALUE.", "-D")] = None
    budget: Annotated[int, option("Maximum PTX instructions per batch of blocks.")] = 2_000_000_000


@options.takes(CaptureOptions)
def capture(wanted: CaptureOptions) -> None:
    """Run a program without a GPU, and write its kernel launches to call files for `kernrec analyze`.

    CUDA kernels run in the emulator, so the program computes its usual results. The program must contain PTX and use
    the shared runtime library (nvcc -cudart shared). Triton kernels do not run. If there is a GPU, Python programs run
    on it as usual. The program is not sandboxed: run only programs that you trust.
    """
    from kernrec.capture.program_run import run_program
    from kernrec.capture.recorded_calls import Recorder
    from kernrec.gpu import find_gpu
    from kernrec.version import __version__

    if not wanted.command:
        raise UsageError(
            "the program is missing: kernrec capture -- ./app ARGUMENTS, or kernrec capture FILE.cu -- ARGUMENTS"
        )
    gpu, folder = find_gpu(wanted.gpu), wanted.output.absolute()
    before = set(folder.glob("*.toml"))
    recorder = Recorder(f"captured by kernrec {__version__}, as on {gpu.title}")
    sys.stdout.flush()
    status = run_program(wanted.command, gpu, folder, recorder, options.build_options(wanted), wanted.budget)
    if recorder.launches:
        recorder.write(folder)
    written = sorted(set(folder.glob("*.toml")) - before)
    functions = {path.name.rpartition("-")[0] for path in written}
    notes = [f"{counted(len(written), 'new call')} of {counted(len(functions), 'function')} in {wanted.output}"]
    if recorder.launches:
        launches = f"{counted(recorder.launches, 'launch')} of {counted(recorder.functions, 'CUDA kernel')}"
        notes.insert(0, f"{launches} ran in the emulator, not on a GPU")
    if written:
        notes.append(f"kernrec analyze {shlex.quote(str(wanted.output))} --gpu {wanted.gpu}")
    print_notes(notes)
    if status:
        raise typer.Exit(status if status > 0 else 128 - status)
    if recorder.refused and not written:
        raise KernrecError(f"no launch can be written as a call: {min(recorder.refused)}")
    if not written and not before and not recorder.called:
        raise KernrecError(
            "the program launched no CUDA kernel and no Triton function; without a GPU, it may choose another path"
        )
