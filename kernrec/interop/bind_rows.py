"""Match recorded results with a kernel whose source and spec are available.

Recorded and compiled shared memory must be equal, because the compiler does not change it. Register counts depend on
the compiler version: in a recording of a convolution, 3 of 7 configs differed by 3 to 290 %. Therefore, kernrec limits
only the median difference between recorded and compiled register counts.
"""

import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kernrec.compile.compiled import Compiled, NoCompilerError
from kernrec.compile.pool import compile_many
from kernrec.errors import UsageError, unknown
from kernrec.gpu import GPU
from kernrec.interop.results import ForeignResult, ForeignResults, StatedProblem
from kernrec.kernel import Kernel, Space, bind_launches
from kernrec.op import Problem, find_op
from kernrec.op.dtype import canonical_dtype
from kernrec.profile.kernel_code import compile_job_for
from kernrec.profile.launch_profile import entry_name
from kernrec.store.measurement import Outcome
from kernrec.util.human import config_text


def names_of(kernel: Kernel) -> tuple[str, ...]:
    """Return all names that a file of results may use for the tunables and macros of a kernel."""
    return tuple(dict.fromkeys([n for t in kernel.tunables for n in (t.name, t.macro)] + list(kernel.macros)))


def bind_rows(
    file: ForeignResults, kernel: Kernel, problem: Problem, gpu: GPU, ignored: Sequence[str]
) -> tuple[list[ForeignResult], int]:
    """Rename the tunables in a file's results to the names in the kernel's spec, and check their values.

    Args:
        ignored: Names in the file's configs that are not tunables.

    Returns:
        (results, number of dropped results). A failed result is dropped if the spec excludes its config.

    Raises:
        UsageError: A tunable is unknown, missing or invalid, the spec excludes a config that ran, or no result is left.
    """
    places = _places(file, kernel, {name.casefold() for name in ignored})
    configs = [_config(number, result, kernel, places) for number, result in enumerate(file.results, 1)]
    space = Space.of(kernel, problem, gpu)
    rows = space.find(configs)
    inside = rows >= 0
    inside[inside] = space.at(problem).valid[rows[inside]]
    fitting: list[ForeignResult] = []
    for number, (result, config, fits) in enumerate(zip(file.results, configs, inside.tolist(), strict=True), 1):
        if fits:
            fitting.append(replace(result, config=config))
        elif result.outcome == Outcome.OK:
            broken = kernel.misfit(config, problem, gpu.limits)
            raise UsageError(
                f"result {number} ran with {config_text(config)}, which {kernel.name} excludes on {gpu.name} "
                f"(constraint {broken!r})"
            )
    if not fitting:
        raise UsageError(f"all {len(file.results)} configs failed, and {kernel.name} excludes every one of them")
    return fitting, int(np.count_nonzero(~inside))


def _places(file: ForeignResults, kernel: Kernel, left_out: set[str]) -> Mapping[str, str]:
    """Map names in the file's configs to tunables of the spec."""
    tunables = {n.casefold(): t.name for t in kernel.tunables for n in (t.macro, t.name)}
    macros = {name.casefold(): value for name, value in kernel.macros.items()}
    places: dict[str, str] = {}
    strange = []
    for name in file.tunables:
        folded = name.casefold()
        if folded in tunables:
            if tunables[folded] in places.values():
                raise UsageError(f"the rows contain tunable {tunables[folded]} of {kernel.name} twice")
            places[name] = tunables[folded]
        elif folded in macros:
            for number, result in enumerate(file.results, 1):
                recorded, value = result.config.get(name), macros[folded]
                if value not in (str(recorded), str(_whole(recorded))):
                    raise UsageError(f"result {number} has {name}={recorded}, but {kernel.name} defines it as {value}")
        elif folded not in left_out:
            strange.append(name)
    if strange:
        names = [tunable.name for tunable in kernel.tunables]
        wrong = str(unknown(f"tunable of {kernel.name}", strange[0], names))
        if len(strange) > 1:
            wrong = f"unknown tunables of {kernel.name} {', '.join(map(repr, strange))}; known: {', '.join(names)}"
        raise UsageError(
            f"{wrong}; if {'they do' if len(strange) > 1 else 'it does'} not affect the kernel,"
            f" add --map ignore={','.join(strange)}"
        )
    for tunable in kernel.tunables:
        if tunable.name not in places.values() and len(tunable.values) > 1:
            accepted = ", ".join(map(str, tunable.values[:8]))
            raise UsageError(
                f"the rows have no value of {tunable.name} ({kernel.name} accepts {accepted}); if all have"
                " one value, set it in the spec"
            )
    return places


