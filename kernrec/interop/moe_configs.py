"""Read and write tuned configs of expert matmuls of vLLM and SGLang: a JSON file for each layer and GPU.

    {"1": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, ...}, "64": {...}}

Keys are numbers of tokens; the engine uses the nearest. vLLM may add `triton_version`. The file has no version and no
times, only the best configs. A file with other keys is rejected. SGLang's files for the second matmul end in `_down`,
and may tell the engine to read weights by TMA.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from kernrec.errors import UsageError, unknown
from kernrec.interop.json_document import reading, whole_document
from kernrec.kernel import Kernel
from kernrec.kernel.expression import Expression, parse
from kernrec.util.light_dataclass import dataclass

TILES = {
    "BLOCK_SIZE_M": ("BLOCK_SIZE_M", "BLOCK_M"),
    "BLOCK_SIZE_N": ("BLOCK_SIZE_N", "BLOCK_N"),
    "BLOCK_SIZE_K": ("BLOCK_SIZE_K", "BLOCK_K"),
    "GROUP_SIZE_M": ("GROUP_SIZE_M", "GROUP_M"),
    "num_warps": ("num_warps",),
    "num_stages": ("num_stages",),
}
"""Maps members of a config to possible names of the kernel's tunable."""

_SPLIT = "SPLIT_K"
"""Member in later releases of vLLM; kernrec supports only 1."""
LAUNCHED = {"num_ctas": 1, "USE_TMA": 0, "SWAP_AB": 0}
"""Additional members of some files, with their defaults: blocks per cluster, whether weights are read by TMA, whether
operands are swapped. Booleans are read as 0 and 1.
"""
_MEMBERS = {*TILES, *LAUNCHED, _SPLIT}
_NEEDED = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
_MOST_TOKENS = 1 << 24
_LARGEST = 1 << 20
VERSION = "triton_version"


@dataclass(frozen=True)
class ExpertLayer:
    """Layer, GPU and number of tokens that determine a config's file and its entry there."""

    experts: int
    width: int
    """Columns of each half of the first matmul: the intermediate size on one tensor-parallel rank."""
    tokens: Expression
    """Number of tokens, or an expression of a call's integer arguments."""
    device: str
    """Name of the GPU according to its driver, as from `torch.cuda.get_device_name()`."""
    dtype: str | None = None
    """Engine's name of the quantization, such as `fp8_w8a8`; None for none."""
    block: tuple[int, int] | None = None
    """Rows and columns that share a weight scale, (n, k)."""
    by_row: bool = False
    """Whether each row of the weights has its own scale; part of SGLang's file names."""

    @classmethod
    def parse(cls, text: str) -> "ExpertLayer":
        """Return the layer that `e=8,n=14336,m=16,device=NVIDIA L40S,dtype=fp8_w8a8,block=128x128` describes.

        Raises:
            UsageError: a member is missing or unknown, or has an invalid value.
        """
        members = ("e", "n", "m", "device", "dtype", "block")
        values: dict[str, str] = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            if name.strip() not in members:
                raise unknown("member of an expert layer", name.strip(), members)
            values[name.strip()] = value.strip()
        for name, what in (("e", "experts"), ("n", "intermediate size"), ("m", "tokens"), ("device", "driver's name")):
            if not values.get(name):
                raise UsageError(f"{name}= is missing ({what}); expected e=8,n=14336,m=16,device=NVIDIA L40S")
        experts, width = (_number(name, values[name]) for name in ("e", "n"))
        tokens = parse(values["m"].lower())
        if not tokens.names:
            _number("m", values["m"])
        block = [_number("block", part) for part in values.get("block", "").split("x") if part]
        if len(block) not in (0, 2):
            raise UsageError(f"block is {values['block']!r:.40}; expected n x k, such as 128x128")
        if not re.fullmatch(r"[\w .()+-]{1,80}", values["device"]) or not re.fullmatch(
            r"\w{0,40}", values.get("dtype", "")
        ):
            raise UsageError(f"{text!r:.120}: device and dtype must not contain path separators")
        sizes = (block[0], block[1]) if block else None
        return cls(experts, width, tokens, values["device"], values.get("dtype") or None, sizes)

    def tokens_of(self, call: Mapping[str, int]) -> int:
        """Return the number of tokens of a call with these integers. Raises `UsageError` if it is not an integer."""
        for name in self.tokens.names - call.keys():
            raise unknown("integer argument", name, call)
        value = self.tokens.evaluate(call)
        if type(value) is not int or not 1 <= value <= _MOST_TOKENS:
            raise UsageError(
                f"m={self.tokens.text} is {value!r:.40} for {dict(call)}; expected a whole number of at least 1"
            )
        return value

    def file_name(self, tool: str) -> str:
        """Return the name of the file that `vllm` or `sglang` looks for."""
        device = self.device.replace(" ", "_")
        if tool == "vllm" and "H200" in device.split("_"):
            device = "NVIDIA_H200"  # vLLM has one name for all variants of the H200.
        dtype = f",dtype={self.dtype}" if self.dtype else ""
        block = f",block_shape={list(self.block)}" if self.block else ""
        block = block.replace(" ", "") if tool == "vllm" else block
        by_row = ",per_channel_quant=True" if self.by_row and tool == "sglang" else ""
        return f"E={self.experts},N={self.width},device_name={device}{dtype}{block}{by_row}.json"


