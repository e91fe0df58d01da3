"""Fit the static profile of a launch to the event counts of a few small emulated launches.

This module does not import the emulator, so importing it is fast.

A kernel reads its dimensions at run time. The code of a block is therefore the same for all problem sizes, and only the
number of blocks and the trip counts of the loops differ:

    counts(shape) = per_block * blocks + sum over loops (per_trip * trips)

Emulating a few small problems of full tiles (probes) determines the coefficients exactly. There is one more probe than
there are unknown coefficients, to check that the equation holds. A partial tile at the edge of a problem counts as a
full tile, because its block takes as long.
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

COUNTS_VERSION = 2
"""Version of the event counts of sampled kernels. Increase it whenever the emulator counts differently, so that
`analyze` profiles stored configs again."""
VERSION = "version"
"""Name of the metric that states the `COUNTS_VERSION` of a sampled launch."""

Terms = Mapping[str, int]
"""Number of times that each part of a launch is executed, keyed by part. `block` stands for the number of thread
blocks. Each other key is a loop, and its value is the number of executions of the loop's body, summed over all blocks.
"""


class ProfileError(KernrecError):
    """The event counts of a launch are not a linear function of the number of blocks and the declared trips."""


@dataclass(frozen=True)
class Profile:
    """Event counts of one launch, as a linear function of its number of blocks and its trips."""

    metrics: tuple[str, ...]
    """Names of the counters, which `kernrec.ptx.execution.emulator` explains."""
    terms: tuple[str, ...]
    """Names of the terms: `block`, then the loops."""
    coefficients: np.ndarray
    """Number of events per block and per trip; float64 (metrics, terms)."""

    def counts(self, terms: Terms) -> dict[str, float]:
        """Return the event counts of a whole launch, given its number of blocks and trips."""
        totals = self.coefficients @ np.array([terms[t] for t in self.terms], dtype=np.float64)
        return dict(zip(self.metrics, totals.tolist(), strict=True))


def determined(terms: Sequence[Terms]) -> bool:
    """Return whether probes with these terms determine the coefficient of each term."""
    return int(np.linalg.matrix_rank(_design(terms))) == len(terms[0])


def _design(terms: Sequence[Terms]) -> np.ndarray:
    return np.array([[probe[name] for name in terms[0]] for probe in terms], dtype=np.float64)


def fit_profile(terms: Sequence[Terms], counts: Sequence[Mapping[str, int]]) -> Profile:
    """Return the profile that reproduces the event counts of every probe exactly.

    Args:
        terms: number of blocks and trips of each probe.
        counts: event counts of each probe. A missing metric counts as zero.

    Raises:
        ProfileError: no linear function explains the counts of a metric, or the probes do not determine the
            coefficients. The message names the metric.
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
    # Coefficients are integers or, if warps share a loop unevenly, fractions. So round them to multiples of 1/64.
    rounded = np.round(solution * 64) / 64 + 0.0  # Adding 0.0 turns -0.0 into 0.0.
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
    """Static profile of one launch of a compiled variant or of one config, on one architecture."""

    launch: int
    """Index of the launch in `Kernel.launches`."""
    entry: str
    """Name of the launched kernel in its source."""
    resources: Resources
    profile: Profile
    """Event counts as a function of the number of blocks and trips."""
    ptx_hash: str
    compiler: str
    """Name and version of the compiler, as in `Compiled.compiler`."""

    def row(self, kernel: Kernel, sm: int, variant_key: str, variant: Mapping[str, int | str]) -> ProfileRow:
        """Return the database row that stores this profile. `variant` contains the tunables' values of the variant with
        the key `variant_key`.
        """
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
    """Return the PTX name, which may be mangled, of the kernel that is called `name` in the source.

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
"""Maximum number of PTX instructions of a block. A block that exceeds it is assumed to loop forever."""


@dataclass(frozen=True)
class ProfileTarget:
    """Problem and architecture for which to profile a user's kernel."""

    problem: Problem
    sm: int
    """Compute capability for which the kernel is compiled."""
    folder: Path | None = None
    """Folder that contains the spec's `.npy` files."""
    budget: int = BLOCK_BUDGET
    """Maximum number of PTX instructions of a block. A block that exceeds it is assumed to loop forever."""


@dataclass(frozen=True)
class ProfileFailure:
    """A config that cannot be profiled, with the reason."""

    config: Config
    message: str
    """Reason in one line."""
    stopped: bool = False
    """Whether the compiler exceeded its time or memory limit. If so, other configs of the source may do so too."""
