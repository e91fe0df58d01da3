"""Read and write files with tuned configs for the expert matmuls of vLLM and SGLang.

The engines look for a JSON file for each mixture-of-experts layer and GPU:

    {"1": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, ...}, "64": {...}}

The keys are numbers of tokens, and the values are configs. The engine uses the config whose number of tokens is
nearest. vLLM may add the key `triton_version`. SGLang has separate files for the second matmul, whose names end in
`_down`. Files for block-scaled matmuls, state spaces and LoRA have other members.
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
"""Possible names of each tunable in a kernel's spec, keyed by the name in a file."""

LAUNCHED = {"num_ctas": 1, "USE_TMA": 0, "SWAP_AB": 0, "SPLIT_K": 1}
"""Optional members of configs, with their defaults."""
# Required members of a config. Files for block-scaled matmuls have the same members as files for experts.
EXPERTS: tuple[str, ...] = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
STATE_SPACE: tuple[str, ...] = ("BLOCK_SIZE_M", "num_warps")
LORA: tuple[str, ...] = ("BLOCK_N", "BLOCK_K", "num_warps")
_ALLOWED = {EXPERTS: {*TILES, *LAUNCHED}, STATE_SPACE: {*STATE_SPACE}, LORA: {*LORA, "num_stages", "maxnreg"}}
"""Permitted keys of a config, keyed by its required keys."""
_NEEDED = {"e": "experts", "n": "intermediate size", "m": "tokens", "device": "the GPU's name in nvidia-smi"}
"""Keys that the text of an expert layer must contain, with their meanings."""
_MOST_TOKENS = 1 << 24
_LARGEST = 1 << 20
VERSION = "triton_version"


@dataclass(frozen=True)
class ExpertLayer:
    """Mixture-of-experts layer on a GPU, with a number of tokens."""

    experts: int
    width: int
    """Intermediate size of an expert on one tensor-parallel GPU."""
    tokens: Expression
    """Number of tokens. The expression may use the integer arguments of a captured call as variables."""
    device: str
    """Name of the GPU according to the driver, as `torch.cuda.get_device_name()` returns it."""
    dtype: str | None = None
    """Quantization in the engine's notation, such as `fp8_w8a8`, or None if the layer is not quantized."""
    block: tuple[int, int] | None = None
    """Rows and columns (n, k) of a block of weights with a common scale, or None if scales are not per block."""
    by_row: bool = False
    """Whether each row of the weights has its own scale."""

    @classmethod
    def parse(cls, text: str) -> "ExpertLayer":
        """Parse a layer such as `e=8,n=14336,m=16,device=NVIDIA L40S,dtype=fp8_w8a8,block=128x128`.

        The members are the number of experts (e), the intermediate size (n), the number of tokens (m), the GPU, and
        optionally the quantization and its block size. Raise `UsageError` if a member is missing, unknown or invalid.
        """
        members = (*_NEEDED, "dtype", "block")
        values: dict[str, str] = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            if name.strip() not in members:
                raise unknown("key", name.strip(), members)
            values[name.strip()] = value.strip()
        for name, what in _NEEDED.items():
            if not values.get(name):
                raise UsageError(f"{name}= is missing ({what}); expected e=8,n=14336,m=16,device=NVIDIA L40S")
        experts, width = (_number(name, values[name]) for name in ("e", "n"))
        tokens = parse(values["m"].lower())
        if not tokens.names:
            _number("m", values["m"])
        block = [_number("block", part) for part in values.get("block", "").split("x") if part]
        if len(block) not in (0, 2):
            raise UsageError(f"block is {values['block']!r:.40}; expected n x k, such as 128x128")
        dtype = values.get("dtype", "")
        if not (re.fullmatch(r"[\w .()+-]{1,80}", values["device"]) and re.fullmatch(r"\w{0,40}", dtype)):
            raise UsageError(f"{text!r:.120}: device and dtype must not contain path separators")
        sizes = (block[0], block[1]) if block else None
        return cls(experts, width, tokens, values["device"], dtype or None, sizes)

    def tokens_of(self, call: Mapping[str, int]) -> int:
        """Return the number of tokens in a captured call. `call` maps names of integer arguments to values.

        Raise `UsageError` if the expression is invalid, or its value is not a positive integer.
        """
        for name in self.tokens.names - call.keys():
            raise unknown("integer argument", name, call)
        value = self.tokens.evaluate(call)
        if type(value) is not int or not 1 <= value <= _MOST_TOKENS:
            raise UsageError(
                f"m={self.tokens.text} is {value!r:.40} for {dict(call)}; expected a whole number of at least 1"
            )
        return value

    def file_name(self, tool: str) -> str:
        """Return the name of the file in which an engine (`vllm` or `sglang`) looks for this layer's configs."""
        device = self.device.replace(" ", "_")
        if tool == "vllm" and "H200" in device.split("_"):
            device = "NVIDIA_H200"  # vLLM uses this name for all variants of the H200.
        dtype = f",dtype={self.dtype}" if self.dtype else ""
        block = f",block_shape={list(self.block)}" if self.block else ""
        block = block.replace(" ", "") if tool == "vllm" else block
        by_row = ",per_channel_quant=True" if self.by_row and tool == "sglang" else ""
        return f"E={self.experts},N={self.width},device_name={device}{dtype}{block}{by_row}.json"


