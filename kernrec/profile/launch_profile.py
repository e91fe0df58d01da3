"""Fit the static profile of a launch to the event counts of a few small emulated launches.

A kernel reads its dimensions at run time, so only the number of blocks and the trip counts of loops change:

    counts(shape) = per_block * blocks + sum over loops (per_trip * trips)

A few small problems of full tiles (probes) determine the coefficients exactly. One further probe checks the equation. A
partial tile counts as a full tile, because its block takes as long.
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
"""Version of the event counts of sampled kernels. Increase it to make `analyze` profile stored configs again."""
VERSION = "version"
"""Name of the metric that stores `COUNTS_VERSION`."""

Terms = Mapping[str, int]
"""Number of thread blocks (key `block`) and iterations of each loop (key: its name) in a whole launch."""


class ProfileError(KernrecError):
    """Error for event counts that do not depend linearly on the number of blocks and loop iterations."""


@dataclass(frozen=True)
class Profile:
    """Event counts of a launch as a linear function of the numbers of blocks and loop iterations."""

    metrics: tuple[str, ...]
    """Counters of `kernrec.ptx.execution.emulator`."""
    terms: tuple[str, ...]
    """`block`, followed by the loops."""
    coefficients: np.ndarray
    """Events per block and per loop iteration, as a float64 array of shape (metrics, terms)."""

    def counts(self, terms: Terms) -> dict[str, float]:
        """Return the event counts of a launch with the numbers of blocks and loop iterations in `terms`."""
        totals = self.coefficients @ np.array([terms[t] for t in self.terms], dtype=np.float64)
        return dict(zip(self.metrics, totals.tolist(), strict=True))


def determined(terms: Sequence[Terms]) -> bool:
    """Return whether probes with these numbers of blocks and loop iterations are enough for `fit_profile`."""
    return int(np.linalg.matrix_rank(_design(terms))) == len(terms[0])


def _design(terms: Sequence[Terms]) -> np.ndarray:
    return np.array([[probe[name] for name in terms[0]] for probe in terms], dtype=np.float64)


def fit_profile(terms: Sequence[Terms], counts: Sequence[Mapping[str, int]]) -> Profile:
    """Return the profile that reproduces the counts of all probes. Raise `ProfileError` if there is not exactly one."""
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
    # Coefficients are integers, or fractions if warps share a loop unevenly, so round them to multiples of 1/64.
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
    """Static profile of a launch for one variant or config on one architecture."""

    launch: int
    """Index in `Kernel.launches`."""
    entry: str
    resources: Resources
    profile: Profile
    ptx_hash: str
    compiler: str

    def row(self, kernel: Kernel, sm: int, variant_key: str, variant: Mapping[str, int | str]) -> ProfileRow:
        """Return the database row of this profile. `variant` contains the values of the variant's tunables."""
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
    """Return the PTX name of the kernel `name`. Raise `KernrecError` unless exactly one function matches."""
    if name in functions:
        return name
    mangled = [function for function in functions if function.startswith("_Z") and f"{len(name)}{name}" in function]
    if len(mangled) == 1:
        return mangled[0]
    if mangled:
        raise KernrecError(f'kernel {name} is overloaded in its source; declare it extern "C"')
    raise KernrecError(f"the source has no kernel {name} (it has {', '.join(functions) or 'none'})")


BLOCK_BUDGET = 20_000_000
"""Maximum number of PTX instructions of a block. If a block exceeds it, it is assumed to loop forever."""


@dataclass(frozen=True)
class ProfileTarget:
    """Problem and architecture for which a user's kernel is profiled."""

    problem: Problem
    sm: int
    folder: Path | None = None
    """Folder of the spec's `.npy` files."""
    budget: int = BLOCK_BUDGET
    """Maximum number of PTX instructions of a block."""


@dataclass(frozen=True)
class ProfileFailure:
    """Config that cannot be profiled."""

    config: Config
    message: str
    stopped: bool = False
    """Whether the compiler ran out of time or memory. Other configs may fail for the same reason."""
