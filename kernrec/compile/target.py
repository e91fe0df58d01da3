"""The name of what a source is compiled for: an architecture, or one whose own instructions it has."""

import re

_ONE_ARCHITECTURE = re.compile(r"\b(?:wgmma|tcgen05|setmaxnreg)\.")


def target_name(source: str, sm: int) -> str:
    """What a CUDA source is compiled for: `sm_89`, or `sm_90a` where it has instructions of one architecture alone."""
    return f"sm_{sm}a" if _ONE_ARCHITECTURE.search(source) else f"sm_{sm}"
