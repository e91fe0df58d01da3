"""Print one or two next commands below a table, ready to paste."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernrec.cli.table import text_width

if TYPE_CHECKING:
    from kernrec.op import Problem

_INDENT = "    "


def print_next(steps: Sequence[tuple[str, str]]) -> None:
    """Print (command, purpose) pairs. Long commands are split with backslashes."""
    width = text_width()
    print("next:")
    for command, purpose in steps:
        print("\n".join(_lines(command, width)) + _beside(command, purpose, width))


def _lines(command: str, width: int) -> list[str]:
    first, *words = command.replace(" --", "\n--").split("\n")
    lines = [f"  {first}"]
    for word in words:
        if len(lines[-1]) + 1 + len(word) <= width - 2:
            lines[-1] += f" {word}"
        else:
            lines[-1] += " \\"
            lines.append(_INDENT + word)
    return lines


def _beside(command: str, purpose: str, width: int) -> str:
    last = _lines(command, width)[-1]
    return f"  # {purpose}" if len(last) + 4 + len(purpose) <= width else f"\n{_INDENT}# {purpose}"


def problem_command(problem: "Problem", gpu: str) -> str:
    """Return the command that answers one problem."""
    definition = problem.definition
    defaults = {dim.name: dim.default for dim in definition.dims}
    sizes = problem.dim
    stated = {
        name: value
        for name, value in sizes.items()
        if value != (sizes.get(default) if isinstance(default := defaults[name], str) else default)
    }
    shape = ",".join(f"{name}={value}" for name, value in stated.items())
    words = ["kernrec recommend", f"--op {definition.name}", f"--gpu {gpu}"]
    words += [f"--shape {shape}"] if shape else []
    words += [f"--dtype {problem.dtype}"] if problem.dtype != definition.dtypes[0] else []
    words += [f"--layout {problem.layout}"] if len(definition.layouts) > 1 else []
    return " ".join(words)
