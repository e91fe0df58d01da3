"""Read and write Inductor's lookup table: for a shape, the configs of a template that `torch.compile` compares.

    {"((torch.float16, [m, k], [k, 1]), (torch.float16, [k, n], [n, 1]))+mm": [{"template_id": "triton::mm", ...}]}

A key consists of an optional device, the types, shapes and strides of the inputs, and the op. If an entry has a single
config, PyTorch does not measure. The table has no version and no times. A config with a member that PyTorch 2.10 to
2.14 do not have is rejected.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kernrec.errors import UsageError
from kernrec.interop.json_document import reading, whole_document

TEMPLATE = "triton::mm"
"""Matmul template whose tunables `matmul_triton` has."""

TUNABLES = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_stages", "num_warps")
_OPTIONS = ("template_id", "template_hash", "EVEN_K", "ALLOW_TF32", "USE_FAST_ACCUM", "ACC_TYPE", "hint_override")
"""Members of an entry that are not tunables."""
_TYPES = {"f16": "torch.float16", "bf16": "torch.bfloat16", "f32": "torch.float32", "tf32": "torch.float32"}
_KEY = re.compile(r"(?:[^+()\n]{1,80}\+)?\(\((?:torch\.\w++|[\d, \[\]()])+\)\)(?:\+[\w=.&-]+)?\+\w+")
_LARGEST = 16 << 20
_MOST_CONFIGS = 65_536


def product_key(dims: Mapping[str, int], dtype: str, layout: str) -> str:
    """Return the key of a matmul on any device.

    Args:
        dims: `m`, `n` and `k`.
        dtype: data type of both inputs.
        layout: `nn`, `nt`, `tn` or `tt`; `t` marks an input that is transposed in memory.
    """
    if dtype not in _TYPES:
        raise UsageError(f"this template of PyTorch has no {dtype} matmuls; expected {', '.join(_TYPES)}")
    m, n, k = dims["m"], dims["n"], dims["k"]
    strides_a = [1, m] if layout[0] == "t" else [k, 1]
    strides_b = [1, k] if layout[1] == "t" else [n, 1]
    name = _TYPES[dtype]
    return f"(({name}, [{m}, {k}], {strides_a}), ({name}, [{k}, {n}], {strides_b}))+mm"


def entry(config: Mapping[str, int], k: int, dtype: str) -> dict[str, Any]:
    """Return the table entry of a config that has the names of `TUNABLES`."""
    return {
        "template_id": TEMPLATE,
        **{name: int(config[name]) for name in TUNABLES},
        "EVEN_K": k % config["BLOCK_K"] == 0,
        "ALLOW_TF32": dtype == "tf32",
        "USE_FAST_ACCUM": False,
        "ACC_TYPE": "tl.float32",
    }


def read_table(text: str, title: str) -> dict[str, list[dict[str, int]]]:
    """Return the configs of `TEMPLATE` in a lookup table, by key, with only their tunables.

    Raises:
        UsageError: the text is not such a table; the message is one line with `title`.
    """
    with reading(title, "a lookup table as PyTorch 2.10 to 2.14 read it"):
        document = whole_document(text, _LARGEST)
        if not isinstance(document, dict) or not document:
            raise ValueError("expected an object with the keys of inputs")
        table = {key: _entries(key, entries) for key, entries in document.items()}
        if sum(map(len, table.values())) > _MOST_CONFIGS:
            raise ValueError(f"it has more than {_MOST_CONFIGS} configs")
        return table


def _entries(key: str, entries: Any) -> list[dict[str, int]]:
    if len(key) > 2000 or not _KEY.fullmatch(key):
        raise ValueError(f"{key!r:.80} is not the key of an op's inputs")
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise ValueError(f"{key!r:.60} has no list of configs")
    configs = []
    for config in entries:
        if not isinstance(config, dict) or not isinstance(config.get("template_id"), str):
            raise ValueError(f"a config of {key!r:.60} has no template_id")
        if config["template_id"] != TEMPLATE:
            continue
        if other := sorted(config.keys() - set(TUNABLES) - set(_OPTIONS)):
            raise ValueError(f"a config has the unknown field {other[0]!r:.40} (key {key:.40} ...)")
        for name in TUNABLES:
            if type(config.get(name)) is not int or not 1 <= config[name] <= 1024:
                raise ValueError(f"{name} of {key!r:.60} is {config.get(name)!r:.40}; expected a number from 1 to 1024")
        configs.append({name: config[name] for name in TUNABLES})
    return configs
