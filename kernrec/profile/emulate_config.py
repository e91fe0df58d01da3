"""A config run on the CPU: all its launches in the emulator, over tensors in the host's memory."""

from collections.abc import Mapping

import numpy as np

from kernrec.kernel import Config, Kernel
from kernrec.kernel.binding import bind_launches, workspaces
from kernrec.op import Problem
from kernrec.profile.probe_profile import kernel_launch
from kernrec.profile.tensor_values import ELEMENTS
from kernrec.ptx import Module, emulate

_ODD = 0x5B
"""What integers of workspaces begin as."""


def emulate_config(
    kernel: Kernel,
    config: Config,
    problem: Problem,
    code: tuple[int, Module],
    tensors: Mapping[str, np.ndarray],
    check_races: bool = True,
    budget: int = 20_000_000,
) -> None:
    """Runs a config on a problem; the outputs among `tensors` are changed in place.

    Args:
        kernel: the kernel.
        config: the config.
        problem: the problem.
        code: the architecture (86 for sm_86), and the PTX that the config was compiled to for it.
        tensors: inputs and outputs by name, in their memory format (bf16 as its bits).
        check_races: whether a data race in shared memory is an error.
        budget: PTX instructions that a batch of blocks may execute.

    Raises:
        EmulationError: an access out of bounds, a race, a deadlock, an unsupported instruction.
    """
    sm, module = code
    scratch = {}
    for space in workspaces(kernel, config, problem, sm):
        scratch[space.name] = np.zeros(space.elements, ELEMENTS[space.dtype])
        kind = scratch[space.name].dtype.kind
        scratch[space.name].fill(np.nan if kind == "f" else _ODD)  # so that nothing can count on what was there
    for launch in bind_launches(kernel, config, problem, sm):
        emulated = kernel_launch(launch, {**tensors, **scratch})
        emulate(module, emulated, count=False, check_races=check_races, budget=budget)
