"""The error of text that is not PTX."""

from kernrec.errors import KernrecError


class ParseError(KernrecError):
    """The text is not PTX that the parser can read; `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {message}")
        self.line = line
