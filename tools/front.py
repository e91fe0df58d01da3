"""Turn functions into command lines. The arguments of a function `run` become the options of a script, or the options
of a command of `tools/bench.py` or `tools/evidence`."""

import ast
import functools
import importlib
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from evidence.recordings.files import AbsentError

from kernrec.errors import KernrecError

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
Data = Annotated[Path, typer.Option("--data", help="folder of recordings")]
Sources = Annotated[Path | None, typer.Option("--sources", help="folder with the public sources of recorded kernels")]
_NUMBER = re.compile(r"[-+]?(\d|\.\d|-$|nan|inf)")
_FIRST, _LEAST = 26, 6


class Table:
    """Table that is printed row by row. The keys of the first row are the headings. Texts are aligned left."""

    def __init__(self, title: str = "") -> None:
        self._title = title
        self._widths: list[int] = []

    def row(self, cells: Mapping[str, object]) -> None:
        """Print a row. Floats have two decimals, and None is an empty cell."""
        texts = ["" if c is None else f"{c:.2f}" if isinstance(c, float) else str(c) for c in cells.values()]
        align = [">" if _NUMBER.match(text) else "" for text in texts]
        if not self._widths:
            least = [_FIRST, *[_LEAST] * (len(texts) - 1)]
            self._widths = [max(len(n), len(t), low) for n, t, low in zip(cells, texts, least, strict=True)]
            heading = (f"{n:{side}{width}}" for n, side, width in zip(cells, align, self._widths, strict=True))
            print("\n".join(filter(None, [self._title, "  ".join(heading).rstrip()])))
        shown = (f"{text:{side}{width}}" for text, side, width in zip(texts, align, self._widths, strict=False))
        print("  ".join(shown).rstrip(), flush=True)


def script(run: Callable[..., int | None], about: str | None = None, if_absent: int = 1) -> None:
    """Run a function whose arguments are options, and exit with the status that it returns. `about` is the help text,
    or None for the docstring of `run`, and `if_absent` is the exit status if a recording is missing."""

    @functools.wraps(run)
    def command(**options: Any) -> None:
        try:
            raise typer.Exit(run(**options) or 0)
        except AbsentError as error:
            print(f"skipped: {error}")
            raise typer.Exit(if_absent) from None
        except KernrecError as error:
            print(error, file=sys.stderr)
            raise typer.Exit(error.exit_status) from None

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(help=about)(command)
    app()


def main(package: str) -> int:
    """Run a command of a package, and return the exit status. The first command-line argument is the command's name."""
    folder = ROOT / "tools" / package.replace(".", "/")
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}
    about = {
        module.replace("_", "-"): ast.get_docstring(ast.parse(text)) or ""
        for module, text in texts.items()
        if "\ndef run(" in text
    }
    name = (sys.argv[1:] or ["--help"])[0]
    if name not in about:
        print(*(f"{command:16} {text.splitlines()[0]}" for command, text in about.items()), sep="\n")
        return 0 if name == "--help" else 2
    del sys.argv[1]
    run = importlib.import_module(f"{package}.{name.replace('-', '_')}").run
    script(run, "\b\n" + about[name].replace("\n\n", "\n\n\b\n"), if_absent=0)
    return 0
