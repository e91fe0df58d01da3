"""Fit the static profile of a launch to the counts of a few small runs; imports no emulator.

Kernels read their dimensions at run time. So the code of a block is fixed, and only the trip counts of its loops vary:

    counts(shape) = per_block * blocks + sum over loops (per_trip * trips)

A few emulated probes on full tiles determine the coefficients exactly. One more probe than unknowns checks that the
launch has this form. A partial tile at the edge of a problem counts as a full tile, because its block takes as long.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from kernrec.compile.compiled import Resources
from kernrec.errors import KernrecError
from kernrec.kernel import Config
from kernrec.kernel.spec import Kernel
from kernrec.op import Problem
from kernrec.store import ProfileRow
from kernrec.util.light_dataclass import dataclass

COUNTS_VERSION = 1
"""Version of the counts of sampled kernels. Increase it whenever the emulator counts differently, so that `analyze`
profiles stored configs again."""
VERSION = "version"
"""Metric of a sampled launch that holds the `COUNTS_VERSION` of its counts."""

Terms = Mapping[str, int]
"""Count of each part of a launch: `block` (thread blocks), then the total trips of each loop over the grid."""


class ProfileError(KernrecError):
    """The number of blocks and the declared trips do not explain the counts of a launch."""


@dataclass(frozen=True)
class Profile:
    """Counts of one launch as a linear function of its terms."""

    metrics: tuple[str, ...]
    """Names of the counters; see `kernrec.ptx.execution.emulator`."""
    terms: tuple[str, ...]
    """Names of the terms: `block`, then the loops."""
    coefficients: np.ndarray
    """Events per block and per trip; float64 (metrics, terms)."""

    def counts(self, terms: Terms) -> dict[str, float]:
        """Return the counts of a whole launch with these numbers of blocks and trips."""
        totals = self.coefficients @ np.array([terms[t] for t in self.terms], dtype=np.float64)
        return dict(zip(self.metrics, totals.tolist(), strict=True))


def determined(terms: Sequence[Terms]) -> bool:
    """Return whether the probes determine the coefficient of each term."""
    return int(np.linalg.matrix_rank(_design(terms))) == len(terms[0])


def _design(terms: Sequence[Terms]) -> np.ndarray:
    return np.array([[probe[name] for name in terms[0]] for probe in terms], dtype=np.float64)


def fit_profile(terms: Sequence[Terms], counts: Sequence[Mapping[str, int]]) -> Profile:
    """Return the profile that reproduces every probe exactly.

    Args:
        terms: terms of each probe.
        counts: counts of each probe; a missing metric is zero.

    Raises:
        ProfileError: no profile explains a metric, which the message names, or the probes do not determine the
            coefficients.
    """
    names = tuple(terms[0])
    metrics = tuple(sorted({metric for probe in counts for metric in probe}))
    design = _design(terms)
    counted = np.array([[probe.get(metric, 0) for metric in metrics] for probe in counts], dtype=np.float64)
    if not determined(terms):
        raise ProfileError(
            f"the {len(terms)} probes do not determine the coefficients of {', '.join(names)}: vary each term"
            " independently"
        )
    solution = np.linalg.lstsq(design, counted, rcond=None)[0]
    # Coefficients (events per block or trip) are integers, unless warps share a loop unevenly.
    rounded = np.round(solution * 64) / 64 + 0.0  # avoid -0.0
    residual = np.abs(design @ rounded - counted)
    if residual.max(initial=0.0) > 1e-6:
        worst, metric = (int(i) for i in np.unravel_index(int(residual.argmax()), residual.shape))
        raise ProfileError(
            f"{metrics[metric]} is not linear in {', '.join(names)}: probe {dict(terms[worst])} counted "
            f"{counted[worst, metric]:g}, the profile predicts {(design @ rounded)[worst, metric]:g}"
        )
    return Profile(metrics, names, np.ascontiguousarray(rounded.T))


@dataclass(frozen=True)
class LaunchProfile:
    """Static profile of one launch of a variant or config on one architecture."""

    launch: int
    """Index of the launch in `Kernel.launches`."""
    entry: str
    """Name of the launched kernel in its source."""
    resources: Resources
    profile: Profile
    """Counts as a function of blocks and trips."""
    ptx_hash: str
    compiler: str
    """Compiler, as in `Compiled`."""

    def row(self, kernel: Kernel, sm: int, variant_key: str, variant: Mapping[str, int | str]) -> ProfileRow:
        """Return the database row of this profile; `variant` holds the values that `variant_key` identifies."""
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


def entry_name(functions: Mapping[str, object], name: str) -> str:
    """Return the PTX name, possibly mangled, of the kernel that the source calls `name`.

    Raises:
        KernrecError: the PTX has no such kernel, or several.
    """
    if name in functions:
        return name
    mangled = [function for function in functions if function.startswith("_Z") and f"{len(name)}{name}" in function]
    if len(mangled) == 1:
        return mangled[0]
    if mangled:
        raise KernrecError(f'kernel {name} is overloaded in its source; declare it extern "C"')
    raise KernrecError(f"the source has no kernel {name} (it has {', '.join(functions) or 'none'})")


BLOCK_BUDGET = 20_000_000
"""Maximum number of PTX instructions of a block before it counts as an endless loop."""


@dataclass(frozen=True)
class ProfileTarget:
    """Problem and architecture for profiling a user's kernel."""

    problem: Problem
    sm: int
    """Compute capability that the kernel is compiled for."""
    folder: Path | None = None
    """Folder of the spec's `.npy` files."""
    budget: int = BLOCK_BUDGET
    """Maximum number of PTX instructions of a block before it counts as an endless loop."""


@dataclass(frozen=True)
class ProfileFailure:
    """Config that cannot be profiled."""

    config: Config
    message: str
    """Reason in one line."""
    stopped: bool = False
    """Whether time or memory limits stopped the compiler, which the source may cause for every config."""
