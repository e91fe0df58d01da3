"""Measurements as the learner sees them: features, the prior, what the device did, and which rows go together."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kernrec.errors import UsageError
from kernrec.model.learn import features
from kernrec.model.learn.features import ModelInputs
from kernrec.model.learn.model import HEADS

Array = np.ndarray


@dataclass(frozen=True)
class RowGroup:
    """The measured configs of one kernel on one GPU and problem; arrays (N,), energy NaN where nobody measured it."""

    gpu: str
    problem: str
    op: str
    kernel: str
    kernel_hash: str
    inputs: ModelInputs
    latency_s: Array
    energy_j: Array

    def __len__(self) -> int:
        return len(self.latency_s)


@dataclass(frozen=True)
class Dataset:
    """Groups one after the other; arrays (N,) over all rows."""

    groups: tuple[RowGroup, ...]
    parts: tuple[str, ...] = features.GROUPS

    def __post_init__(self) -> None:
        if not self.groups:
            raise UsageError("no measurement to learn from: measure (`kernrec collect`) or import a database first")

    def __len__(self) -> int:
        return sum(map(len, self.groups))

    @cached_property
    def tunables(self) -> tuple[str, ...]:
        return tuple(sorted({name for group in self.groups for name in group.inputs.tunables}))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The features' names."""
        return features.names(self.tunables, self.parts)

    @cached_property
    def matrix(self) -> Array:
        """Features (N, F), float32."""
        return np.concatenate([features.matrix(group.inputs, self.columns) for group in self.groups])

    def numbers(self, *fields: str) -> Array:
        """One number a row for each distinct value of these fields of its group: what is held out together."""
        keys = [tuple(getattr(group, field) for field in fields) for group in self.groups]
        known = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        return np.repeat([known[key] for key in keys], [len(group) for group in self.groups])

    @cached_property
    def latency_s(self) -> Array:
        return np.concatenate([group.latency_s for group in self.groups])

    @cached_property
    def energy_j(self) -> Array:
        return np.concatenate([group.energy_j for group in self.groups])

    @cached_property
    def prior(self) -> dict[str, Array]:
        """The prior's latency (s) and power (W)."""
        return {
            "latency": np.concatenate([group.inputs.latency_s for group in self.groups]),
            "power": np.concatenate([group.inputs.power_w for group in self.groups]),
        }

    @cached_property
    def residual(self) -> dict[str, Array]:
        """log(measured / prior) for each head; NaN where it was not measured."""
        measured = {"latency": self.latency_s, "power": self.energy_j / self.latency_s}
        return {head: np.log(measured[head] / self.prior[head]) for head in HEADS}

    @cached_property
    def held_out(self) -> tuple[str, Array]:
        """What is exchangeable here, and its number for each row.

        Problems where there are at least 3; else GPUs or kernels, whichever has more; else, of one kernel on one GPU,
        the configs that share the value of its most varied tunable.
        """
        by_problem = self.numbers("problem", "op")
        if by_problem.max() >= 2:
            return "problem", by_problem
        by_gpu, by_kernel = self.numbers("gpu"), self.numbers("kernel", "kernel_hash")
        if max(by_gpu.max(), by_kernel.max()) >= 1:
            return ("GPU", by_gpu) if by_gpu.max() >= by_kernel.max() else ("kernel", by_kernel)
        columns = [[group.inputs.tunables[name] for group in self.groups] for name in self.tunables]
        varied = [np.unique(np.concatenate(column), return_inverse=True)[1] for column in columns]
        widest = max(varied, key=lambda found: int(found.max()), default=np.zeros(len(self), np.int64))
        return "tunable", widest
