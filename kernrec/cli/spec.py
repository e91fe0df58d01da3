"""`kernrec spec`: a spec to begin with, made from a kernel's source."""

from pathlib import Path
from typing import Annotated

import typer

from kernrec.cli import options
from kernrec.cli.kernel_argument import LaunchOptions, save_draft
from kernrec.errors import UsageError


class SpecOptions(options.Options):
    """The options of `kernrec spec`."""

    source: Annotated[Path, typer.Argument(help="The kernel: a .cu file.")]
    launch: LaunchOptions
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write, beside the source. Default: its name with .toml."),
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False


@options.takes(SpecOptions)
def spec(wanted: SpecOptions) -> None:
    """Write the spec of a CUDA kernel to begin with: its parameters, macros that look like tunables, and its block.

    The source is compiled, and its code and text say what they can. Places left to fill in are marked "?", and listed.
    Then `kernrec analyze SOURCE --spec SPEC --gpu GPU` takes it.
    """
    from kernrec.cli.format import print_notes
    from kernrec.interop.spec_draft import draft_spec

    source = wanted.source
    if source.suffix != ".cu":
        raise UsageError(
            f"{source}: a spec is for CUDA source, a .cu file; PTX is analyzed without one, Triton by a call"
        )
    path = wanted.output or source.with_suffix(".toml")
    if path.exists() and not wanted.force:
        raise UsageError(f"{path} is there already; --force overwrites it")
    draft = draft_spec(source, wanted.launch.words, suggest=True)
    save_draft(draft, path, wanted.force)
    print(path)
    notes = [f"assumed: {'; '.join(draft.assumed)}"] if draft.assumed else []
    if draft.missing:
        notes.append(f'fill in what is "?": {"; ".join(draft.missing)}')
    print_notes(notes)
