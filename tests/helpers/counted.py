"""Instruction counts of library kernels in the emulator, from profiles and from whole runs. Counts of a launch are
cached like outcomes of runs (`tests.helpers.run_cache`)."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from kernrec.compile import Compiled
from kernrec.kernel import Kernel, bind_launches, workspaces
from kernrec.kernel.binding import BoundLaunch
from kernrec.op import Problem, encode_elements, inputs
from kernrec.profile.emulated_launch import emulate_config
from kernrec.profile.launch_profile import LaunchProfile
from kernrec.profile.profile_library import profile_variant
from tests.helpers.kernel_code import Config
from tests.helpers.ptx_text import parsed
from tests.helpers.run_cache import Tensors, cached_run, read, run_key, write


class CachedCounts(dict[tuple[object, ...], dict[str, int]]):
    """Disk cache of the event counts of launches with zero inputs, for `profile_variant`."""

    def __contains__(self, launch: object) -> bool:
        if not super().__contains__(launch) and (outcome := read(run_key({}, "counts", launch))) is not None:
            assert isinstance(launch, tuple)
            super().__setitem__(launch, dict(zip(outcome["metrics"].tolist(), outcome["counts"].tolist(), strict=True)))
        return super().__contains__(launch)

    def __setitem__(self, launch: tuple[object, ...], counts: dict[str, int]) -> None:
        super().__setitem__(launch, counts)
        outcome = {"metrics": np.array(list(counts), np.str_), "counts": np.array(list(counts.values()))}
        write(run_key({}, "counts", launch), outcome)


def profiled(
    kernel: Kernel, configs: Sequence[Config], dtype: str, layout: str, sm: int, code: Compiled
) -> list[LaunchProfile]:
    return profile_variant(kernel, configs, dtype, layout, sm, code, CachedCounts())


def per_trip(launch: LaunchProfile, loop: str = "k_tiles") -> dict[str, float]:
    profile = launch.profile
    return dict(zip(profile.metrics, profile.coefficients[:, profile.terms.index(loop)].tolist(), strict=True))


def unpredicted(
    kernel: Kernel, configs: Sequence[Config], config: Config, problem: Problem, sm: int, code: Compiled, kinds: str
) -> list[str]:
    """Run `config`, and return a message for each count that the profile of `configs` does not predict. All configs
    share the machine code `code`. `kinds` has prefixes of the compared metrics, separated by blanks."""
    profiles = {p.launch: p.profile for p in profiled(kernel, configs, problem.dtype, problem.layout, sm, code)}
    outputs = {n: t for n, t in problem.tensors.items() if t.role == "output"}
    zeros = {n: encode_elements(np.zeros(t.shape), t.dtype) for n, t in outputs.items()}
    return [
        f"{bound.entry}, {problem.key}: {metric} is {counts[metric]}, predicted {count}"
        for bound, counts in counted(kernel, config, problem, sm, code.ptx, {**inputs(problem), **zeros})
        for metric, count in profiles[bound.index].counts({"block": bound.blocks, **bound.trips}).items()
        if metric.startswith(tuple(kinds.split())) and counts[metric] != count
    ]


def counted(
    kernel: Kernel, config: Config, problem: Problem, sm: int, ptx: str, tensors: Tensors
) -> Iterator[tuple[BoundLaunch, Counter[str]]]:
    """Yield each launch with its counts from `emulate_config`, and discard the computed results."""
    launches = bind_launches(kernel, config, problem, sm)

    def emulated() -> Tensors:
        every = emulate_config(kernel, config, problem, sm, parsed(ptx), tensors)
        rows = [(place, name, count) for place, (_, counts) in enumerate(every) for name, count in counts.items()]
        places, metrics, counts = zip(*rows, strict=True)
        return {"places": np.array(places), "metrics": np.array(metrics), "counts": np.array(counts)}

    key = run_key(tensors, "counts", ptx, launches, workspaces(kernel, config, problem, sm))
    columns = cached_run(key, emulated)
    by_launch: list[Counter[str]] = [Counter() for _ in launches]
    for place, metric, count in zip(*(columns[name].tolist() for name in ("places", "metrics", "counts")), strict=True):
        by_launch[place][metric] = count
    return zip(launches, by_launch, strict=True)