def tiles_of(kernel: Kernel, config: Mapping[str, int]) -> dict[str, int]:
    """Convert a kernel's config to the format of these files.

    Raises:
        UsageError: the kernel's tunables differ from those of an expert matmul of these tools.
    """
    values = {tunable.macro: config[tunable.name] for tunable in kernel.tunables}
    tiles = {}
    for name, spellings in TILES.items():
        spelled = next((spelling for spelling in spellings if spelling in values), None)
        if spelled is not None:
            tiles[name] = int(values.pop(spelled))
        elif name != "GROUP_SIZE_M":
            raise UsageError(f"{kernel.name} has no tunable {' or '.join(spellings)}, which the file format requires")
    if values:
        raise UsageError(f"{kernel.name} has the tunable {next(iter(values))}, which the file format cannot express")
    return {"GROUP_SIZE_M": 1, **tiles}


def read_moe_configs(text: str, title: str) -> tuple[dict[int, dict[str, int]], str | None]:
    """Return (configs of a file by number of tokens, its `triton_version` or None).

    Raises:
        UsageError: the text is not such a file; the message is one line with `title`.
    """
    with reading(title, "a file of expert configs as vLLM and SGLang read it"):
        return _configs(whole_document(text, _LARGEST))


def _configs(document: Any) -> tuple[dict[int, dict[str, int]], str | None]:
    if not isinstance(document, dict) or not document:
        raise ValueError("expected an object with numbers of tokens")
    configs = {}
    version = document.get(VERSION)
    if version is not None and not (isinstance(version, str) and re.fullmatch(r"[\w.+-]{1,40}", version)):
        raise ValueError(f"{VERSION} is {version!r:.40}")
    for tokens, config in document.items():
        if tokens == VERSION:
            continue
        if not (tokens.isascii() and tokens.isdecimal() and 0 < len(tokens) < 9 and int(tokens) <= _MOST_TOKENS):
            raise ValueError(f"{tokens!r:.40} is not a number of tokens")
        if not isinstance(config, dict) or not config.keys() >= set(_NEEDED):
            raise ValueError(f"the config of {tokens} tokens lacks one of {', '.join(_NEEDED)}")
        if other := sorted(config.keys() - _MEMBERS):
            raise ValueError(f"the config of {tokens} tokens has {other[0]!r:.40}, which kernrec does not know")
        config = {name: int(value) if LAUNCHED.get(name) == 0 else value for name, value in config.items()}
        for name, value in config.items():
            if type(value) is not int or not LAUNCHED.get(name, 1) <= value <= 1024:
                raise ValueError(f"{name} of {tokens} tokens is {value!r:.40}; expected a whole number from 1 to 1024")
        if config.get(_SPLIT, 1) != 1:
            raise ValueError(f"SPLIT_K of {tokens} tokens is not 1; kernrec supports only 1")
        stated = {name: config[name] for name in TILES if name in config}
        stated |= {name: config[name] for name, usual in LAUNCHED.items() if config.get(name, usual) != usual}
        configs[int(tokens)] = {"GROUP_SIZE_M": 1, **stated}
    if not configs:
        raise ValueError("it has no configs")
    return configs, version


def write_moe_configs(configs: Mapping[int, Mapping[str, int]], version: str | None = None) -> str:
    """Return the text of a file.

    Args:
        configs: configs by number of tokens.
        version: release of Triton, for a vLLM file that states one.
    """
    document: dict[str, Any] = {VERSION: version} if version else {}
    return json.dumps(document | {str(tokens): dict(configs[tokens]) for tokens in sorted(configs)}, indent=4) + "\n"


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and int(text) > 0):
        raise UsageError(f"{name} is {text!r:.40}; expected a whole number of at least 1")
    return int(text)
