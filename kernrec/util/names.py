"""Values as messages show them."""


def short(value: object) -> str:
    """`value` as a message shows it: quoted when it is text, on one line, cut when it is long."""
    try:
        shown = repr(value)
    except ValueError:  # an integer with more digits than Python prints
        return "a number of thousands of digits"
    return shown if len(shown) <= 40 else shown[:36] + "..."
