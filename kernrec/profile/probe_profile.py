"""The static profile of one code of a kernel: compile it, emulate its probes, fit its counts.

A *code* is what the compiler sees: the kernel's source with its compile-time tunables, dtype and layout fixed.
Configs that differ in launch-time tunables only share one, and so does their profile.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kernrec.compile.compiled import Compiled, Resources
from kernrec.errors import KernrecError
from kernrec.kernel.binding import BoundLaunch, Pointer, Scratch, bind_launches, probe_problems, workspaces
from kernrec.kernel.spec import Config, Kernel
from kernrec.op import Problem
from kernrec.profile.fit_profile import Profile, ProfileError, fit_profile
from kernrec.profile.tensor_values import ELEMENTS
from kernrec.ptx import KernelLaunch, Module, emulate, parse
from kernrec.store import ProfileRow

Runs = dict[tuple[object, ...], dict[str, int]]
"""Counts of launches that were emulated, by code, geometry, arguments and sizes of buffers."""


@dataclass(frozen=True)
class LaunchProfile:
    """What is known of one launch of a code on one architecture without running it."""

    launch: int
    entry: str
    resources: Resources
    profile: Profile
    ptx_hash: str
    compiler: str

    def row(self, kernel: Kernel, sm: int, variant_key: str, variant: Mapping[str, int | str]) -> ProfileRow:
        """The row of the database that holds it; `variant` is what `variant_key` stands for."""
        resources = self.resources
        return ProfileRow(
            kernel=kernel.name,
            kernel_hash=kernel.hash,
            variant_key=variant_key,
            sm=sm,
            launch=self.launch,
            entry=self.entry,
            variant=variant,
            registers=resources.registers,
            spill_bytes=resources.spill_store_bytes + resources.spill_load_bytes,
            stack_bytes=resources.stack_bytes,
            static_smem_bytes=resources.static_smem_bytes,
            ptx_hash=self.ptx_hash,
            compiler=self.compiler,
            metrics=self.profile.metrics,
            terms=self.profile.terms,
            counts=self.profile.coefficients,
        )


def profile_variant(
    kernel: Kernel,
    configs: Sequence[Config],
    dtype: str,
    layout: str,
    sm: int,
    compiled: Compiled,
    cache: Runs | None = None,
) -> list[LaunchProfile]:
    """Profiles of every launch of a compiled code.

    configs: the configs that share the code; each launch is probed with the first that performs it.
    cache: counts by what was run, shared between architectures and layouts whose PTX is the same.
    Raises `KernrecError` naming kernel, config and launch when a probe cannot be run or fitted.
    """
    cache = {} if cache is None else cache
    # Header lines (compiler, .target) differ between architectures whose code is the same.
    ptx_hash = hashlib.sha256(compiled.ptx.partition(".address_size")[2].encode()).hexdigest()[:16]
    code = _Code(compiled.ptx, ptx_hash, cache)
    profiles = []
    for index, launch in enumerate(kernel.launches):
        fitted = _fit(kernel, index, configs, dtype, layout, sm, code)
        if fitted is None:
            continue  # no config of this code performs the launch
        resources = compiled.resources[launch.entry]
        profiles.append(LaunchProfile(index, launch.entry, resources, fitted, ptx_hash, compiled.compiler))
    return profiles


def profile_architectures(
    kernel: Kernel, codes: Sequence[tuple[Mapping[int, Sequence[Config]], str, str]], compiled: Mapping[int, Compiled]
) -> list[list[tuple[int, LaunchProfile]]]:
    """For each of the codes that compile alike, (architecture, profile) of every launch; what runs alike runs once.

    codes: configs by architecture, dtype, layout. For worker processes: nothing here needs the database.
    """
    cache: Runs = {}
    return [
        [
            (sm, profile)
            for sm in sorted(configs.keys() & compiled.keys())
            for profile in profile_variant(kernel, configs[sm], dtype, layout, sm, compiled[sm], cache)
        ]
        for configs, dtype, layout in codes
    ]


def emulate_config(
    kernel: Kernel, config: Config, problem: Problem, sm: int, module: Module, tensors: Mapping[str, np.ndarray]
) -> list[tuple[BoundLaunch, dict[str, int]]]:
    """Runs all launches of a config on the CPU; outputs in `tensors` are written in place. Launches with counts."""
    scratch = workspaces(kernel, config, problem, sm)
    buffers = {**tensors, **{s.name: _scratch(s) for s in scratch}}
    return [
        (bound, emulate(module, kernel_launch(bound, buffers))) for bound in bind_launches(kernel, config, problem, sm)
    ]


class _Code:
    """Compiled code that counts what probes execute, each different one once; it is parsed if that takes any run."""

    def __init__(self, ptx: str, ptx_hash: str, runs: Runs) -> None:
        self._ptx = ptx
        self._hash = ptx_hash
        self._runs = runs

    @cached_property
    def module(self) -> Module:
        return parse(self._ptx)

    def counts(self, bound: BoundLaunch, sizes: Mapping[str, tuple[str, int]]) -> dict[str, int]:
        """Counts of a launch over buffers of zeros; sizes: dtype and elements of each."""
        key = (
            *(self._hash, bound.entry, bound.grid, bound.block, bound.shared_bytes, bound.arguments),
            tuple(sizes.items()),
        )
        if key not in self._runs:
            buffers = {name: _zeros(dtype, elements) for name, (dtype, elements) in sizes.items()}
            self._runs[key] = emulate(self.module, kernel_launch(bound, buffers))
        return self._runs[key]


def _fit(
    kernel: Kernel, index: int, configs: Sequence[Config], dtype: str, layout: str, sm: int, code: _Code
) -> Profile | None:
    """Emulates probes until one more than the unknowns has been seen, then fits; None without a config to probe."""
    terms: list[dict[str, int]] = []
    counts: list[dict[str, int]] = []
    unknowns = 1 + len(kernel.launches[index].trips)
    for config, problem, bound in _probes(kernel, index, configs, dtype, layout, sm):
        sizes = {name: (t.dtype, t.elements) for name, t in problem.tensors.items()}
        sizes |= {s.name: (s.dtype, s.elements) for s in workspaces(kernel, config, problem, sm)}
        terms.append({"block": bound.blocks, **bound.trips})
        counts.append(code.counts(bound, sizes))
        if len(terms) > unknowns and _determined(terms):
            break
    if not terms:
        return None
    try:
        return fit_profile(terms, counts)
    except ProfileError as error:
        raise KernrecError(
            f"kernel {kernel.name}, {kernel.launches[index].entry}, {dict(configs[0])}: {error}"
        ) from error


def _probes(
    kernel: Kernel, index: int, configs: Sequence[Config], dtype: str, layout: str, sm: int
) -> Iterator[tuple[Config, Problem, BoundLaunch]]:
    for config in configs:
        for problem in probe_problems(kernel, index, config, dtype, layout, sm):
            for bound in bind_launches(kernel, config, problem, sm):
                if bound.index == index:
                    yield config, problem, bound


def _determined(terms: Sequence[Mapping[str, int]]) -> bool:
    design = np.array([list(probe.values()) for probe in terms], dtype=np.float64)
    return int(np.linalg.matrix_rank(design)) == design.shape[1]


def kernel_launch(
    bound: BoundLaunch,
    buffers: Mapping[str, np.ndarray],
    constants: Mapping[str, np.ndarray] | None = None,
    entry: str | None = None,
) -> KernelLaunch:
    """A launch as the emulator takes it; `entry`: its kernel's name in the PTX where C++ mangled it."""
    arguments = emulator_arguments(bound)
    return KernelLaunch(
        entry or bound.entry, bound.grid, bound.block, arguments, buffers, bound.shared_bytes, constants or {}
    )


def emulator_arguments(bound: BoundLaunch) -> list[Any]:
    """The arguments of a launch as the emulator takes them."""
    return [
        (0 if a.null else a.name) if isinstance(a, Pointer) else np.dtype(ELEMENTS[a.ctype]).type(a.value)
        for a in bound.arguments
    ]


def _zeros(dtype: str, elements: int) -> np.ndarray:
    return np.zeros(elements, dtype=ELEMENTS[dtype])


def _scratch(scratch: Scratch) -> np.ndarray:
    return _zeros(scratch.dtype, scratch.elements)
