"""Recorded attention: FlashAttention over prompts and over single tokens, in CUDA graphs.

Power is not used: neighbors differ by a factor of three at the same latency (one query, 32 heads of 128, 4 keys: 292 W
for 1 sequence, 558 W for 2, 253 W for 4).
"""

from pathlib import Path

import numpy as np

from evidence.vendor_recordings import SERVING, columns_of, joined, on_cards, recording
from kernrec.model.vendor.bound import FLASH
from kernrec.model.vendor.model import RecordedSet
from kernrec.training.train_vendor_model import Recording

Array = np.ndarray

_ALIKE = 0.11
"""Assumed as for products."""
_FLASH = {"recorded": "bf16, CUDA graphs, random inputs"}
PROMPT = RecordedSet(
    "prompt", "attention", "prompt", on_cards("vLLM", "a100-sxm4-80gb", "h200-sxm"), ("bf16",), ("bshd",),
    ("f16", "bhsd"), _ALIKE, FLASH, ("queries",), {}, (),
    SERVING | _FLASH | {"library": "as called by SGLang 0.5.10 (A100) and vLLM 0.22 (H200), layout bshd"},
)  # fmt: skip
TOKEN = RecordedSet(
    "token", "attention", "token", on_cards("vLLM", "h200-sxm"), ("bf16",), ("bshd",), ("f16", "bhsd"), _ALIKE,
    FLASH, ("keys",), {}, (),
    SERVING | _FLASH | {"library": "as called by vLLM 0.22, layout bshd, paged keys and values"},
)  # fmt: skip


def recordings(data: Path) -> list[Recording]:
    """The recorded sets of attention."""
    return [_prompt(data), _token(data)]


def _prompt(data: Path) -> Recording:
    parts = []
    for file, gpu, windows in (
        ("prefill_a100", "a100-sxm4-80gb", "true"),
        ("prefill_h200_power", "h200-sxm", "window_size = 0"),
    ):
        columns = _attention(data / "library" / f"attention_{file}.parquet", windows)
        columns["queries"] = columns["keys"] = columns["isl"]
        parts.append(recording(PROMPT, gpu, columns, np.full(len(columns["isl"]), np.nan)))
    return joined(parts)


def _token(data: Path) -> Recording:
    columns = _attention(data / "library" / "attention_decode_h200_power.parquet", "window_size = 0")
    columns["queries"], columns["keys"] = columns["isl"], columns["isl"] + columns["step"]
    return recording(TOKEN, "h200-sxm", columns, np.full(len(columns["isl"]), np.nan))


def _attention(path: Path, condition: str) -> dict[str, Array]:
    names = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim", "latency_s")
    columns = columns_of(path, names, f"num_heads % num_key_value_heads = 0 AND {condition}")
    for name, column in (("batch", "batch_size"), ("heads", "num_heads"), ("kv_heads", "num_key_value_heads")):
        columns[name] = columns.pop(column)
    return columns
