"""Lower bound and features of backends' mixtures of experts, on the GPU with the most work (as in the recordings).

With balanced routing, each expert of the GPU gets the same number of tokens. With routing by a power law, the GPU has
the most popular expert and an even selection of the other experts. Even for a few tokens, an expert reads all its
weights and computes whole tiles of rows.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np

from kernrec.model.baselines.bound import Bound, Device, bound_of, rate_of

Array = np.ndarray

DIMS = ("tokens", "hidden", "intermediate", "experts", "topk", "tp", "ep", "routing", "gated")
CASES: Mapping[str, Callable[[Mapping[str, int]], bool]] = {"experts": lambda d: True}

SUSTAINED_SIBLINGS = True
_ROWS = (16, 64, 128)
"""Numbers of rows in the tiles that backends use for an expert."""
_COLUMNS = 128
_MATH_SHARE, _DRAM_SHARE = 0.6, 0.8
"""Fractions of the data sheet's rates that large problems reach, fitted to recordings of three backends."""
_SMALL_TILE = 3.0
"""Ratio of a row's time in a 16-row tile to its time in a larger tile."""
_CHAIN_CLK = 250.0
"""Clocks for each step of 64 elements along the reduction. The steps of a tile run one after the other."""
_MOST_POPULAR = 5e3
"""Ratio of the most popular expert's tokens to the least popular expert's, under the power law of the recordings."""


