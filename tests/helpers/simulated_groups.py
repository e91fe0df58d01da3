"""Simulated training data: random model inputs, and measurements distorted by a made-up device."""

from collections.abc import Callable

import numpy as np

from kernrec.gpu import find_gpu
from kernrec.model.analytical.demand import PIPES
from kernrec.model.learn.features import ModelInputs
from kernrec.training.dataset import RowGroup


def simulated_inputs(count: int, seed: int, gpu: str = "rtx4090") -> ModelInputs:
    draw = np.random.default_rng(seed)
    latency = np.exp(draw.normal(-9.0, 0.5, count))
    pipes = draw.uniform(0.1, 1.0, (len(PIPES), count)) * latency
    core, dram = latency * draw.uniform(0.3, 1.0, count), latency * draw.uniform(0.1, 0.9, count)
    power = draw.uniform(100.0, 300.0, count)
    flops, moved = np.exp(draw.uniform(20, 26)), np.exp(draw.uniform(12, 17))  # DRAM takes less than the latency
    tunables = {"tile": draw.choice([16, 32, 64], count), "stages": draw.choice([1, 2, 3], count)}
    return ModelInputs.of(
        find_gpu(gpu), tunables, count, flops=flops, bytes=moved, latency_s=latency, power_w=power,
        threads=draw.choice([64, 128, 256], count).astype(float), blocks=draw.integers(10, 5000, count).astype(float),
        resident=draw.integers(1, 8, count).astype(float), registers=draw.integers(32, 200, count),
        shared_bytes=draw.integers(0, 40000, count).astype(float), pipe_s=pipes, busy_s=pipes.max(axis=0),
        wait_s=latency * 0.2, l2_s=latency * 0.1, dram_s=dram, core_s=core, fixed_s=np.full(count, 1e-6),
        core_j=latency * power * draw.uniform(0.2, 0.6, count), dram_j=latency * power * draw.uniform(0.1, 0.3, count),
    )  # fmt: skip


def by_stages(inputs: ModelInputs) -> np.ndarray:
    """Return the factor of a device on which each stage after the first adds 20 %, unknown to the analytical model."""
    return 1.4 * 1.2 ** (inputs.tunables["stages"] - 1.0)


def simulated_groups(
    problems: int,
    rows: int = 30,
    factor: Callable[[ModelInputs], np.ndarray] = by_stages,
    noise: float = 0.03,
    gpu: str = "rtx4090",
    seed: int = 0,
) -> list[RowGroup]:
    """Return groups of one kernel on one GPU. Measured latency is predicted latency times `factor` times noise."""
    draw = np.random.default_rng(seed)
    groups = []
    for number in range(problems):
        inputs = simulated_inputs(rows, seed * 1000 + number, gpu)
        latency = inputs.latency_s * factor(inputs) * np.exp(draw.normal(0.0, noise, rows))
        energy = latency * inputs.power_w * 0.8 * np.exp(draw.normal(0.0, noise, rows))
        groups.append(RowGroup(gpu, f"problem {number}", "matmul", "simulated", "0" * 16, inputs, latency, energy))
    return groups
