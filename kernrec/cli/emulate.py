"""`kernrec emulate`: runs one kernel of a CUDA or PTX file on the CPU and counts what it does."""

import json
import sys
from math import prod
from pathlib import Path
from typing import Annotated

import typer

from kernrec.errors import UsageError


def emulate(
    source: Annotated[Path, typer.Argument(help="The kernel's file: .cu or .ptx.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="In the order of the kernel's parameters: a=f32[4096], a=zeros:f32[64], a=@values.npy, i32:4096."
        ),
    ] = None,
    grid: Annotated[str, typer.Option(help="Thread blocks: 16 or 16,2,1.")] = "1",
    block: Annotated[str, typer.Option(help="Threads per block: 256 or 16,16.")] = "32",
    cluster: Annotated[
        str | None, typer.Option(help="Thread blocks of a cluster: 2 or 2,2; default as compiled.")
    ] = None,
    entry: Annotated[str | None, typer.Option(help="Kernel to run; optional if the file has only one.")] = None,
    sm: Annotated[int, typer.Option("--sm", help="Compute capability to compile for: 86 for sm_86.")] = 86,
    define: Annotated[list[str] | None, typer.Option("-D", help="Macro NAME=VALUE; may be repeated.")] = None,
    shared: Annotated[int, typer.Option(help="Dynamic shared memory per block, bytes.")] = 0,
    races: Annotated[bool, typer.Option("--races", help="Treat data races in shared memory as errors.")] = False,
    budget: Annotated[int, typer.Option(help="Most PTX instructions of a batch of thread blocks.")] = 20_000_000,
    save: Annotated[list[str] | None, typer.Option(help="Write a buffer to a file afterwards: c=result.npy.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a kernel on the CPU, find its errors, and count instructions, memory sectors, bank conflicts and barriers.

    It needs no GPU.

    Accesses out of bounds, deadlocks, endless loops and unsupported instructions are errors that name their PTX line.
    """
    import numpy as np

    from kernrec.profile.emulate_file import emulate_file
    from kernrec.profile.launch_arguments import read_arguments
    from kernrec.ptx.state.launch_layout import MOST_THREADS

    read = read_arguments(arguments or [])
    threads = extents("--block", block)
    if prod(threads) > MOST_THREADS:
        raise UsageError(f"--block {block!r}: {prod(threads)} threads, where 1 to {MOST_THREADS} are possible")
    targets = {}
    for text in save or []:
        name, _, file = text.partition("=")
        if not file or name not in read.buffers:
            raise UsageError(
                f"--save {text!r}: expected one of the buffers ({', '.join(read.buffers)}) and a file, c=c.npy"
            )
        if Path(file).suffix != ".npy" or not Path(file).absolute().parent.is_dir():
            raise UsageError(f"--save {text!r}: expected a .npy file in an existing folder")
        targets[name] = Path(file)
    counts = emulate_file(
        source,
        read,
        extents("--grid", grid),
        threads,
        entry=entry,
        sm=sm,
        defines=dict(_macro(text) for text in define or []),
        shared_bytes=shared,
        cluster=() if cluster is None else extents("--cluster", cluster),
        check_races=races,
        budget=budget,
    )
    for name, path in targets.items():
        np.save(path, read.buffers[name])
    if as_json:
        print(json.dumps(dict(sorted(counts.items())), indent=2))
        return
    width = max(map(len, counts), default=0)
    for metric, count in sorted(counts.items()):
        print(f"{metric:{width}}  {count}")
    print("note: counted by the emulator, not measured on a GPU", file=sys.stderr)


def extents(flag: str, text: str) -> list[int]:
    """One to three positive numbers, as `16` or `16,16` or `16x16`."""
    parts = text.replace("x", ",").split(",")
    if not 1 <= len(parts) <= 3 or not all(p.strip().isdecimal() and int(p) > 0 for p in parts):
        raise UsageError(f"{flag} {text!r}: expected 1 to 3 positive whole numbers, such as 16,16")
    return [int(p) for p in parts]


def _macro(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name.isidentifier():
        raise UsageError(f"-D {text!r}: expected NAME=VALUE")
    return name, value or "1"
