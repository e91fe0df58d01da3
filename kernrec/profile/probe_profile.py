"""Compute the static profile of a kernel variant: compile it, emulate its probes and fit the counts.

A variant is the code that the compiler sees: the source with fixed compile-time tunables, data type and layout. Configs
that differ only in launch-time tunables share a variant, and so its profile.
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
"""Counts of emulated launches by (PTX, grid, block, arguments, buffer sizes)."""


@dataclass(frozen=True)
class Variant:
    """One variant of a kernel, and configs that run it."""

    key: str
    """Key from `Kernel.variant_key`."""
    dtype: str
    layout: str
    fixed: Mapping[str, int | str]
    """Values of the compile-time tunables, with `dtype` and `layout`."""
    configs: Mapping[int, Sequence[Config]]
    """Configs of the variant, by architecture. They differ only in launch-time tunables and suffice to probe every
    launch.
    """


def profile_variant(
    kernel: Kernel,
    configs: Sequence[Config],
    dtype: str,
    layout: str,
    sm: int,
    compiled: Compiled,
    counts: ProbeCounts | None = None,
) -> list[LaunchProfile]:
    """Return the profiles of every launch of a compiled variant.

    Args:
        configs: configs of a `Space` that share the variant; each launch is probed with the first that performs it.
        dtype: data type of the variant.
        layout: layout of the variant.
        sm: compute capability that the variant was compiled for.
        compiled: code of the variant.
        counts: counts of launches emulated before; the function adds those of further launches.

    Raises:
        KernrecError: a probe cannot run, or the profile cannot be fitted; the message names kernel, config and launch.
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
            continue  # No config of this variant performs the launch.
        resources = compiled.resources[launch.entry]
        profiles.append(LaunchProfile(index, launch.entry, resources, fitted, compiled.ptx_hash, compiled.compiler))
    return profiles


def profile_architectures(
    kernel: Kernel, variants: Sequence[Variant], compiled: Mapping[int, Compiled]
) -> list[list[tuple[int, LaunchProfile]]]:
    """Return (architecture, profile) of every launch of variants with the same preprocessed source.

    Launches with the same PTX and arguments are emulated once. The function does not use the database, so worker
    processes can call it.

    Args:
        variants: variants that share the code in `compiled`.
        compiled: code by architecture.
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
    """Emulator that runs each distinct launch of compiled code once, and parses the PTX on first use."""

    def __init__(self, compiled: Compiled, counts: ProbeCounts) -> None:
        self._compiled = compiled
        self._hash = compiled.ptx_hash
        self._counts = counts
        self._module: Module | None = None

    def counts(self, probe: Probe) -> dict[str, int]:
        """Return the counts of a launch over buffers of zeros."""
        launch, sizes = probe
        key = (
            *(self._hash, launch.entry, launch.grid, launch.block, launch.shared_bytes, launch.arguments),
            tuple(sizes.items()),
        )
        if key not in self._counts:
            self._module = self._module or parse(self._compiled.ptx)
            buffers = {name: np.zeros(elements, ELEMENTS[dtype]) for name, (dtype, elements) in sizes.items()}
            self._counts[key] = {
                name: int(count) for name, count in emulate(self._module, kernel_launch(launch, buffers)).items()
            }
        return self._counts[key]


def _fit(probes: Iterator[Probe], unknowns: int, emulator: _ProbeEmulator) -> Profile | None:
    """Emulate one more probe than there are unknowns, then fit; return None without probes."""
    terms: list[dict[str, int]] = []
    counts: list[dict[str, int]] = []
    for probe in probes:
        launch, _ = probe
        terms.append({"block": launch.blocks, **launch.trips})
        counts.append(emulator.counts(probe))
        if len(terms) > unknowns and determined(terms):
            break
    return fit_profile(terms, counts) if terms else None
