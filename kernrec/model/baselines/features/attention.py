"""Lower bound and features of backends' attention, for prompts and for single tokens.

A prompt is computed in tiles of 128 queries, each of which reads the keys within its window. A generated token reads
the keys and values within its window. If there are few heads and sequences, these keys are split over the SMs.
"""

from collections.abc import Callable, Mapping

import numpy as np

from kernrec.gpu import GPU
from kernrec.model.baselines.bound import Bound, Device, bound_of

Array = np.ndarray

DIMS = ("batch", "heads", "kv_heads", "queries", "keys", "head_dim", "window", "kv_dtype", "causal")
WIDEST_HEAD = 256
"""Maximum head dimension that FlashAttention and the backends' other kernels support."""
CASES: Mapping[str, Callable[[Mapping[str, int]], bool]] = {
    "prompt": lambda d: bool(d["causal"]) and d["queries"] == d["keys"],
    "encoder": lambda d: (
        not d["causal"] and not d["window"] and d["queries"] == d["keys"] > 1 and d["head_dim"] <= WIDEST_HEAD
    ),
    "token": lambda d: d["queries"] == 1 < d["keys"],
}

PHYSICAL_POWER = True
_QUERY_TILE, _KEY_TILE = 128, 64
_MMA_SHARE, _DRAM_SHARE, _SHORT_DRAM = 0.6, 0.9, 0.4
"""Fractions of the data sheet's rates that backends reach: on tensor cores, for DRAM in decoding, and for DRAM in
prompts. All constants of this module were fitted to recordings of three backends on six GPUs."""
_EXPONENTIALS = 16.0
"""Exponentials per SM and clock (CUDA C++ Programming Guide, arithmetic throughput)."""
_TILE_CLK = {True: 5000.0, False: 800.0}
"""Clocks that a wave of tiles takes in addition to its arithmetic. The key is True for GPUs with asynchronous tensor
cores (sm_90, sm_100, sm_103)."""
_SPLIT_KEYS = 128
"""Minimum number of keys per block, if the keys of a token are split over several blocks."""
_CHAIN_CLK = 400.0
"""Clocks per tile of keys in decoding. A block processes its tiles one after the other."""
_FEW_BLOCKS = 0.6
"""Exponent e if some SMs idle: throughput is proportional to (fraction of busy SMs) ** e."""


def kind(dtype: str, sizes: Mapping[str, int]) -> str:
    """Return the data type, such as `bf16`, or `bf16, kv f8e4m3` if keys and values have another data type."""
    return f"{dtype}, kv f8e4m3" if sizes["kv_dtype"] else dtype


def bound(device: Device, sizes: Array, layout: str) -> Bound:
    """Return lower bounds on the times of problems, and features. The problems must all be prefill or all decode."""
    by_name = dict(zip(DIMS, sizes, strict=True))
    make = _token if (by_name["queries"] < by_name["keys"]).all() else _prompt
    return make(device, by_name)


def _window(sizes: Mapping[str, Array]) -> Array:
    window, keys = sizes["window"], sizes["keys"]
    return np.asarray(np.where(window > 0, np.minimum(window, keys), keys))


def _cached_bytes(device: Device, sizes: Mapping[str, Array]) -> Array:
    return np.asarray(np.where(sizes["kv_dtype"] > 0, 1.0, device.element_bytes))


def _prompt(device: Device, sizes: Mapping[str, Array]) -> Bound:
    batch, heads, kv_heads, queries, keys, head_dim = (sizes[name] for name in DIMS[:6])
    gpu, window, causal = device.gpu, _window(sizes), sizes["causal"] > 0
    pairs = np.where(causal, window * (window + 1) / 2 + (queries - window) * window, queries * keys)
    # Queries and results have 16 bits in memory even if the matmuls use 8 bits.
    ends = 2 * max(device.element_bytes, 2) * batch * heads * queries * head_dim
    cached = 2 * _cached_bytes(device, sizes) * batch * kv_heads * keys * head_dim
    moved, flops = ends + cached, 4 * batch * heads * pairs * head_dim
    padded = np.ceil(keys / _KEY_TILE) * _KEY_TILE
    most = np.where(sizes["window"] > 0, np.minimum(window + _QUERY_TILE, padded), padded)
    mean = np.where((queries <= _QUERY_TILE) | ~causal, padded, np.minimum(most, keys / 2 + _QUERY_TILE / 2))
    blocks = batch * heads * np.ceil(queries / _QUERY_TILE)
    mma_s, soft_s = _tile_times(device, blocks * _QUERY_TILE * mean / gpu.sms, head_dim)
    longest_mma_s, longest_soft_s = _tile_times(device, _QUERY_TILE * most, head_dim)
    tile_s = np.ceil(blocks / gpu.sms) * device.seconds(_TILE_CLK[_asynchronous(gpu)])
    math_s = np.maximum(mma_s + 0.9 * soft_s, longest_mma_s + 0.9 * longest_soft_s) + tile_s
    resident = np.clip(2.0 - 3.0 * moved / gpu.l2_bytes, 0.0, 1.0)
    memory_s = np.maximum((1 - resident) * moved / (gpu.memory_bandwidth * _SHORT_DRAM), moved / device.l2)
    launch_s = device.launch_s
    shares = {
        "mma": mma_s, "soft": soft_s, "longest mma": longest_mma_s, "longest soft": longest_soft_s, "tiles": tile_s,
    }  # fmt: skip
    return _bound(
        device, sizes, launch_s + (math_s**3 + memory_s**3) ** (1 / 3), flops, moved, memory_s, blocks, shares, {}
    )


