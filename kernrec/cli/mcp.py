"""`kernrec mcp`: recommendations, analyses and checks as tools of the Model Context Protocol."""

from pathlib import Path
from typing import Annotated

import typer

from kernrec.cli import options
from kernrec.cli.quantity import duration


def mcp(
    folder: Annotated[
        Path | None, typer.Option(help="Folder whose files tools may read. Default: sources are given as text alone.")
    ] = None,
    time_limit: Annotated[str, typer.Option(help="Processor time of a check or an analysis, such as 60s.")] = "60s",
    memory: Annotated[int, typer.Option(help="Address space of each of its processes, GiB.")] = 4,
    db: options.Databases = None,
) -> None:
    """Serve kernrec to programs that write kernels: tools of the Model Context Protocol on standard input and output.

    Tools: catalog, recommend, compare, explain, analyze, check, emulate. Sources are compiled and emulated in a process
    of their own, which is killed at its limits and sees no files but those it needs; no GPU is needed.
    """
    from kernrec.checking.limits import Limits
    from kernrec.mcp.server import serve

    serve(db, folder, Limits(time_s=duration("--time-limit", time_limit), memory_bytes=memory << 30))
