"""Error for text that is not PTX."""

from kernrec.errors import KernrecError


class ParseError(KernrecError):
    """The parser cannot read the text as PTX; `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"PTX line {line}: {message}")
        self.message, self.line = message, line

    def __reduce__(self) -> tuple[type["ParseError"], tuple[str, int]]:
        """Support pickling: worker processes send the error to their parent."""
        return type(self), (self.message, self.line)
