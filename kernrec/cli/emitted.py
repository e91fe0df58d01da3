"""`--emit`: the first choices of answers in a format of `kernrec.emit`, on standard output or in a file or folder."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernrec.emit.formats import FORMATS, Format, emit, format_named
from kernrec.errors import UsageError

if TYPE_CHECKING:
    from kernrec.recommender import Recommendation

EmitFormat = Annotated[
    str | None,
    typer.Option(
        "--emit",
        help="Write the best config instead, as "
        + ", ".join(f"{form.name} ({form.content})" for form in FORMATS.values())
        + ".",
    ),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="File, or new folder, that --emit writes to. Default: printed.")
]


def emitted_format(name: str | None, output: Path | None) -> Format | None:
    """The format that is asked for, or None; raises `UsageError` before any work is done for nothing."""
    if name is None:
        if output is not None:
            raise UsageError("--output goes with --emit, which says what is written")
        return None
    form = format_named(name)
    if output is None and form.kind == "folder":
        raise UsageError(f"--emit {name} writes several files: give --output and a new folder")
    if output is None and form.kind == "binary" and sys.stdout.isatty():
        raise UsageError(f"--emit {name} is {form.content}, not text: give --output and a file")
    return form


def write_emitted(answers: "Sequence[Recommendation]", form: Format, output: Path | None) -> None:
    """Writes the first choices in a format."""
    from kernrec.emit.files import write_file, write_files

    files = emit(answers, f"{form.name}:{form.detail}" if form.detail else form.name)
    if output is not None and form.kind == "folder":
        write_files(output, files)
        return
    ((name, content),) = files.items()
    if output is not None and form.example:
        from kernrec.emit.expert_configs import merged

        path = output / name if output.is_dir() else output
        if path.exists():
            content = merged(path.read_bytes(), content, str(path))
        write_file(path, content)
    elif output is not None:
        write_file(output, content)
    elif form.kind == "text":
        print(content.decode(), end="")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
