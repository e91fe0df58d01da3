"""`kernrec capture`: the Triton launches of a program, written as calls that `kernrec analyze` reads."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from kernrec.cli import options
from kernrec.cli.format import print_notes
from kernrec.cli.options import option
from kernrec.errors import KernrecError, UsageError, cannot_be
from kernrec.util.human import counted

_CALLS = 50
"""Most calls of one function that are written."""


class CaptureOptions(options.Options):
    """The options of `kernrec capture`."""

    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The program: python serve.py --model ...")
    ] = None
    output: Annotated[Path, option("Folder for the calls; earlier ones stay.", "--output", "-o")] = Path("calls")
    gpu: Annotated[str, option("GPU that the program sees where there is none.", "--gpu")] = "a100"


@options.takes(CaptureOptions)
def capture(wanted: CaptureOptions) -> None:
    """Run a program and write every launch of a Triton function to a file that `kernrec analyze` reads.

    Without a GPU the program finds a stand-in for Triton's driver, tensors for a GPU are made on the CPU, and launches
    do not run, so that what the program computes means nothing. With a GPU it runs as always. Everything that the
    program starts is captured, too; its Python needs kernrec.
    """
    from kernrec.compile.triton_stand_in import has_driver
    from kernrec.compile.triton_version import triton_compiler
    from kernrec.gpu import find_gpu
    from kernrec.triton.calls.whole_process import COUNT_VARIABLE, FOLDER_VARIABLE, GPU_VARIABLE, SITE

    if not wanted.command:
        raise UsageError("the program is missing: kernrec capture -- python serve.py --model ...")
    triton_compiler()
    folder = wanted.output.absolute()
    before = set(folder.glob("*.toml"))
    environment = dict(os.environ)
    environment[FOLDER_VARIABLE], environment[GPU_VARIABLE] = str(folder), find_gpu(wanted.gpu).name
    environment[COUNT_VARIABLE] = str(_CALLS)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SITE), environment.get("PYTHONPATH")]))
    if not has_driver():
        # vLLM turns Triton off where it finds no driver; with no visible device it takes that for normal.
        environment.setdefault("CUDA_VISIBLE_DEVICES", "")
    sys.stdout.flush()
    try:
        status = subprocess.run(wanted.command, env=environment, check=False).returncode
    except OSError as error:
        raise UsageError(cannot_be("run", wanted.command[0], error)) from None
    written = sorted(set(folder.glob("*.toml")) - before)
    functions = {path.name.rpartition("-")[0] for path in written}
    notes = [f"{counted(len(written), 'new call')} of {counted(len(functions), 'function')} in {wanted.output}"]
    if written:
        notes.append(f"kernrec analyze {shlex.quote(str(wanted.output))}/*.toml --gpu {wanted.gpu}")
    print_notes(notes)
    if status:
        raise typer.Exit(status if status > 0 else 128 - status)
    if not written and not before:
        raise KernrecError(
            "no launch of a Triton function was seen; the program runs none, or chose others without a GPU"
        )
