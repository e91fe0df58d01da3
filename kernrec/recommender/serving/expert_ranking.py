"""Rank configs of the fused-experts kernel, which vLLM and SGLang share, without compiling them.

Decision trees predict whether a config is within 1 % of the best. They were trained on published sets of near-best
configs on an A100, an H20, an H800 and an L40 (`tools/train_expert_model.py`), and are less accurate on other GPUs.

The features include a formula for the kernel's time. Its constants are data sheet figures and published latencies. Only
the factor `level` was fitted to recorded times. fp8 experts are ranked as 16-bit experts with half the depth.
"""

import hashlib
import itertools
import json
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from kernrec import paths
from kernrec.errors import UsageError
from kernrec.gpu import GPU
from kernrec.model.baselines.compact_trees import CompactTrees, Trees, compressed, decompressed
from kernrec.recommender.serving.engine_defaults import Tiles
from kernrec.recommender.serving.engines import Kind, ProductShape, TunedFile
from kernrec.util.array_file import pack, unpack
from kernrec.util.files import read_input, write_whole
from kernrec.util.light_dataclass import dataclass

Array = np.ndarray

FORMAT = 1
TUNABLES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
SPACE: Array = np.array(
    list(
        itertools.product(
            (16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (32, 64, 128, 256), (1, 4, 8, 16, 32, 64), (4, 8),
            (2, 3, 4, 5),
        )
    )
)  # fmt: skip
"""Search space of the published sets, one config per row, (C, 6), in the order of `TUNABLES`."""
LEAST_SM = {None: 80, "fp8_w8a8": 89}
"""Minimum compute capability times 10, keyed by quantization."""
_DEEPEST = 256

_LATENCY_S = 700e-9
"""Assumed latency of a load from DRAM, in seconds."""
_L2_BYTES = 48
"""Assumed bytes per clock that L2 delivers to an SM."""
_OTHER_REGISTERS = 40
"""Assumed registers per thread besides accumulators and operands."""
_MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class ExpertRanking:
    """Trained model that ranks configs of the fused-experts kernel."""

    trees: CompactTrees
    level: float
    """Median ratio of recorded times to the formula's times."""
    factor: float
    """Factor between a predicted time and each end of its 90 % interval."""
    pair_spread: float
    gpus: tuple[str, ...]
    """Names of the GPUs with training data."""

    def scores(self, file: TunedFile, tokens: int, gpu: GPU, configs: Array) -> Array:
        """Return the log-odds that each config is near the best, (C,).

        The columns of `configs`, (C, 6), are in the order of `TUNABLES`.
        """
        shapes, alike = _as_16_bits(file, np.concatenate([configs, space(file, gpu)]))
        weight = np.array([shape.rows * shape.depth for shape in shapes], float)
        parts = [self.trees.predict(formula(shape, tokens, gpu, alike)[1][: len(configs)]) for shape in shapes]
        return np.asarray(weight / weight.sum() @ np.stack(parts))

    def times_s(self, file: TunedFile, tokens: int, gpu: GPU, configs: Array) -> Array:
        """Return the predicted seconds of both matmuls together, (C,), for configs (C, 6)."""
        shapes, alike = _as_16_bits(file, configs)
        parts = [formula(shape, tokens, gpu, alike)[0] for shape in shapes]
        return np.asarray(self.level * np.sum(parts, axis=0))

    def over_best(self, file: TunedFile, tokens: int, gpu: GPU, config: Tiles) -> float:
        """Return a config's predicted time divided by the lowest in the search space."""
        configs = np.concatenate([configs_array([config]), space(file, gpu)])
        times_s = self.times_s(file, tokens, gpu, configs)
        return float(times_s[0] / times_s.min())

    def ranked(self, file: TunedFile, tokens: int, gpu: GPU, count: int) -> list[Tiles]:
        """Return the `count` best configs that fit the GPU's shared memory, best first."""
        configs = space(file, gpu)
        order = np.argsort(-self.scores(file, tokens, gpu, configs), kind="stable")
        if gpu.name not in self.gpus:
            order = order[first_of_tiles(configs[order])]
        return [dict(zip(TUNABLES, row, strict=True)) for row in configs[order[:count]].tolist()]


def first_of_tiles(configs: Array) -> Array:
    """Return the index of the first config with each tile size, ascending. `configs` has the shape (configs, 6)."""
    return np.sort(np.unique(configs[:, :3], axis=0, return_index=True)[1])


def ranks(file: TunedFile, gpu: GPU) -> bool:
    """Return whether this module can rank the configs of a tuned file on a GPU."""
    is_known = file.kind is Kind.EXPERTS and file.dtype == file.weights and file.weights in LEAST_SM
    return is_known and gpu.sm >= LEAST_SM[file.weights]


def space(file: TunedFile, gpu: GPU) -> Array:
    """Return the configs of the search space for a tuned file that fit in a GPU's shared memory, (C, 6)."""
    configs: Array = SPACE[fits(SPACE, gpu)]
    if file.weights is None:
        return configs
    configs = configs * (1, 1, 2, 1, 1, 1)
    return np.asarray(configs[configs[:, 2] <= min((_DEEPEST, *(file.block or ())))])


def fitting(file: TunedFile, configs: Array, gpu: GPU) -> Array:
    """Return whether each config (C, 6) of a tuned file fits in shared memory, bool (C,)."""
    return fits(_as_16_bits(file, configs)[1], gpu)


def _as_16_bits(file: TunedFile, configs: Array) -> tuple[Sequence[ProductShape], Array]:
    if file.weights is None:
        return file.products, configs
    halved = configs.copy()
    halved[:, 2] //= 2
    return [ProductShape(p.rows, p.depth // 2, p.experts, p.top) for p in file.products], halved


def fits(configs: Array, gpu: GPU) -> Array:
    """Return whether the 16-bit tiles of each config (C, 6) fit in shared memory, bool (C,)."""
    m, n, k, _, _, stages = configs.T
    return np.asarray(2 * (m + n) * k * np.maximum(stages - 1, 1) <= gpu.limits.smem_per_block)


def formula(shape: ProductShape, tokens: int, gpu: GPU, configs: Array) -> tuple[Array, Array]:
    """Estimate the time of one matmul of experts with each config (C, 6).

    Returns:
        Seconds, (C,), to multiply by `ExpertRanking.level`, and features for the decision trees, (C, F).
    """
    m, n, k, group, warps, stages = configs.astype(float).T
    choices, width, depth = tokens * shape.top, shape.rows, shape.depth
    likely = _binomial(tokens, shape.top / shape.experts)  # Probability of each number of tokens per expert
    active = shape.experts * (1 - float(likely[0]))
    tile_rows, of_config = np.unique(configs[:, 0], return_inverse=True)
    tiles_m = shape.experts * (np.ceil(np.arange(tokens + 1) / tile_rows[:, None]) @ likely)[of_config]
    rows = choices / active
    blocks, steps = tiles_m * np.ceil(width / n), np.ceil(depth / k)
    limits, bandwidth = gpu.limits, gpu.memory_bandwidth
    flops = gpu.datasheet_tensor_flops.get("bf16") or gpu.peak_flops("bf16", tensor=True)

    stage = 2 * (m + n) * k
    shared = stage * np.maximum(stages - 1, 1)
    accumulators, operand_n, operand_m = m * n / (32 * warps), n * k / (32 * warps), m * k / (32 * warps)
    registers = np.clip(accumulators + 16 * (m + n) / (32 * warps) + _OTHER_REGISTERS, 32, 255)
    by_shared = np.clip(np.floor(limits.smem_per_sm / shared), 1, np.minimum(64 / warps, 32))
    most = np.maximum(np.minimum(by_shared, np.floor(65536 / (registers * 32 * warps))), 1)
    resident = np.minimum(most, np.ceil(blocks / gpu.sms))
    waves = np.ceil(blocks / (gpu.sms * resident))

    weights = 2 * active * width * depth
    reads = blocks * stage * steps
    padded = 2 * tiles_m * m * np.ceil(width / n) * n * depth
    from_dram = 0.4 if weights < gpu.l2_bytes else np.clip(weights / reads, 0.25, 1)
    # Hopper's tensor cores process 64 rows at a time, so a smaller tile wastes rows.
    narrow = np.where((gpu.sm // 10 == 9) & (m < 64), 0.5, 1.0) * np.minimum(1, resident * warps / 4)
    math_s = resident * 2 * m * n * k / (flops / gpu.sms * narrow)
    dram_s = resident * stage / (bandwidth / gpu.sms) * from_dram
    l2_s = resident * stage / (_L2_BYTES * gpu.boost_clock_hz)
    wait_s = _LATENCY_S / np.maximum(stages - 1, 1)
    step_s = np.maximum(np.maximum(math_s, dram_s), np.maximum(l2_s, wait_s))
    total_s = waves * (steps * step_s + _LATENCY_S + resident * 2 * m * n / (bandwidth / gpu.sms))
    least_s = weights / bandwidth
    in_flight = np.minimum(resident * gpu.sms, blocks) * shared
    per_sm = blocks / gpu.sms

    same = np.ones(len(configs))
    of_problem = (rows, width, depth, tokens, active * shape.top, weights, weights / gpu.l2_bytes, least_s)
    of_gpu = (gpu.sms, flops / bandwidth, limits.smem_per_sm, gpu.l2_bytes, bandwidth / gpu.sms, flops / gpu.sms)
    relative = (tiles_m * m, np.ceil(width / n) * n, np.maximum(total_s, least_s), total_s, reads, waves * steps,
                in_flight, math_s, steps * k)  # fmt: skip
    logarithmic = (
        m, n, k, group, warps, accumulators, operand_n, operand_m, shared / limits.smem_per_block,
        stages * stage / limits.smem_per_block, by_shared, most, resident, per_sm, waves, steps, rows / m,
        math_s / dram_s, wait_s / dram_s, l2_s / dram_s, in_flight / (bandwidth * _LATENCY_S), resident * warps,
        group * active / tiles_m, tiles_m / active, padded / flops / least_s, reads / weights,
        most * shared * gpu.sms / bandwidth, (m + n) / (m * n) * flops / bandwidth,
        *(value / value.min() for value in relative), *(same * value for value in (*of_problem, *of_gpu)),
    )  # fmt: skip
    plain = (stages, per_sm / np.ceil(per_sm), blocks / (gpu.sms * resident) / waves, same * (gpu.sm // 10))
    columns = np.stack([*np.log2(np.stack(logarithmic)), *plain], axis=1).astype(np.float32)
    return np.maximum(total_s, least_s), columns


@lru_cache(64)
def _binomial(trials: int, probability: float) -> Array:
    """Return the probability of 0, 1, ..., `trials` successes, (trials + 1,)."""
    counts = np.arange(trials)
    if probability >= 1:
        return np.append(np.zeros(trials), 1.0)
    steps = np.log((trials - counts) / (counts + 1.0)) + np.log(probability / (1 - probability))
    return np.asarray(np.exp(trials * np.log1p(-probability) + np.concatenate([[0.0], np.cumsum(steps)])))


def card_path() -> Path:
    """Return the path of the shipped model's card."""
    return paths.shipped("db/prebuilt") / "models" / "serving" / "fused_experts.json"


@cache
def shipped_ranking() -> ExpertRanking:
    return load(card_path())


def save(path: Path, trees: Trees, about: dict[str, Any]) -> None:
    """Write a ranking model: a JSON file that describes it (the card), and a file of decision trees."""
    content = pack({}, {"trees": compressed(trees)})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path.with_suffix(".trees"), content, shared=True)
    card = {"format": FORMAT, **about, "sha256": hashlib.sha256(content).hexdigest()}
    write_whole(path, (json.dumps(card, indent=1, sort_keys=True) + "\n").encode(), shared=True)


def load(path: Path) -> ExpertRanking:
    """Read a ranking model from its card and the file of decision trees beside it.

    Raise `UsageError` if the files are missing, damaged or have another format version.
    """
    try:
        card, content = json.loads(read_input(path, _MOST_BYTES)), read_input(path.with_suffix(".trees"), _MOST_BYTES)
        if card["format"] != FORMAT or hashlib.sha256(content).hexdigest() != card["sha256"]:
            raise ValueError("another format, or trees that do not match the card")
        trees = CompactTrees(*decompressed(unpack(content, intact=True)[1]["trees"]))
        level, factor, pair_spread = (float(card[name]) for name in ("level", "factor", "pair_spread"))
        return ExpertRanking(trees, level, factor, pair_spread, tuple(map(str, card["gpus"])))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is not a usable model of experts ({error!s:.80})") from None


def configs_array(configs: Sequence[Tiles]) -> Array:
    """Return configs as an array (C, 6) in the order of `TUNABLES`."""
    return np.array([[config.get(name, {"num_warps": 4, "num_stages": 3}.get(name, 1)) for name in TUNABLES]
                     for config in configs])  # fmt: skip
