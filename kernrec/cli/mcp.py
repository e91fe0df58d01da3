"""`kernrec mcp`: offer recommendations, analyses and checks as tools of the Model Context Protocol (MCP)."""

from pathlib import Path
from typing import Annotated

from kernrec.cli import options
from kernrec.cli.options import option
from kernrec.cli.quantity import duration


class McpOptions(options.Options):
    databases_used = options.SEVERAL
    folder: Annotated[Path | None, option("Folder from which tools may read files. Default: none.")] = None
    time_limit: Annotated[str, option("Maximum processor time of a check or an analysis: 60s.")] = "60s"


@options.takes(McpOptions)
def mcp(wanted: McpOptions) -> None:
    """Serve kernrec to coding agents with the Model Context Protocol (MCP) on standard input and output.

    The tools are catalog, recommend, compare, explain, analyze and check. Sources are compiled and emulated in a
    separate process with limits on time, memory and files. No GPU is needed.
    """
    from kernrec.checking.child_process import Limits
    from kernrec.mcp.server import serve

    serve(wanted.databases, wanted.folder, Limits(time_s=duration("--time-limit", wanted.time_limit)))
