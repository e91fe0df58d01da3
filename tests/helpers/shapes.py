"""Lists of shapes in the form that commands take them."""

from kernrec.op import parse_shape


def shapes(text: str) -> list[dict[str, int]]:
    """Return the dimensions of each shape; blanks stand between shapes, commas between dimensions."""
    return [parse_shape(shape) for shape in text.split()]
