"""Parses lists of shapes in the form used by commands."""

from kernrec.op import parse_shape


def shapes(text: str) -> list[dict[str, int]]:
    """Return the dimensions of each shape; blanks separate shapes, and commas separate dimensions."""
    return [parse_shape(shape) for shape in text.split()]