def bound(device: Device, sizes: Array, layout: str) -> Bound:
    tokens, hidden, intermediate, experts, topk, tp, ep, routing, gated = sizes
    gpu, kind = device.gpu, device.precision
    inner, local, wide = intermediate / tp, np.maximum(experts // ep, 1), 1 + gated
    routed = _routed(tokens * topk, tokens, experts, ep, routing)
    active, rows, padded = routed["active"], routed["rows"], {size: routed[f"rows of {size}"] for size in _ROWS}
    per_row = 2 * (wide + 1) * hidden * inner
    weights = active * (wide + 1) * hidden * inner * kind.b_bytes
    passed = 2 * (rows * (2 * hidden + (wide + 1) * inner) + 2 * tokens * hidden)
    flops, moved = rows * per_row, weights + passed
    resident = np.clip(2.0 - weights / gpu.l2_bytes, 0.0, 1.0)
    spilled = passed * np.clip(passed / gpu.l2_bytes - 0.5, 0.0, 1.0)
    memory_s = np.maximum(
        ((1 - resident) * weights + spilled) / (gpu.memory_bandwidth * _DRAM_SHARE), moved / device.l2
    )
    whole = np.minimum(padded[64], padded[128])
    if device.timing.sustained:  # Without 16-row tiles, the bound for few tokens is too long on GPUs such as the H20.
        whole = np.minimum(whole, padded[16] * _SMALL_TILE)
    math_s = whole * per_row / (device.peak_flops * _MATH_SHARE)
    chain_s = device.seconds(_CHAIN_CLK) * (hidden + inner) / 64
    parts = device.parts(flops, moved)
    total_s = parts["launch"] + (math_s**3 + memory_s**3 + chain_s**3) ** (1 / 3)
    bandwidth = gpu.memory_bandwidth
    shares = {
        "launch": parts["launch"], "math": math_s, "memory": memory_s, "chain": chain_s, "flops": parts["math"],
        "dram": parts["dram"], "weights": weights / bandwidth, "passed": passed / bandwidth,
        "rows of 16": padded[16] * per_row / device.peak_flops,
        "rows of 128": padded[128] * per_row / device.peak_flops,
        "all weights": local * (wide + 1) * hidden * inner * kind.b_bytes / bandwidth,
        "tokens": 2 * tokens * hidden / bandwidth, "experts": device.seconds(2000.0) * active,
    }  # fmt: skip
    rate = float(np.log2(device.peak_flops / rate_of(gpu, "f16")))
    columns = {
        "l2.weights": np.log2(weights / gpu.l2_bytes), "l2.passed": np.log2(passed / gpu.l2_bytes),
        "shape.rows of an expert": np.log2(rows / active), "shape.most rows": np.log2(routed["most"]),
        "shape.active": np.log2(active), "full.active": active / local, "shape.rows": np.log2(rows),
        "shape.inner": np.log2(inner), "shape.hidden": np.log2(hidden), "shape.tokens": np.log2(tokens),
        "shape.topk": topk, "shape.local experts": np.log2(local), "shape.routing": routing, "shape.gated": gated,
        "aligned.inner": np.log2(np.gcd(inner.astype(np.int64), 256)),
        "aligned.hidden": np.log2(np.gcd(hidden.astype(np.int64), 512)),
        "dtype.a": np.full(len(rows), kind.a_bytes), "dtype.rate": np.full(len(rows), rate),
        "arch.asynchronous": np.full(len(rows), float(gpu.sm in (90, 100, 103))),
        "arch.datacenter blackwell": np.full(len(rows), float(gpu.sm in (100, 103))),
    }  # fmt: skip
    for product, width in (("up", wide * inner), ("down", hidden)):
        tiles = padded[64] / 64 * np.ceil(width / _COLUMNS)
        columns[f"waves.{product}"] = np.log2(tiles / gpu.sms)
        columns[f"full.{product}"] = tiles / (np.ceil(tiles / gpu.sms) * gpu.sms)
    return bound_of(device, DIMS, sizes, total_s, parts, shares, columns)


def active_experts(sizes: Mapping[str, int]) -> float:
    """Return the expected number of experts on the busiest GPU that get at least one token."""
    tokens, experts, ep, routing = (np.array([float(sizes[name])]) for name in ("tokens", "experts", "ep", "routing"))
    return float(_routed(tokens * sizes["topk"], tokens, experts, ep, routing)["active"][0])


def _routed(routes: Array, tokens: Array, experts: Array, ep: Array, routing: Array) -> dict[str, Array]:
    """Return how `routes` assignments of tokens to experts load the busiest of `ep` GPUs. The keys are `active` (number
    of experts with tokens), `rows` (rows of all experts), `most` (rows of the busiest expert), and `rows of SIZE` (like
    `rows`, but each expert's rows are padded to a multiple of SIZE)."""
    made = {name: np.empty(len(routes)) for name in ("active", "rows", "most", *(f"rows of {size}" for size in _ROWS))}
    kinds = np.stack([experts, ep, routing], axis=1)
    for kind in np.unique(kinds, axis=0):
        places = np.flatnonzero((kinds == kind).all(axis=1))
        shares = _shares(*map(int, kind))
        rows = np.minimum(routes[places, None] * shares, tokens[places, None])
        if kind[2]:
            touched = -np.expm1(-rows)  # Probability that an expert gets at least one token.
            active, total, most = touched.sum(axis=1), rows.sum(axis=1), np.ceil(rows.max(axis=1))
            whole = {size: size * np.where(rows > 1, np.ceil(rows / size), touched).sum(axis=1) for size in _ROWS}
        else:
            total = np.maximum(routes[places] / kind[1], 1.0)
            active = np.minimum(len(shares), total)
            most = np.ceil(total / active)
            whole = {size: active * np.ceil(total / active / size) * size for size in _ROWS}
        made["active"][places], made["rows"][places] = np.maximum(active, 1), np.maximum(total, 1)
        made["most"][places] = np.maximum(most, 1)
        for size in _ROWS:
            made[f"rows of {size}"][places] = np.maximum(whole[size], size)
    return made


@lru_cache(256)
def _shares(experts: int, ep: int, routing: int) -> Array:
    """Return, for each expert on the busiest of `ep` GPUs, the fraction of all token assignments."""
    local = max(experts // ep, 1)
    if not routing:
        return np.full(local, 1 / experts)
    power = 1 - routing / 100
    quantiles = (np.arange(experts) + 0.5) / experts
    drawn = (1 + quantiles * (_MOST_POPULAR**power - 1)) ** (1 / power) if power else _MOST_POPULAR**quantiles
    drawn = drawn[::-1] / drawn.sum()
    others = np.linspace(1, experts - 1, local - 1).astype(int) if local > 1 else np.zeros(0, dtype=int)
    return np.concatenate([drawn[:1], drawn[others]])