def _config(number: int, result: ForeignResult, kernel: Kernel, places: Mapping[str, str]) -> dict[str, int]:
    values = {place: result.config.get(name) for name, place in places.items()}
    config = {}
    for tunable in kernel.tunables:
        value = values.get(tunable.name, tunable.values[0])
        whole = _whole(value)
        if whole is None or whole not in tunable.values:
            accepted = ", ".join(map(str, tunable.values[:12])) + (", ..." if len(tunable.values) > 12 else "")
            raise UsageError(f"result {number}: {tunable.name} is {value!r:.40}; {kernel.name} accepts {accepted}")
        config[tunable.name] = whole
    return config


def _whole(value: object) -> int | None:
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return None
    if isinstance(value, float) and not value.is_integer():
        return None
    return int(value) if isinstance(value, (int, float)) else None


_MOST_CONFIGS = 50_000
"""Maximum number of a kernel's configs to compare with recorded launches. Each config takes 30 us."""

_ROUNDED = 1e-3
"""Relative tolerance for shared memory, because profilers print kilobytes with two decimals."""

_Launch = tuple[tuple[int, ...], tuple[int, ...]]


def match_launches(results: Sequence[ForeignResult], kernel: Kernel, problem: Problem, gpu: GPU) -> list[ForeignResult]:
    """Find the config of each result by its launch: grid, block and shared memory.

    Args:
        results: Results of a profiler, which record the launch but no tunables.

    Raises:
        UsageError: A launch matches none or several of the kernel's configs, or the kernel has too many configs.
    """
    space = Space.of(kernel, problem, gpu)
    valid = space.at(problem).valid.nonzero()[0]
    if len(valid) > _MOST_CONFIGS:
        raise UsageError(
            f"{kernel.name} has {len(valid)} configs; kernrec matches launches against at most {_MOST_CONFIGS}"
        )
    configs: dict[_Launch, list[tuple[int, dict[str, int]]]] = defaultdict(list)
    for row in valid.tolist():
        config = space.config(row)
        launches = bind_launches(kernel, config, problem, gpu.sm)
        if len(launches) == 1:  # A profiler's time covers one launch, so skip configs with several launches.
            configs[launches[0].grid, launches[0].block].append((launches[0].shared_bytes, config))
    return [replace(result, config=_only(result, configs, kernel, gpu)) for result in results]


def _only(
    result: ForeignResult, configs: dict[_Launch, list[tuple[int, dict[str, int]]]], kernel: Kernel, gpu: GPU
) -> dict[str, int]:
    assert result.launch is not None
    grid, block, stated = result.launch
    launched = [
        config
        for shared, config in configs.get((grid, block), [])
        if stated is None or abs(shared - stated) <= _ROUNDED * stated
    ]
    shown = f"a grid of {'x'.join(map(str, grid))} blocks of {'x'.join(map(str, block))} threads"
    if not launched:
        raise UsageError(f"no config of {kernel.name} launches {shown} on {gpu.name} for this problem; check the shape")
    if len(launched) > 1:
        differing = [t.name for t in kernel.tunables if len({config[t.name] for config in launched}) > 1]
        raise UsageError(
            f"{len(launched)} configs of {kernel.name} launch {shown} ({config_text(launched[0])}, ...);"
            f" give {', '.join(differing)} one value in the spec, and import one profile per value"
        )
    return launched[0]


def measured_problem(stated: StatedProblem, wanted: StatedProblem, kernel: Kernel | None) -> Problem:
    """Combine the problem that a file states and the problem that the user specified. Both may be incomplete.

    Args:
        kernel: Kernel of the spec, or None if there is no spec.

    Raises:
        UsageError: The op or a dimension is missing or invalid, or the file and the user contradict each other.
    """
    if kernel is not None:
        definition, usual = kernel.definition, (kernel.dtypes[0], kernel.layouts[0])
    elif (name := wanted.op or stated.op) is not None:
        definition, usual = find_op(name), ("", "")
    else:
        raise UsageError("it does not say what was measured: give --kernel SOURCE --spec SPEC, or --op and --shape")
    dims = definition.canonical_dims(dict(wanted.dims))
    first, second = (canonical_dtype(each) if each else None for each in (wanted.dtype, stated.dtype))
    if (
        (kernel is None and stated.op is not None and find_op(stated.op) != definition)
        or any(dims.get(name, value) != value for name, value in stated.dims)
        or (first and second and first != second)
    ):
        sizes = ",".join(f"{name}={value}" for name, value in stated.dims)
        shown = " ".join(part for part in (stated.op, sizes, stated.dtype) if part)
        raise UsageError(f"none of its results is for the given problem; they are for {shown:.300}")
    dims |= dict(stated.dims)
    return definition.problem(first or second or usual[0] or None, wanted.layout or usual[1] or None, **dims)


