"""The static profile of one compiled variant of a kernel: compile it, emulate its probes, fit its counts.

A variant is what the compiler sees: the kernel's source with its compile-time tunables, dtype and layout fixed.
Configs that differ in launch-time tunables only share a variant, and so its profile.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kernrec.compile.compiled import Compiled
from kernrec.errors import KernrecError
from kernrec.kernel.binding import Probe, probe_launches
from kernrec.kernel.spec import Config, Kernel
from kernrec.profile.emulated_launch import kernel_launch
from kernrec.profile.fit_profile import Profile, ProfileError, determined, fit_profile
from kernrec.profile.launch_profile import LaunchProfile
from kernrec.profile.tensor_values import ELEMENTS
from kernrec.ptx import Module, emulate, parse
from kernrec.util.light_dataclass import dataclass

ProbeCounts = dict[tuple[object, ...], dict[str, int]]
"""Counts of launches that were emulated, by PTX, grid and block, arguments and sizes of buffers."""


@dataclass(frozen=True)
class Variant:
    """One variant of a kernel, and configs that run it."""

    key: str
    """`Kernel.variant_key`."""
    dtype: str
    layout: str
    fixed: Mapping[str, int | str]
    """Values of the compile-time tunables, with `dtype` and `layout`."""
    configs: Mapping[int, Sequence[Config]]
    """By architecture: configs that run the variant and differ in launch-time tunables only; enough of them to probe
    every launch."""


def profile_variant(
    kernel: Kernel,
    configs: Sequence[Config],
    dtype: str,
    layout: str,
    sm: int,
    compiled: Compiled,
    counts: ProbeCounts | None = None,
) -> list[LaunchProfile]:
    """Profiles of every launch of a compiled variant.

    Args:
        configs: of a `Space`: those that share the variant; each launch is probed with the first that performs it.
        dtype, layout: of the variant.
        sm: compute capability that it was compiled for.
        counts: of launches that were emulated before; those of further launches are added.

    Raises:
        KernrecError: a probe cannot be run, or the profile cannot be fitted; the message names kernel, config and
            launch.
    """
    emulator = _ProbeEmulator(compiled, {} if counts is None else counts)
    profiles = []
    for index, launch in enumerate(kernel.launches):
        probes = probe_launches(kernel, index, configs, dtype, layout, sm)
        try:
            fitted = _fit(probes, 1 + len(launch.trips), emulator)
        except ProfileError as error:
            raise KernrecError(f"kernel {kernel.name}, {launch.entry}, {dict(configs[0])}: {error}") from error
        if fitted is None:
            continue  # no config of this variant performs the launch
        resources = compiled.resources[launch.entry]
        profiles.append(LaunchProfile(index, launch.entry, resources, fitted, compiled.ptx_hash, compiled.compiler))
    return profiles


def profile_architectures(
    kernel: Kernel, variants: Sequence[Variant], compiled: Mapping[int, Compiled]
) -> list[list[tuple[int, LaunchProfile]]]:
    """For each of some variants with the same source after preprocessing: (architecture, profile) of every launch.

    Launches whose PTX and arguments are the same are emulated once. For worker processes: nothing here needs the
    database.

    Args:
        variants: those that `compiled` is the code of.
        compiled: by architecture.
    """
    counts: ProbeCounts = {}
    return [
        [
            (sm, profile)
            for sm in sorted(variant.configs.keys() & compiled.keys())
            for profile in profile_variant(
                kernel, variant.configs[sm], variant.dtype, variant.layout, sm, compiled[sm], counts
            )
        ]
        for variant in variants
    ]


class _ProbeEmulator:
    """Emulates launches of compiled code, each different one once; the PTX is parsed at the first that is new."""

    def __init__(self, compiled: Compiled, counts: ProbeCounts) -> None:
        self._compiled = compiled
        self._hash = compiled.ptx_hash
        self._counts = counts
        self._module: Module | None = None

    def counts(self, probe: Probe) -> dict[str, int]:
        """Counts of a launch over buffers of zeros."""
        launch, sizes = probe
        key = (
            *(self._hash, launch.entry, launch.grid, launch.block, launch.shared_bytes, launch.arguments),
            tuple(sizes.items()),
        )
        if key not in self._counts:
            self._module = self._module or parse(self._compiled.ptx)
            buffers = {name: np.zeros(elements, ELEMENTS[dtype]) for name, (dtype, elements) in sizes.items()}
            self._counts[key] = emulate(self._module, kernel_launch(launch, buffers))
        return self._counts[key]


def _fit(probes: Iterator[Probe], unknowns: int, emulator: _ProbeEmulator) -> Profile | None:
    """Emulates one probe more than there are unknowns, then fits; None where there are no probes."""
    terms: list[dict[str, int]] = []
    counts: list[dict[str, int]] = []
    for probe in probes:
        launch, _ = probe
        terms.append({"block": launch.blocks, **launch.trips})
        counts.append(emulator.counts(probe))
        if len(terms) > unknowns and determined(terms):
            break
    return fit_profile(terms, counts) if terms else None
