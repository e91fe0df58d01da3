"""The error of text that is not PTX."""

from kernrec.errors import KernrecError


class ParseError(KernrecError):
    """The text is not PTX that the parser can read; `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {message}")
        self.message, self.line = message, line

    def __reduce__(self) -> tuple[type["ParseError"], tuple[str, int]]:
        """A worker process sends it to the process that asked."""
        return type(self), (self.message, self.line)
