"""What the driver and the cards of a cluster tell each other: JSON texts, of plain values alone.

A card speaks, and the driver replies; nothing else is under way between the two. A card's message may hold

    hello      who it is: `CardIdentity` as a mapping, with `left`: records that an earlier run left in its journal
    records    journal records since its last message: rows, and how blocks ended
    step       (measurements made, of how many) in the present tier
    note       a line for the user
    left_job   it has ended its part of the job; what that came to, and how many seconds it took
    want       `job`: what it does next; `configs`: which of `proposed` it may measure, `count` of them
    ended      it ends; the text says why, and is empty where it was told to; `node`: the name of its machine

and the driver's reply, depending on that,

    refused    why the card is not used
    problem, phase, share, earlier    a job (`problem_as_data`), and rows that are known of it
    granted, left    configs that are the card's own; how many nobody measures yet
    news, taken    (config, latency or null) that others measured, configs that others measure now
    lost       configs that are known of a card that was lost, and have to be measured again
    done       nothing is left to do
    stop       the card ends at once; what it sent with its message was not kept
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kernrec.errors import KernrecError
from kernrec.kernel import Kernel, find_kernel, kernel_names
from kernrec.measure.campaign.plan import EnergyRule, PlannedProblem, Task, tunable_columns
from kernrec.model.search.expected_improvement import ExpectedImprovement
from kernrec.op import Problem
from kernrec.store.measurement import MeasuredDevice

Message = dict[str, Any]


def encode(message: Mapping[str, Any]) -> str:
    """A message as text."""
    return json.dumps(message, separators=(",", ":"))


def decode(text: str) -> Message:
    """The message of a text. Raises `KernrecError` for a text that is none."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise KernrecError("a machine of the cluster sent what is no message of kernrec")
    return message


Limits = tuple[float | None, float | None, float | None, bool]
"""Power limit in W, locked core and memory clocks in Hz, whether the card is divided (MIG)."""


def limits_of(device: MeasuredDevice) -> Limits:
    """How a card was set: measurements at other limits and clocks are of another setting."""
    return device.power_limit_w, device.locked_sm_clock_hz, device.locked_memory_clock_hz, bool(device.mig)


@dataclass(frozen=True)
class CardIdentity:
    """A card of a cluster, and the software beside it."""

    gpu: str
    """Name in the catalog."""
    node: str
    """Name of its machine."""
    uuid_hash: str | None
    """None for a recording."""
    sources: str
    """Hash of kernrec's own sources there."""
    driver: str | None
    compiler: str | None
    """Name and version; None for a recording, for which nothing is compiled."""
    measures_energy: bool = True
    limits: Limits = (None, None, None, False)
    """What its rows state of how it is set, as `limits_of`."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, of which `from_dict` makes it again."""
        return asdict(self) | {"limits": list(self.limits)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "CardIdentity":
        """The card of what `as_dict` gave."""
        return cls(**{**values, "limits": tuple(values["limits"])})


def problem_as_data(planned: PlannedProblem, tasks: Sequence[int] | None = None) -> dict[str, Any]:
    """A planned problem as plain values.

    Args:
        planned: the problem.
        tasks: the tasks to name, by their positions; None: all.
    """
    chosen = planned.tasks if tasks is None else [planned.tasks[i] for i in tasks]
    kernels = list(dict.fromkeys((task.kernel_name, task.kernel_hash, tuple(task.config)) for task in chosen))
    place = {kernel: i for i, kernel in enumerate(kernels)}
    predicted = planned.search.space.predicted_s if isinstance(planned.search, ExpectedImprovement) else None
    if predicted is not None and tasks is not None:
        predicted = predicted[list(tasks)]
    return {
        "name": planned.name,
        "problem": planned.problem.key,
        "kernels": [[name, digest, list(tunables)] for name, digest, tunables in kernels],
        "tasks": [
            [place[task.kernel_name, task.kernel_hash, tuple(task.config)], *task.config.values()] for task in chosen
        ],
        "probability": planned.probability,
        "energy": planned.energy.name,
        "searched": isinstance(planned.search, ExpectedImprovement),
        "predicted_s": None if predicted is None else [none_for_nan(value) for value in predicted],
    }


def problem_from_data(
    data: Mapping[str, Any], problem_of: Callable[[str], Problem], compiles: bool, seed: int
) -> tuple[PlannedProblem, ExpectedImprovement | None]:
    """(the planned problem of `problem_as_data`, what orders its configs; None where they were drawn).

    Args:
        data: the values.
        problem_of: a problem by its key.
        compiles: whether the kernels are compiled here, not recorded.
        seed: of the search.

    Raises:
        KernrecError: a kernel is another one here.
    """
    problem = problem_of(data["problem"])
    kernels = [_kernel(name, digest) if compiles else None for name, digest, _ in data["kernels"]]
    tasks = []
    for which, *values in data["tasks"]:
        name, digest, tunables = data["kernels"][which]
        tasks.append(Task(name, digest, dict(zip(tunables, values, strict=True)), problem, kernels[which]))
    energy = EnergyRule[data["energy"]]
    planned = PlannedProblem(data["name"], problem, tuple(tasks), probability=data["probability"], energy=energy)
    if not data["searched"]:
        return planned, None
    predicted = data["predicted_s"]
    if predicted is not None:
        predicted = np.array([nan_for_none(value) for value in predicted])
    return planned, ExpectedImprovement(tunable_columns(tasks), predicted, seed)


def _kernel(name: str, digest: str) -> Kernel:
    if name in kernel_names() and (kernel := find_kernel(name)).hash == digest:
        return kernel
    raise KernrecError(f"kernel {name} has another source here")


def none_for_nan(value: float) -> float | None:
    """A number as JSON has it."""
    return None if math.isnan(value) else float(value)


def nan_for_none(value: float | None) -> float:
    """The number that `none_for_nan` made a value of JSON."""
    return math.nan if value is None else value
