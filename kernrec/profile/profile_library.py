"""Compute the static profiles of library kernels: compile each variant, emulate its probes and fit the event counts.

A variant fixes the compile-time tunables, the data type and the layout. Configs that differ only in launch-time
tunables share a variant. Stored profiles are skipped, so an interrupted run can be continued.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from functools import lru_cache

import numpy as np

from kernrec.compile.compiled import Compiled, CompileError, CompileJob
from kernrec.compile.pool import Processors, processors_of
from kernrec.errors import KernrecError
from kernrec.gpu import limits
from kernrec.kernel import Config, Kernel, Space
from kernrec.kernel.binding import Probe, probe_launches
from kernrec.profile.emulated_launch import kernel_launch
from kernrec.profile.kernel_code import CodeKey, code_key, compile_job_for
from kernrec.profile.launch_profile import LaunchProfile, Profile, ProfileError, determined, fit_profile
from kernrec.profile.tensor_values import ELEMENTS
from kernrec.ptx import emulate, parse
from kernrec.store import ProfileRow
from kernrec.util.light_dataclass import dataclass

ProbeCounts = dict[tuple[object, ...], dict[str, int]]
"""Event counts of probes, keyed by (PTX, grid, block, arguments, buffer sizes)."""


@dataclass(frozen=True)
class Variant:
    """Compiled variant of a kernel, with configs that use it."""

    key: str
    dtype: str
    layout: str
    fixed: Mapping[str, int | str]
    """Values of compile-time tunables, `dtype` and `layout`."""
    configs: Mapping[int, Sequence[Config]]
    """Configs of the variant, keyed by architecture. A few configs suffice if each launch occurs in one of them."""


def profile_variant(
    kernel: Kernel,
    configs: Sequence[Config],
    dtype: str,
    layout: str,
    sm: int,
    compiled: Compiled,
    counts: ProbeCounts | None = None,
) -> list[LaunchProfile]:
    """Return the profiles of every launch of a compiled variant, and add the counts of probes to `counts`.

    Raises:
        KernrecError: a probe cannot run, or the profile cannot be fitted.
    """
    counts = {} if counts is None else counts
    profiles = []
    for index, launch in enumerate(kernel.launches):
        probes = probe_launches(kernel, index, configs, dtype, layout, sm)
        try:
            fitted = _fit(probes, 1 + len(launch.trips), compiled, counts)
        except ProfileError as error:
            raise KernrecError(f"kernel {kernel.name}, {launch.entry}, {dict(configs[0])}: {error}") from error
        if fitted is None:
            continue  # No config of the variant uses the launch.
        resources = compiled.resources[launch.entry]
        profiles.append(LaunchProfile(index, launch.entry, resources, fitted, compiled.ptx_hash, compiled.compiler))
    return profiles


def profile_architectures(
    kernel: Kernel, variants: Sequence[Variant], compiled: Mapping[int, Compiled]
) -> list[list[tuple[int, LaunchProfile]]]:
    """Return (architecture, profile) pairs of each variant. All variants must have the same preprocessed source."""
    counts: ProbeCounts = {}
    profiles: list[list[tuple[int, LaunchProfile]]] = []
    for variant in variants:
        profiles.append([])
        for sm in sorted(variant.configs.keys() & compiled.keys()):
            configs, dtype, layout = variant.configs[sm], variant.dtype, variant.layout
            launches = profile_variant(kernel, configs, dtype, layout, sm, compiled[sm], counts)
            profiles[-1] += [(sm, launch) for launch in launches]
    return profiles


_parsed = lru_cache(maxsize=1)(parse)


def _fit(probes: Iterator[Probe], unknowns: int, compiled: Compiled, cached: ProbeCounts) -> Profile | None:
    """Fit a profile with `unknowns` coefficients to counts of emulated probes. Return None without probes."""
    terms: list[dict[str, int]] = []
    counts: list[dict[str, int]] = []
    digest = compiled.ptx_hash
    for launch, sizes in probes:
        place = (digest, launch.entry, launch.grid, launch.block, launch.shared_bytes, launch.arguments)
        key = (*place, tuple(sizes.items()))
        if key not in cached:
            buffers = {name: np.zeros(elements, ELEMENTS[dtype]) for name, (dtype, elements) in sizes.items()}
            totals = emulate(_parsed(compiled.ptx), kernel_launch(launch, buffers))
            cached[key] = {name: int(count) for name, count in totals.items()}
        terms.append({"block": launch.blocks, **launch.trips})
        counts.append(cached[key])
        if len(terms) > unknowns and determined(terms):
            break
    return fit_profile(terms, counts) if terms else None


_Profiles = list[list[tuple[int, LaunchProfile]]]  # (architecture, profile) pairs of each variant.
# Maximum number of compiled variants per process that wait for emulation, to limit memory
_MOST_WAITING = 4


@dataclass(frozen=True)
class VariantFailure:
    """Variant that could not be profiled on an architecture."""

    kernel: str
    fixed: Mapping[str, int | str]
    """Values of compile-time tunables, `dtype` and `layout`."""
    sm: int
    message: str


def variants_of(kernel: Kernel, sms: Sequence[int]) -> list[Variant]:
    """Return all variants of a kernel with the architectures that can run them."""
    variants: list[Variant] = []
    configs_of: dict[str, dict[int, Sequence[Config]]] = {}
    for layout in kernel.layouts:
        for dtype in kernel.dtypes:
            for sm in sms:
                if sm < kernel.least_sm(dtype):
                    continue
                space = Space(kernel, sm, limits(sm), dtype, layout)
                by_variant: dict[int, list[Config]] = {}
                for row, index in enumerate(space.variants.index.tolist()):
                    by_variant.setdefault(index, []).append(space.config(row))
                for index, configs in by_variant.items():
                    key = space.variants.keys[index]
                    if key not in configs_of:
                        tunables = {name: configs[0][name] for name in kernel.compile_time_tunables}
                        fixed: dict[str, int | str] = {**tunables, "dtype": dtype, "layout": layout}
                        configs_of[key] = {}
                        variants.append(Variant(key, dtype, layout, fixed, configs_of[key]))
                    configs_of[key][sm] = configs
    return variants


def profile_variants(
    kernel: Kernel,
    variants: Sequence[Variant],
    stored: Collection[tuple[str, int]] = (),
    processors: Processors | int = 2,
    timeout_s: float = 120.0,
) -> Iterator[list[ProfileRow] | VariantFailure]:
    """Yield the database rows of each variant's profiles, or a failure, in order of completion.

    Args:
        stored: (variant key, architecture) of profiles to skip.
        processors: `Processors`, or a number of processes to start on this machine.
        timeout_s: limit for compiling a variant in seconds.
    """
    codes: dict[CodeKey, list[Variant]] = {}
    for variant in variants:
        left = {sm: configs for sm, configs in variant.configs.items() if (variant.key, sm) not in stored}
        if left:
            code = code_key(_job(kernel, variant, next(iter(left))))
            codes.setdefault(code, []).append(replace(variant, configs=left))
    code_of = {
        _job(kernel, group[0], sm): code
        for code, group in codes.items()
        for sm in sorted({sm for variant in group for sm in variant.configs})
    }
    compiled: dict[CodeKey, dict[int, Compiled]] = {code: {} for code in codes}
    missing = Counter(code_of.values())
    waiting: dict[Future[_Profiles], list[Variant]] = {}
    with processors_of(processors) as opened:
        for job, result in opened.compile(code_of, timeout_s):
            code = code_of[job]
            group = codes[code]
            if isinstance(result, CompileError):
                refused = [variant for variant in group if job.sm in variant.configs]
                yield from (VariantFailure(kernel.name, v.fixed, job.sm, str(result)) for v in refused)
            else:
                compiled[code][job.sm] = result
            missing[code] -= 1
            if not missing[code] and compiled[code]:
                waiting[opened.submit(profile_architectures, kernel, group, compiled.pop(code))] = group
            while len(waiting) >= _MOST_WAITING * opened.count:
                yield from _collect(kernel, waiting)
        while waiting:
            yield from _collect(kernel, waiting)


def _job(kernel: Kernel, variant: Variant, sm: int) -> CompileJob:
    config = next(iter(variant.configs.values()))[0]
    dims = kernel.definition.dims
    least = {dim.name: max(dim.minimum, 1) if dim.default is None else dim.minimum for dim in dims}
    return compile_job_for(kernel, config, kernel.definition.problem(variant.dtype, variant.layout, **least), sm)


def _collect(
    kernel: Kernel, waiting: dict[Future[_Profiles], list[Variant]]
) -> Iterator[list[ProfileRow] | VariantFailure]:
    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
        group = waiting.pop(future)
        try:
            for variant, profiles in zip(group, future.result(), strict=True):
                yield [profile.row(kernel, sm, variant.key, variant.fixed) for sm, profile in profiles]
        except KernrecError as error:
            for variant in group:
                yield VariantFailure(kernel.name, variant.fixed, min(variant.configs), str(error))
