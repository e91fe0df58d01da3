"""The static profile of one compiled variant of a kernel: compile it, emulate its probes, fit its counts.

A variant is what the compiler sees: the kernel's source with its compile-time tunables, dtype and layout fixed.
Configs that differ in launch-time tunables only share a variant, and so its profile.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kernrec.compile.compiled import Compiled, Resources
from kernrec.errors import KernrecError
from kernrec.kernel.binding import BoundLaunch, Pointer, Scratch, bind_launches, probe_problems, workspaces
from kernrec.kernel.image_layout import ImageHandle, ImageLayout
from kernrec.kernel.spec import Config, Kernel
from kernrec.kernel.tensor_map import MapHandle
from kernrec.op import Problem
from kernrec.profile.fit_profile import Profile, ProfileError, fit_profile
from kernrec.profile.tensor_values import ELEMENTS
from kernrec.ptx import Image, KernelLaunch, Module, Sampler, TensorMap, emulate, parse
from kernrec.store import ProfileRow

ProbeCounts = dict[tuple[object, ...], dict[str, int]]
"""Counts of launches that were emulated, by PTX, grid and block, arguments and sizes of buffers."""


@dataclass(frozen=True)
class Variant:
    """One variant of a kernel, and configs that run it."""

    key: str
    """`Kernel.variant_key`."""

    dtype: str
    """Data type of the problem."""

    layout: str
    """Layout of the problem."""

    fixed: Mapping[str, int | str]
    """Values of the compile-time tunables, with `dtype` and `layout`."""

    configs: Mapping[int, Sequence[Config]]
    """By architecture: configs that run the variant and differ in launch-time tunables only; enough of them to probe
    every launch."""


@dataclass(frozen=True)
class LaunchProfile:
    """The static profile of one launch of a variant, or of a config, on one architecture."""

    launch: int
    """Which of the kernel's launches."""

    entry: str
    """Name of the launched kernel in its source."""

    resources: Resources
    """What the assembler gives the kernel."""

    profile: Profile
    """Counts as a function of blocks and trips."""

    ptx_hash: str
    """`Compiled.ptx_hash`."""

    compiler: str
    """The compiler, such as `nvrtc 13.5`."""

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
    kernel: Kernel, configs: Sequence[Config], dtype: str, layout: str, sm: int, compiled: Compiled
) -> list[LaunchProfile]:
    """Profiles of every launch of a compiled variant.

    Args:
        kernel: the kernel.
        configs: the configs that share the variant; each launch is probed with the first that performs it.
        dtype, layout: of the variant.
        sm: compute capability that it was compiled for.
        compiled: the variant.

    Raises:
        KernrecError: a probe cannot be run, or the profile cannot be fitted; the message names kernel, config and
            launch.
    """
    return _profile(_Probes(kernel, configs, dtype, layout, sm), compiled, {})


