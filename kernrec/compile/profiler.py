"""The static profile of one code of a kernel: compile it, emulate its probes, fit its counts.

A *code* is what the compiler sees: the kernel's source with its compile-time tunables, dtype and layout fixed.
Configs that differ in launch-time tunables only share one, and so does their profile.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kernrec.compile.compiled import Compiled, Resources
from kernrec.errors import KernrecError
from kernrec.kernel import find_kernel
from kernrec.kernel.binding import BoundLaunch, Pointer, Scratch, bind_launches, probe_problems, workspaces
from kernrec.kernel.spec import Config, Kernel
from kernrec.op import Problem
from kernrec.ptx import Module, emulate, parse
from kernrec.ptx.profile import Profile, ProfileError, fit_profile

_ELEMENTS = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": np.uint16,
    "tf32": np.float32,
    "i32": np.int32,
    "u32": np.uint32,
    "i64": np.int64,
}


@dataclass(frozen=True)
class LaunchProfile:
    """What is known of one launch of a code on one architecture without running it."""

    launch: int
    entry: str
    resources: Resources
    profile: Profile
    ptx_hash: str
    compiler: str


def profile_code(
    kernel: Kernel,
    configs: Sequence[Config],
    dtype: str,
    layout: str,
    sm: int,
    compiled: Compiled,
    cache: dict[tuple[str, int], Profile] | None = None,
) -> list[LaunchProfile]:
    """Profiles of every launch of a compiled code.

    configs: the configs that share the code; each launch is probed with the first that performs it.
    cache: profiles by (PTX hash, launch), shared between architectures whose PTX is the same.
    Raises `KernrecError` naming kernel, config and launch when a probe cannot be run or fitted.
    """
    cache = {} if cache is None else cache
    # Header lines (compiler, .target) differ between architectures whose code is the same.
    ptx_hash = hashlib.sha256(compiled.ptx.partition(".address_size")[2].encode()).hexdigest()[:16]
    module: Module | None = None
    profiles = []
    for index, launch in enumerate(kernel.launches):
        key = (ptx_hash, index)
        if key not in cache:
            module = module or parse(compiled.ptx)
            fitted = _fit(kernel, index, configs, dtype, layout, sm, module)
            if fitted is None:
                continue  # no config of this code performs the launch
            cache[key] = fitted
        resources = compiled.resources[launch.entry]
        profiles.append(LaunchProfile(index, launch.entry, resources, cache[key], ptx_hash, compiled.compiler))
    return profiles


def profile_architectures(
    kernel: str, configs: Mapping[int, Sequence[Config]], dtype: str, layout: str, compiled: Mapping[int, Compiled]
) -> list[tuple[int, LaunchProfile]]:
    """(architecture, profile) of every launch of one code; what has the same PTX is emulated once.

    For worker processes: the kernel goes by name, and nothing here needs the database.
    """
    found = find_kernel(kernel)
    cache: dict[tuple[str, int], Profile] = {}
    return [
        (sm, profile)
        for sm, result in compiled.items()
        for profile in profile_code(found, configs[sm], dtype, layout, sm, result, cache)
    ]


def emulate_config(
    kernel: Kernel, config: Config, problem: Problem, sm: int, module: Module, tensors: Mapping[str, np.ndarray]
) -> list[tuple[BoundLaunch, dict[str, int]]]:
    """Runs all launches of a config on the CPU; outputs in `tensors` are written in place. Launches with counts."""
    scratch = workspaces(kernel, config, problem, sm)
    buffers = {**tensors, **{s.name: _scratch(s) for s in scratch}}
    return [(bound, _emulate(bound, module, buffers)) for bound in bind_launches(kernel, config, problem, sm)]


def _fit(
    kernel: Kernel, index: int, configs: Sequence[Config], dtype: str, layout: str, sm: int, module: Module
) -> Profile | None:
    """Emulates probes until one more than the unknowns has been seen, then fits; None without a config to probe."""
    terms: list[dict[str, int]] = []
    counts: list[dict[str, int]] = []
    unknowns = 1 + len(kernel.launches[index].trips)
    for config, problem, bound in _probes(kernel, index, configs, dtype, layout, sm):
        buffers = {name: _zeros(t.dtype, t.elements) for name, t in problem.tensors.items()}
        buffers |= {s.name: _scratch(s) for s in workspaces(kernel, config, problem, sm)}
        terms.append({"block": bound.blocks, **bound.trips})
        counts.append(_emulate(bound, module, buffers))
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


def _emulate(bound: BoundLaunch, module: Module, buffers: dict[str, np.ndarray]) -> dict[str, int]:
    arguments = [
        (0 if a.null else a.name) if isinstance(a, Pointer) else np.dtype(_ELEMENTS[a.ctype]).type(a.value)
        for a in bound.arguments
    ]
    return emulate(
        module, bound.entry, bound.grid, bound.block, arguments, buffers=buffers, shared_bytes=bound.shared_bytes
    )


def _zeros(dtype: str, elements: int) -> np.ndarray:
    return np.zeros(elements, dtype=_ELEMENTS[dtype])


def _scratch(scratch: Scratch) -> np.ndarray:
    return _zeros(scratch.dtype, scratch.elements)
