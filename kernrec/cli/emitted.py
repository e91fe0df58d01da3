"""`--emit`: write the top recommendations in a format of `kernrec.emit`, to standard output, a file or a folder."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from kernrec.cli.format import print_notes, source_text
from kernrec.cli.options import PRINTED, option
from kernrec.emit.formats import Format, emit, format_named
from kernrec.errors import UsageError
from kernrec.util.human import config_text, counted, human

if TYPE_CHECKING:
    from kernrec.emit.formats import Files
    from kernrec.kernel import Kernel
    from kernrec.recommender import Answer

EmitFormat = Annotated[
    str | None,
    option("Write the best config instead: cuda, triton, ptx, ...", "--emit", panel=PRINTED, metavar="FORMAT"),
]
Output = Annotated[Path | None, option("File or new folder for --emit.", "--output", "-o", panel=PRINTED)]
UntrustedSource = Annotated[bool, option("Emit untrusted code, too.", "--untrusted-source", panel=PRINTED)]


def emitted_format(name: str | None, output: Path | None) -> Format | None:
    """Return the format of --emit; None without it. Raises `UsageError` if it is unknown, or only --output is given."""
    if name is None and output is not None:
        raise UsageError("--output needs --emit, which selects the format")
    return None if name is None else format_named(name)


def _kernels_written(answers: "Sequence[Answer]") -> str:
    """Describe the kernel and config of one answer, or the number of problems of each kernel."""
    if len(answers) > 1:
        counts = Counter(answer.best.kernel.name for answer in answers)
        return "written: " + ", ".join(f"{name} for {counted(count, 'problem')}" for name, count in counts.items())
    best = answers[0].best
    cost = f"{human(best.latency_s.value, 's')} ({source_text(best)})"
    return f"written: {best.kernel.name} {config_text(best.config)}, {cost}; source: {_owner(best.kernel)}"


def _owner(kernel: "Kernel") -> str:
    from kernrec.kernel import find_kernel, kernel_names

    if kernel.owner is not None:
        return kernel.owner
    return "kernrec" if kernel.name in kernel_names() and find_kernel(kernel.name).hash == kernel.hash else "yours"


def write_emitted(
    answers: "Sequence[Answer]",
    form: Format,
    output: Path | None,
    untrusted: bool,
) -> None:
    """Write the top recommendations in a format, and name their kernels on standard error."""
    if output is not None and form.suffix and not output.is_dir() and output.suffix != form.suffix:
        raise UsageError(f"--output {output}: {form.content} goes into a {form.suffix} file")
    name, folder = f"{form.name}:{form.detail}" if form.detail else form.name, form.writes_folder(output)
    _write(emit(answers, name, folder, untrusted), form, output, folder)
    print_notes([_kernels_written(answers)])


def _write(files: "Files", form: Format, output: Path | None, folder: bool) -> None:
    from kernrec.emit.formats import write_file, write_files

    if output is not None and folder:
        write_files(output, files)
        return
    ((name, content),) = files.items()
    if output is not None and form.example:
        from kernrec.emit.tuned_tables import merged

        path = output / name if output.is_dir() else output
        if path.exists():
            content = merged(path.read_bytes(), content, str(path))
        write_file(path, content)
    elif output is not None:
        write_file(output, content)
    else:
        print(content.decode(), end="")
