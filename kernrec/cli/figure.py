"""Figures in files, for the options `--plot`: checks before the work, and a file that appears whole."""

import os
from pathlib import Path
from typing import Any

from kernrec.errors import UsageError, cannot_be
from kernrec.util.optional import import_optional

ENDINGS = (".svg", ".png")


def check_figure_path(path: Path) -> None:
    """Check, before anything is computed, that a figure can be written to a path.

    Raises:
        UsageError: the path does not end in `.svg` or `.png`, or cannot be written to.
        KernrecError: Matplotlib is not installed.
    """
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(f"--plot {path}: the name of a figure ends in {' or '.join(ENDINGS)}")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {folder}")
    if path.is_dir():
        raise UsageError(f"--plot {path}: this is a folder; a file is expected")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"--plot {path}: the folder {folder} is not writable")
    import_optional("matplotlib", "--plot", "plot")


def new_figure(width: float, height: float) -> Any:
    """An empty Matplotlib figure; size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a Matplotlib figure as SVG or PNG, by the ending of the path.

    Raises:
        UsageError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=120)
        temporary.replace(path)
    except OSError as error:
        raise UsageError(cannot_be("written", f"--plot {path}", error)) from None
    finally:
        temporary.unlink(missing_ok=True)