def _token(device: Device, sizes: Mapping[str, Array]) -> Bound:
    batch, heads, kv_heads, _, _, head_dim = (sizes[name] for name in DIMS[:6])
    gpu, window = device.gpu, _window(sizes)
    cached = 2 * _cached_bytes(device, sizes) * batch * kv_heads * window * head_dim
    moved = cached + 2 * device.element_bytes * batch * heads * head_dim
    blocks = batch * kv_heads
    split = np.clip(np.floor(2 * gpu.sms / blocks), 1, np.ceil(window / _SPLIT_KEYS))
    launched = blocks * split
    busy = np.minimum(1.0, launched / gpu.sms)
    padded = np.ceil(window / _KEY_TILE) * _KEY_TILE
    rows = np.ceil(heads / kv_heads / 16) * 16
    mma_s, soft_s = _tile_times(device, blocks * rows * padded / gpu.sms, head_dim)
    resident = np.clip(2.0 - 1.5 * moved / gpu.l2_bytes, 0.0, 1.0)
    read_s = np.maximum((1 - resident) * moved / (gpu.memory_bandwidth * _DRAM_SHARE), moved / device.l2)
    memory_s, math_s = read_s / busy**_FEW_BLOCKS, (2.4 * mma_s + 3 * soft_s) / busy**_FEW_BLOCKS
    chain_s = device.seconds(_CHAIN_CLK) * np.ceil(padded / split / _KEY_TILE) * np.maximum(1, launched / (2 * gpu.sms))
    launch_s = device.launch_s
    total_s = launch_s + (math_s**3 + memory_s**3 + chain_s**3) ** (1 / 3)
    flops = 4 * batch * heads * window * head_dim
    more = {"waves.split": np.log2(split), "full.sms": busy, "waves.keys of a part": np.log2(padded / split)}
    for resident_blocks in (1, 2, 4):
        places = resident_blocks * gpu.sms
        more[f"full.{resident_blocks}"] = launched / (np.ceil(launched / places) * places)
    return _bound(device, sizes, total_s, flops, moved, memory_s, blocks, {"mma": math_s, "chain": chain_s}, more)


def _tile_times(device: Device, pairs: Array, head_dim: Array) -> tuple[Array, Array]:
    mma_s = 4 * pairs * head_dim / (device.peak_flops * _MMA_SHARE / device.gpu.sms)
    return np.asarray(mma_s), np.asarray(device.seconds(1.0) * pairs / _EXPONENTIALS)


def _asynchronous(gpu: GPU) -> bool:
    return gpu.sm in (90, 100, 103)


def _bound(
    device: Device, sizes: Mapping[str, Array], total_s: Array, flops: Array, moved: Array, memory_s: Array,
    blocks: Array, shares: Mapping[str, Array], more: Mapping[str, Array],
) -> Bound:  # fmt: skip
    gpu, window, group = device.gpu, _window(sizes), sizes["heads"] / sizes["kv_heads"]
    parts = device.parts(flops, moved)
    count = len(total_s)
    columns = {
        "l2.moved": np.log2(moved / gpu.l2_bytes),
        "waves": np.log2(blocks / gpu.sms),
        "full": blocks / (np.ceil(blocks / gpu.sms) * gpu.sms),
        "waves.keys": np.log2(sizes["batch"] * sizes["kv_heads"] * window / gpu.sms),
        "shape.group": np.log2(group),
        "shape.head_dim": sizes["head_dim"],
        "shape.keys": np.log2(window),
        "shape.window": np.log2(sizes["window"] + 1),
        "shape.windowed": np.log2(window / sizes["keys"]),
        "shape.queries": np.log2(sizes["queries"]),
        "dtype.kv": sizes["kv_dtype"],
        "dtype.cached": _cached_bytes(device, sizes),
        "arch.asynchronous": np.full(count, float(_asynchronous(gpu))),
        "arch.datacenter blackwell": np.full(count, float(gpu.sm in (100, 103))),
        "log.heads in batch": np.log2(sizes["batch"] * sizes["heads"]),
        "log.cached heads": np.log2(sizes["batch"] * sizes["kv_heads"]),
        "rest.queries": sizes["queries"] % _QUERY_TILE,
    }
    own = {"memory": memory_s, "launch": parts["launch"], "flops": parts["math"], "dram": parts["dram"]}
    every = np.array([*sizes.values()])
    return bound_of(device, DIMS, every, total_s, parts, {**shares, **own}, {**columns, **more})