def profile_architectures(
    kernel: Kernel, variants: Sequence[Variant], compiled: Mapping[int, Compiled]
) -> list[list[tuple[int, LaunchProfile]]]:
    """For each of some variants with the same source after preprocessing: (architecture, profile) of every launch.

    Launches whose PTX and arguments are the same are emulated once. For worker processes: nothing here needs the
    database.

    Args:
        kernel: the kernel.
        variants: those that `compiled` is the code of.
        compiled: by architecture.
    """
    counts: ProbeCounts = {}
    return [
        [
            (sm, profile)
            for sm in sorted(variant.configs.keys() & compiled.keys())
            for profile in _profile(
                _Probes(kernel, variant.configs[sm], variant.dtype, variant.layout, sm), compiled[sm], counts
            )
        ]
        for variant in variants
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


@dataclass(frozen=True)
class _Probes:
    """The small problems that a variant is emulated on."""

    kernel: Kernel
    """The kernel."""

    configs: Sequence[Config]
    """Configs that run the variant."""

    dtype: str
    """Data type of the problems."""

    layout: str
    """Layout of the problems."""

    sm: int
    """Compute capability."""

    def of_launch(self, index: int) -> Iterator[tuple[Config, Problem, BoundLaunch]]:
        """Configs, problems and bound launches that perform the kernel's launch number `index`."""
        for config in self.configs:
            for problem in probe_problems(self.kernel, index, config, self.dtype, self.layout, self.sm):
                for bound in bind_launches(self.kernel, config, problem, self.sm):
                    if bound.index == index:
                        yield config, problem, bound


class _ProbeEmulator:
    """Emulates launches of compiled code, each different one once; the PTX is parsed at the first that is new."""

    def __init__(self, compiled: Compiled, counts: ProbeCounts) -> None:
        self._ptx = compiled.ptx
        self._hash = compiled.ptx_hash
        self._counts = counts

    @cached_property
    def module(self) -> Module:
        return parse(self._ptx)

    def counts(self, bound: BoundLaunch, sizes: Mapping[str, tuple[str, int]]) -> dict[str, int]:
        """Counts of a launch over buffers of zeros; `sizes`: dtype and elements of each."""
        key = (
            *(self._hash, bound.entry, bound.grid, bound.block, bound.shared_bytes, bound.arguments),
            tuple(sizes.items()),
        )
        if key not in self._counts:
            buffers = {name: _zeros(dtype, elements) for name, (dtype, elements) in sizes.items()}
            self._counts[key] = emulate(self.module, kernel_launch(bound, buffers))
        return self._counts[key]


def _profile(probes: _Probes, compiled: Compiled, counts: ProbeCounts) -> list[LaunchProfile]:
    """Profiles of every launch of a compiled variant; `counts` has those of launches emulated before."""
    emulator = _ProbeEmulator(compiled, counts)
    profiles = []
    for index, launch in enumerate(probes.kernel.launches):
        fitted = _fit(probes, index, emulator)
        if fitted is None:
            continue  # no config of this variant performs the launch
        resources = compiled.resources[launch.entry]
        profiles.append(LaunchProfile(index, launch.entry, resources, fitted, compiled.ptx_hash, compiled.compiler))
    return profiles


def _fit(probes: _Probes, index: int, emulator: _ProbeEmulator) -> Profile | None:
    """Emulates one probe more than there are unknowns, then fits; None where no config performs the launch."""
    kernel = probes.kernel
    terms: list[dict[str, int]] = []
    counts: list[dict[str, int]] = []
    unknowns = 1 + len(kernel.launches[index].trips)
    for config, problem, bound in probes.of_launch(index):
        sizes = {name: (t.dtype, t.elements) for name, t in problem.tensors.items()}
        sizes |= {s.name: (s.dtype, s.elements) for s in workspaces(kernel, config, problem, probes.sm)}
        terms.append({"block": bound.blocks, **bound.trips})
        counts.append(emulator.counts(bound, sizes))
        if len(terms) > unknowns and _determine_coefficients(terms):
            break
    if not terms:
        return None
    try:
        return fit_profile(terms, counts)
    except ProfileError as error:
        raise KernrecError(
            f"kernel {kernel.name}, {kernel.launches[index].entry}, {dict(probes.configs[0])}: {error}"
        ) from error


def _determine_coefficients(terms: Sequence[Mapping[str, int]]) -> bool:
    """Whether the probes' terms are independent."""
    design = np.array([list(probe.values()) for probe in terms], dtype=np.float64)
    return int(np.linalg.matrix_rank(design)) == design.shape[1]


def kernel_launch(
    bound: BoundLaunch,
    buffers: Mapping[str, np.ndarray],
    constants: Mapping[str, np.ndarray] | None = None,
    entry: str | None = None,
) -> KernelLaunch:
    """A launch as the emulator takes it; `entry`: its kernel's name in the PTX, where C++ mangled it."""
    images = {
        f"texture {a.name}": image_of(a.name, a.dtype, a.extents, a.layers, a.layout)
        for a in bound.arguments
        if isinstance(a, ImageHandle)
    }
    return KernelLaunch(
        entry or bound.entry,
        bound.grid,
        bound.block,
        emulator_arguments(bound),
        buffers,
        bound.shared_bytes,
        constants or {},
        images,
    )


def image_of(name: str, dtype: str, extents: tuple[int, ...], layers: int, layout: ImageLayout) -> Image:
    """The texture or surface that a tensor is seen as.

    Raises:
        UsageError: an image that cannot be.
    """
    sampler = Sampler(layout.filter, layout.address, layout.normalized, layout.unit_range)
    return Image(name, extents, dtype, layout.channels, layers, sampler=sampler)


MOVED_AS = {"f8e4m3": "u8", "f8e5m2": "u8", "i8": "u8", "i16": "u16", "i32": "s32", "i64": "s64", "tf32": "f32"}
"""Types of the emulator's tensor maps for dtypes of another name."""


def emulator_arguments(bound: BoundLaunch) -> list[Any]:
    """The arguments of a launch as the emulator takes them."""
    given: list[Any] = []
    for argument in bound.arguments:
        if isinstance(argument, Pointer):
            given.append(0 if argument.null else argument.name)
        elif isinstance(argument, ImageHandle):
            given.append(f"texture {argument.name}")
        elif isinstance(argument, MapHandle):
            kind = MOVED_AS.get(argument.dtype, argument.dtype)
            given.append(
                TensorMap(argument.name, kind, argument.extents, argument.strides, argument.box, argument.swizzle)
            )
        else:
            given.append(np.dtype(ELEMENTS[argument.ctype]).type(argument.value))
    return given


def _zeros(dtype: str, elements: int) -> np.ndarray:
    return np.zeros(elements, dtype=ELEMENTS[dtype])


def _scratch(scratch: Scratch) -> np.ndarray:
    return _zeros(scratch.dtype, scratch.elements)