SAMPLE = 6
"""Number of recorded configs to compile for a comparison."""
_REGISTERS = 0.25
"""Maximum median of the relative differences in register counts."""


def check_code(results: Sequence[ForeignResult], kernel: Kernel, problem: Problem, gpu: GPU) -> str:
    """Compile a sample of the configs, and compare registers and shared memory with the recorded values.

    Return a note on the comparison, or an empty string if nothing was recorded. Raise `UsageError` if the code differs.
    """
    stated = [r for r in results if r.registers is not None or r.smem_bytes is not None]
    if not stated:
        return ""
    chosen = stated[:: max(len(stated) // SAMPLE, 1)][:SAMPLE]
    jobs = {compile_job_for(kernel, _candidate_config(kernel, r), problem, gpu.sm): r for r in chosen}
    differences: list[float] = []
    compared = 0
    try:
        for job, compiled in compile_many(iter(jobs), 1):
            if not isinstance(compiled, Compiled):
                continue
            result, compared = jobs[job], compared + 1
            config = _candidate_config(kernel, result)
            launch = bind_launches(kernel, config, problem, gpu.sm)[0]
            used = compiled.resources[entry_name(compiled.resources, launch.entry)]
            shared = used.static_smem_bytes + launch.shared_bytes
            reserved = gpu.limits.smem_reserved_per_block  # Some tools add the bytes that the driver reserves.
            if result.smem_bytes is not None and result.smem_bytes not in (shared, shared + reserved):
                raise UsageError(
                    f"{config_text(config)} was recorded with {result.smem_bytes} bytes of shared memory, but "
                    f"{kernel.source_name} uses {shared}: it is not the measured source"
                )
            if result.registers:
                differences.append(abs(used.registers - result.registers) / result.registers)
    except NoCompilerError as error:
        return f"registers and shared memory were not compared: {error}"
    if differences and (middle := statistics.median(differences)) > _REGISTERS:
        raise UsageError(
            f"registers differ by {middle:.0%} in the median of {len(differences)} configs from those that"
            f" {kernel.source_name} needs on {gpu.arch}: it is not the measured source"
        )
    return f"registers and shared memory of {compared} recorded configs agree with {kernel.source_name}"


def _candidate_config(kernel: Kernel, result: ForeignResult) -> dict[str, int]:
    return {tunable.name: int(result.config[tunable.name]) for tunable in kernel.tunables}


def by_config(results: Iterable[ForeignResult]) -> list[list[ForeignResult]]:
    """Group results by config. Results at different power limits or clocks stay separate."""
    groups: dict[Hashable, list[ForeignResult]] = defaultdict(list)
    for row in results:
        limits = row.power_limit_w, row.locked_sm_clock_hz, row.locked_memory_clock_hz
        groups[row.kernel, limits, *sorted(row.config.items())].append(row)
    return [*groups.values()]


def latencies_of(results: Iterable[ForeignResult]) -> list[float]:
    """Return the latencies of the configs that ran, in seconds."""
    return [row.latency_s for row in results if row.latency_s is not None]


def median_row(rows: Sequence[ForeignResult]) -> ForeignResult:
    """Return the result with the median latency, or the first result if all failed."""
    times = latencies_of(rows)
    middle = statistics.median_low(times) if times else None
    return next(row for row in rows if row.latency_s == middle)


def as_runs(results: Iterable[ForeignResult]) -> list[ForeignResult]:
    """Merge the repeated runs of each config into one result.

    The result has the median latency, and all latencies as samples. Its energy is the power times the median latency.
    """
    runs = []
    for rows in by_config(results):
        run = median_row(rows)
        times = tuple(latencies_of(rows))
        if len(times) > 1:
            middle = statistics.median(times)
            run = replace(run, latency_s=middle, samples_s=times, energy_j=run.power_w and run.power_w * middle)
        runs.append(run)
    return runs
