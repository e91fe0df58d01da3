"""`kernrec check`: runs one kernel of a CUDA or PTX file in the emulator, finds its errors and counts what it does."""

import re
from math import prod
from pathlib import Path
from typing import Annotated

import typer

from kernrec.cli import options
from kernrec.cli.format import print_notes
from kernrec.cli.options import option
from kernrec.cli.output import AsJson, print_json
from kernrec.errors import UsageError


class CheckOptions(options.Options):
    """The options of `kernrec check`."""

    source: Annotated[Path, typer.Argument(help="The kernel: a .cu or .ptx file, or one of several: kernel.cu:name.")]
    arguments: Annotated[
        list[str] | None,
        typer.Argument(help="In the order of the parameters: a=f32[4096], a=zeros:f32[64], a=@a.npy, i32:4096."),
    ] = None
    entry: Annotated[str | None, option("The kernel, if the file has several.")] = None
    grid: Annotated[str, option("Thread blocks: 16 or 16,2,1.")] = "1"
    block: Annotated[str, option("Threads of a block: 256 or 16,16.")] = "32"
    shared: Annotated[int, option("Dynamic shared memory of a block in bytes.")] = 0
    blocks_of_cluster: Annotated[str | None, option("Thread blocks of a cluster: 2 or 2,2.", "--cluster")] = None
    gpu: Annotated[str, option("GPU to compile for (`kernrec list gpus`).", "--gpu", callback=options.card)] = "rtx3090"
    define: Annotated[list[str] | None, option("Macro NAME=VALUE; may be repeated.", "-D")] = None
    budget: Annotated[int, option("Most PTX instructions of a batch of blocks.")] = 20_000_000
    save: Annotated[list[str] | None, option("Write a buffer afterwards: c=result.npy.")] = None
    as_json: AsJson = False


@options.takes(CheckOptions)
def check(wanted: CheckOptions) -> None:
    """Check a kernel without a GPU: run it in the emulator, find its errors and count what it does.

    Errors are accesses out of bounds, data races, deadlocks, endless loops and unsupported instructions; the message
    names the line of the PTX, and the exit status is 1. Counts are of instructions, memory sectors, bank conflicts and
    barriers.
    """
    import numpy as np

    from kernrec.gpu import find_gpu
    from kernrec.profile.emulate_file import emulate_file
    from kernrec.profile.launch_arguments import read_arguments
    from kernrec.ptx.state.launch_layout import MOST_THREADS

    read = read_arguments(wanted.arguments or [])
    threads = extents("--block", wanted.block)
    if prod(threads) > MOST_THREADS:
        raise UsageError(f"--block {wanted.block!r}: {prod(threads)} threads, where 1 to {MOST_THREADS} are possible")
    targets = dict(_target(text, list(read.buffers)) for text in wanted.save or [])
    path, named = with_entry(wanted.source)
    counts = emulate_file(
        path,
        read,
        extents("--grid", wanted.grid),
        threads,
        entry=wanted.entry or named,
        sm=find_gpu(wanted.gpu).sm,
        defines=dict(_macro(text) for text in wanted.define or []),
        shared_bytes=wanted.shared,
        cluster=() if wanted.blocks_of_cluster is None else extents("--cluster", wanted.blocks_of_cluster),
        check_races=True,
        budget=wanted.budget,
    )
    for name, file in targets.items():
        np.save(file, read.buffers[name])
    if wanted.as_json:
        print_json(dict(sorted(counts.items())))
        return
    width = max(map(len, counts), default=0)
    for metric, count in sorted(counts.items()):
        print(f"{metric:{width}}  {count}")
    print_notes(["no errors found in this launch; counted by the emulator, not measured on a GPU"])


def with_entry(source: Path) -> tuple[Path, str | None]:
    """Return the file of `kernel.cu:name`, and the kernel's name; None if only the file is named."""
    named = re.fullmatch(r"(.+?\.(?:cu|ptx)):(.+)", str(source))
    return (Path(named[1]), named[2]) if named else (source, None)


def extents(flag: str, text: str) -> list[int]:
    """Return one to three positive numbers of a text such as `16`, `16,16` or `16x16`."""
    parts = text.replace("x", ",").split(",")
    if not 1 <= len(parts) <= 3 or not all(p.strip().isdecimal() and int(p) > 0 for p in parts):
        raise UsageError(f"{flag} {text!r}: expected 1 to 3 positive whole numbers, such as 16,16")
    return [int(p) for p in parts]


def _target(text: str, buffers: list[str]) -> tuple[str, Path]:
    name, _, file = text.partition("=")
    if not file or name not in buffers:
        raise UsageError(f"--save {text!r}: expected one of the buffers ({', '.join(buffers)}) and a file, c=c.npy")
    if Path(file).suffix != ".npy" or not Path(file).absolute().parent.is_dir():
        raise UsageError(f"--save {text!r}: expected a .npy file in an existing folder")
    return name, Path(file)


def _macro(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name.isidentifier():
        raise UsageError(f"-D {text!r}: expected NAME=VALUE")
    return name, value or "1"
