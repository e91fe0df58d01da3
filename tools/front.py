"""Command lines of tools: the arguments of a function `run` are the options of a script, or of a module's command in
`tools/bench.py` and `tools/evidence`."""

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
        if not self._widths:
            least = [_FIRST, *[_LEAST] * (len(texts) - 1)]
            self._widths = [max(map(len, (name, t))) for name, t in zip(cells, texts, strict=True)]
            self._widths = [max(width, low) for width, low in zip(self._widths, least, strict=True)]
            numbers = [bool(_NUMBER.match(text)) for text in texts]
            heading = [
                f"{name:>{width}}" if number else f"{name:{width}}"
                for name, width, number in zip(cells, self._widths, numbers, strict=True)
            ]
            print("\n".join(filter(None, [self._title, "  ".join(heading).rstrip()])))
        shown = [f"{t:>{w}}" if _NUMBER.match(t) else f"{t:{w}}" for t, w in zip(texts, self._widths, strict=False)]
        print("  ".join(shown).rstrip(), flush=True)


def script(run: Callable[..., None]) -> None:
    """Run a function whose arguments are the options of a script. Exit with status 1 if it raises a `KernrecError`."""
    try:
        typer.run(run)
    except KernrecError as error:
        sys.exit(str(error))


def main(package: str) -> int:
    """Run the command of a package that the first command-line argument names. Return the exit status."""
    folder = ROOT / "tools" / package.replace(".", "/")
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}
    about = {
        module.replace("_", "-"): (ast.get_docstring(ast.parse(text)) or "").splitlines()[0]
        for module, text in texts.items()
        if "\ndef run(" in text
    }
    name, *words = sys.argv[1:] or ["--help"]
    if name not in about:
        print(*(f"{command:16} {line}" for command, line in about.items()), sep="\n")
        return 0 if name == "--help" else 2
    module = importlib.import_module(f"{package}.{name.replace('-', '_')}")
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(help="\b\n" + (module.__doc__ or "").replace("\n\n", "\n\n\b\n"))(_command(name, module.run))
    try:
        app(words, prog_name=f"{package} {name}")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def _command(name: str, run: Callable[..., int | None]) -> Callable[..., None]:
    @functools.wraps(run)
    def with_status(**options: Any) -> None:
        try:
            status = run(**options)
        except AbsentError as error:
            print(f"skipped: {error}")
            status = 0
        except KernrecError as error:
            print(f"{name}: {error}", file=sys.stderr)
            status = error.exit_status
        raise typer.Exit(status or 0)

    return with_status
