"""The predicted best attention of the library of kernels over what FlashAttention-3 takes on Hopper.

- Recorded: a seeded sample of causal bf16 prompts without a window on an H200 (vLLM's FlashAttention) that take longer
  than `--least` seconds, in all, by kernel, by head_dim and by tokens: geometric mean of predicted over recorded
  latency, and the share outside of a factor of 1.5.
- Published: f16 and e4m3 on an H100 SXM5, the paper's charts of forward speed (arXiv 2407.08608; 16,384 tokens in all,
  2,048 elements a token), by head_dim with and without a mask: predicted over published throughput at each length.

No constant was fitted to these rows; one was chosen in view of the f16 and bf16 ones (`GROUPS_SHARE` of the prior).
"""

import tomllib
from pathlib import Path

import numpy as np
from front import DATA, Data, Table

import kernrec

from .library_shapes import seeded_sample
from .products import show
from .scores import geometric_mean

_MOST_ELEMENTS = 2**31
TOKENS, WIDTH = 16384, 2048
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
Rates = dict[str, tuple[int, ...]]
"""TFLOP/s by head_dim and mask, for each of `LENGTHS`; 0 where it is not known."""


def run(data: Data = DATA, shapes: int = 1000, least: float = 20e-6) -> None:
    """Print the figures; shorter times than `least` are mostly launch."""
    rates = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    published("f16", rates["f16"], "FlashAttention-3's")
    published("f8e4m3", rates["e4m3"], "FlashAttention-3's")
    published("f8e4m3", rates["e4m3-fastest"], "those of the fastest of three")
    path = data / "library" / "attention_prefill_h200_power.parquet"
    fits = f"batch_size * isl * num_heads * head_dim < {_MOST_ELEMENTS} AND num_heads % num_key_value_heads = 0"
    condition = f"latency_s > {least} AND window_size = 0 AND head_dim <= 256 AND {fits}"
    names = ("batch_size", "num_heads", "num_key_value_heads", "isl", "head_dim", "latency_s")
    rows = seeded_sample(path, condition, shapes, ", ".join(names))
    batch, heads, kv_heads, tokens, head_dim, latency_s = (np.array([row[name] for row in rows]) for name in names)
    answer = kernrec.recommend_many(
        "attention", "h200-sxm", dtype="bf16", layout="bshd", objective="latency", batch=batch, heads=heads,
        kv_heads=kv_heads, queries=tokens, head_dim=head_dim, causal=1,
    )  # fmt: skip
    kernels = np.array(answer.kernels)
    groups = {"all": np.full(len(rows), True)} | {name: kernels == name for name in dict.fromkeys(answer.kernels)}
    groups |= {f"head_dim {size}": head_dim == size for size in np.unique(head_dim)}
    for name, low, high in (("up to 512", 0, 512), ("513 to 2048", 512, 2048), ("beyond 2048", 2048, 1 << 31)):
        groups[f"tokens {name}"] = (tokens > low) & (tokens <= high)
    title = "\nh200-sxm, bf16, causal: predicted best of ours over the library's"
    show(title, answer.latency_s[:, 0] / latency_s, groups)


def published(dtype: str, rates: Rates, whose: str) -> None:
    """Predicted over published throughput, a line for each head_dim and mask."""
    table, ratios = Table(f"\nh100-sxm, {dtype}: predicted TFLOP/s of ours (over {whose})"), []
    for name, reached in rates.items():
        head_dim, causal = int(name.partition("-")[0]), int(name.endswith("-causal"))
        batch = [TOKENS // length for length in LENGTHS]
        answer = kernrec.recommend_many(
            "attention", "h100-sxm", dtype=dtype, layout="bshd", objective="latency", batch=batch,
            heads=WIDTH // head_dim, queries=LENGTHS, head_dim=head_dim, causal=causal,
        )  # fmt: skip
        flops = 4 * TOKENS * WIDTH * np.array(LENGTHS) / (2 if causal else 1)
        predicted = flops / answer.latency_s[:, 0] / 1e12
        of_row = [p / r for p, r in zip(predicted, reached, strict=True) if r]
        cells = [f"{p:.0f} ({p / r:.2f})" if r else f"{p:.0f}" for p, r in zip(predicted, reached, strict=True)]
        mean = geometric_mean(np.array(of_row))
        table.row({"head_dim": name, **dict(zip(map(str, LENGTHS), cells, strict=True)), "mean": mean})
        ratios += of_row
    print(f"geometric mean {geometric_mean(np.array(ratios)):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")