def tiles_of(kernel: Kernel, config: Mapping[str, int]) -> dict[str, int]:
    """Convert a kernel's config to a config in a file of vLLM or SGLang. Raise `UsageError` if the format does not fit
    the kernel's tunables."""
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


def read_moe_configs(
    text: str, title: str, needed: tuple[str, ...] = EXPERTS
) -> tuple[dict[int, dict[str, int]], str | None]:
    """Parse a file with tuned configs, by default for expert matmuls.

    Args:
        title: Name of the file for error messages.
        needed: Members that each config must have: `EXPERTS`, `STATE_SPACE` or `LORA`.

    Returns:
        (configs keyed by number of tokens, the file's `triton_version` or None).

    Raises:
        UsageError: The text has another format. The message is one line and names the file.
    """
    with reading(title, "a file of expert configs as vLLM and SGLang read it"):
        return _configs(whole_document(text, _LARGEST), needed)


def _configs(document: Any, needed: tuple[str, ...]) -> tuple[dict[int, dict[str, int]], str | None]:
    if not isinstance(document, dict) or not document:
        raise ValueError("expected an object whose keys are numbers of tokens")
    configs = {}
    version = document.get(VERSION)
    if version is not None and not (isinstance(version, str) and re.fullmatch(r"[\w.+-]{1,40}", version)):
        raise ValueError(f"{VERSION} is {version!r:.40}; expected a version such as '3.4.0'")
    for tokens, config in document.items():
        if tokens == VERSION or (config is None and len(document) > 1):  # Some SGLang tuners write null configs.
            continue
        if not (tokens.isascii() and tokens.isdecimal() and 0 < len(tokens) < 9 and int(tokens) <= _MOST_TOKENS):
            raise ValueError(f"{tokens!r:.40} is not a number of tokens")
        if not isinstance(config, dict) or not config.keys() >= set(needed):
            raise ValueError(f"the config for {tokens} tokens lacks one of {', '.join(needed)}")
        if other := sorted(config.keys() - _ALLOWED[needed]):
            raise ValueError(f"the config for {tokens} tokens has {other[0]!r:.40}, which kernrec does not know")
        config = {name: int(value) if LAUNCHED.get(name) == 0 else value for name, value in config.items()}
        for name, value in config.items():
            if type(value) is not int or not LAUNCHED.get(name, 1) <= value <= 1024:
                raise ValueError(f"{name} for {tokens} tokens is {value!r:.40}; expected a whole number from 1 to 1024")
        stated = {name: value for name, value in config.items() if LAUNCHED.get(name) != value}
        configs[int(tokens)] = {"GROUP_SIZE_M": 1, **stated} if needed == EXPERTS else stated
    if not configs:
        raise ValueError("it has no configs")
    return configs, version


def write_moe_configs(configs: Mapping[int, Mapping[str, int]], version: str | None = None) -> str:
    """Return the text of a file with tuned configs. `version` becomes the member `triton_version` unless it is None."""
    document: dict[str, Any] = {VERSION: version} if version else {}
    return json.dumps(document | {str(tokens): dict(configs[tokens]) for tokens in sorted(configs)}, indent=4) + "\n"


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and int(text) > 0):
        raise UsageError(f"{name} is {text!r:.40}; expected a whole number of at least 1")
    return int(text)
