"""Training data: measured costs of configs, their features, and predictions of the analytical model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from kernrec.errors import UsageError
from kernrec.model.learn import features
from kernrec.model.learn.features import ModelInputs, row_kind
from kernrec.model.learn.model import HEADS, least_seconds

Array = np.ndarray


@dataclass(frozen=True)
class RowGroup:
    """Measurements (rows) of N configs of one kernel on one GPU and problem."""

    gpu: str
    problem: str
    op: str
    kernel: str
    kernel_hash: str
    inputs: ModelInputs
    """Inputs of the features, including estimates of the analytical model."""
    latency_s: Array
    """Measured latency of each config in seconds."""
    energy_j: Array
    """Measured energy of each config in joules, or NaN."""
    beneath: Mapping[str, Array] = field(default_factory=dict)
    """Corrections that an existing model of the kernel adds to log predictions: arrays of shape (N,), keyed by head. A
    new model learns the remaining errors."""
    trust: Array | None = None
    """Relative weight of each row, or None if all rows are trusted."""

    @property
    def dims(self) -> str:
        # The key of a problem is `<op>[<dims>]<dtype>,<layout>`.
        return self.problem.partition("]")[0]

    @property
    def dtype(self) -> str:
        return self.problem.partition("]")[2].partition(",")[0]

    @property
    def row_kind(self) -> str:
        """Return the alignment of matrix rows, such as `rows of 16 bytes`, or an empty string if unknown."""
        return row_kind(self.inputs.tunables)

    def __len__(self) -> int:
        return len(self.latency_s)


@dataclass(frozen=True)
class Dataset:
    """Measured rows of several groups, joined to N rows. The constructor raises `UsageError` if there is no group."""

    groups: tuple[RowGroup, ...]
    parts: tuple[str, ...] = features.GROUPS

    def __post_init__(self) -> None:
        if not self.groups:
            raise UsageError("no measurement to learn from: measure (`kernrec collect`) or import a database first")

    def __len__(self) -> int:
        return sum(map(len, self.groups))

    @cached_property
    def tunables(self) -> tuple[str, ...]:
        """Return the tunables of all kernels, sorted."""
        return tuple(sorted({name for group in self.groups for name in group.inputs.tunables}))

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return features.names(self.tunables, self.parts)

    @cached_property
    def matrix(self) -> Array:
        """Return the features as a float32 array of shape (N, F)."""
        return np.concatenate([features.matrix(group.inputs, self.columns) for group in self.groups])

    def numbers(self, *fields: str) -> Array:
        """Number the distinct combinations of `fields`, such as GPU and problem. Return each row's number, (N,)."""
        keys = [tuple(getattr(group, field) for field in fields) for group in self.groups]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        return np.repeat([numbers[key] for key in keys], [len(group) for group in self.groups])

    def _joined(self, values_of: Callable[[RowGroup], Array]) -> Array:
        return np.concatenate([values_of(group) for group in self.groups])

    @cached_property
    def latency_s(self) -> Array:
        """Return the measured latency of each row in seconds."""
        return self._joined(lambda group: group.latency_s)

    @cached_property
    def energy_j(self) -> Array:
        """Return the measured energy of each row in joules, or NaN."""
        return self._joined(lambda group: group.energy_j)

    @cached_property
    def trust(self) -> Array:
        """Return the relative weight of each row."""
        return self._joined(lambda group: np.ones(len(group)) if group.trust is None else group.trust)

    @cached_property
    def analytical(self) -> dict[str, Array]:
        """Return the predictions that a new model corrects: arrays `latency` (s) and `power` (W) of shape (N,)."""
        latency, power = self._joined(lambda group: group.inputs.latency_s), self._joined(lambda g: g.inputs.power_w)
        return {"latency": latency * np.exp(self._beneath("latency")), "power": power * np.exp(self._beneath("power"))}

    def _beneath(self, head: str) -> Array:
        return self._joined(lambda group: group.beneath.get(head, np.zeros(len(group))))

    @cached_property
    def least(self) -> Array:
        """Return log(minimum possible latency / latency in `analytical`) of each row."""
        ratio = self._joined(lambda group: least_seconds(group.inputs) / group.inputs.latency_s)
        return np.asarray(np.log(ratio) - self._beneath("latency"))

    @cached_property
    def residual(self) -> dict[str, Array]:
        """Return log(measured cost / cost in `analytical`), keyed like `analytical`. NaN marks unmeasured rows."""
        measured = {"latency": self.latency_s, "power": self.energy_j / self.latency_s}
        return {head: np.log(measured[head] / self.analytical[head]) for head in HEADS}

    @cached_property
    def held_out(self) -> tuple[str, Array]:
        """Return the kind of group that cross-validation holds out, and each row's group number.

        The kind is the first of these that applies:

        - `problem`, if there are at least 3 problems. Problems that differ only in dtype or layout count as one.
        - `GPU` or `kernel`, if there are at least two GPUs or kernels. The kind with more groups applies.
        - `tunable`: rows with the same value of one tunable. The tunable with the most distinct values is used.
        """
        by_problem = self.numbers("dims", "op")
        if by_problem.max() >= 2:
            return "problem", by_problem
        by_gpu, by_kernel = self.numbers("gpu"), self.numbers("kernel", "kernel_hash")
        if max(by_gpu.max(), by_kernel.max()) >= 1:
            return ("GPU", by_gpu) if by_gpu.max() >= by_kernel.max() else ("kernel", by_kernel)
        columns = [[group.inputs.tunables[name] for group in self.groups] for name in self.tunables]
        varied = [np.unique(np.concatenate(column), return_inverse=True)[1] for column in columns]
        widest = max(varied, key=lambda numbers: int(numbers.max()), default=np.zeros(len(self), np.int64))
        return "tunable", widest
