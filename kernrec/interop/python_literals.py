"""Parse configs that Python tools print: `Config(block_sizes=[64, 32], num_warps=4)` and `{'BLOCK_SIZE_M': 16}`.

Nothing is evaluated: only literals are accepted. Lists become numbered tunables, `block_sizes_0` and `block_sizes_1`.
"""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from kernrec.interop.results import Scalar, config_of

_LONGEST = 20_000
"""Maximum characters; a config of Helion has some hundred."""


def printed_config(text: str) -> dict[str, Scalar]:
    """Return the config of a call with keywords or a dictionary; raise `ValueError` for any other text."""
    if len(text) > _LONGEST:
        raise ValueError(f"a config has {len(text)} characters; at most {_LONGEST} are accepted")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        if isinstance(tree, ast.Call) and not tree.args and all(keyword.arg for keyword in tree.keywords):
            values = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in tree.keywords}
        else:
            values = ast.literal_eval(tree)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        values = None
    if not isinstance(values, dict):
        raise ValueError(
            f"{text[:60]!r} is not a config; one such as Config(num_warps=4) or {{'BLOCK': 64}} is expected"
        )
    return config_of(dict(_flat("", values)))


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the scalars in a value, each with its path of names and numbers."""
    items: Mapping[Any, Any] | None = None
    if isinstance(value, dict):
        items = value
    elif isinstance(value, (list, tuple)):
        items = dict(enumerate(value))
    if items:
        for key, part in items.items():
            yield from _flat(f"{name}_{key}" if name else str(key), part)
    else:
        yield name, str(value) if value is None or items is not None else value
