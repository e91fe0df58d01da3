"""Read the best configs of other tools, as `configs` for the call of a Triton function.

These files contain no times, so they are not measurements. They list configs worth ranking on another GPU.
"""

import re
from pathlib import Path

from kernrec.errors import UsageError
from kernrec.interop.json_document import TextFile, read_text, reading
from kernrec.interop.moe_configs import TILES
from kernrec.interop.read_results import FORMATS, format_of

_LARGEST = 16 << 20
"""Maximum bytes of a file; the file of a whole network has a few hundred kilobytes."""


def read_config_list(path: Path, source: str) -> list[dict[str, int]]:
    """Return the distinct configs of a JSON file of vLLM, SGLang, Inductor or Triton, for a Triton function.

    Args:
        path: path of the file.
        source: text of the function's file, which shows whether its parameter is BLOCK_M or BLOCK_SIZE_M.

    Raises:
        UsageError: the file has another format; the message is one line with its name.
    """
    file = TextFile(path, *read_text(path, _LARGEST))
    try:
        kind = format_of(file)
        if kind.configs is None:
            raise UsageError(f"it is {kind.title}")
    except UsageError as error:
        listed = ", ".join(each.title for each in FORMATS if each.configs)
        raise UsageError(f"{path} is not {listed}: {str(error).removeprefix(f'{path} ')}") from None
    with reading(path, kind.title):
        configs = kind.configs(file)
    if kind.results is not None:  # These files have configs of any function, with the function's own names.
        return _different(configs)
    if not configs:
        raise UsageError(f"{path} has no config of a template that kernrec knows")
    words = set(re.findall(r"[A-Za-z_]\w*", source))
    renamed = {}
    for spellings in TILES.values():
        used = next((spelling for spelling in spellings if spelling in words), None)
        for spelling in spellings:
            renamed[spelling] = spelling if spelling.startswith("num_") else used
    return _different(
        [{new: value for name, value in config.items() if (new := renamed[name]) is not None} for config in configs]
    )


def _different(configs: list[dict[str, int]]) -> list[dict[str, int]]:
    return list({tuple(config.items()): config for config in configs}.values())
