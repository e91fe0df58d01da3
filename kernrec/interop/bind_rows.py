"""Match recorded results with a kernel whose source and spec are available.

Names are compared with the spec's tunables and macros, ignoring case. The spec must have every config; otherwise the
rows or the spec belong to another kernel.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from kernrec.errors import UsageError, unknown
from kernrec.gpu import GPU
from kernrec.interop.results import ForeignResult, ForeignResults
from kernrec.kernel import Kernel, Space
from kernrec.op import Problem
from kernrec.store.measurement import Outcome
from kernrec.util.human import config_text


def names_of(kernel: Kernel) -> tuple[str, ...]:
    """Return every name that a recording may use for a tunable or macro of a kernel."""
    return tuple(dict.fromkeys([n for t in kernel.tunables for n in (t.name, t.macro)] + list(kernel.macros)))


def bind_rows(
    file: ForeignResults, kernel: Kernel, problem: Problem, gpu: GPU, ignored: Sequence[str] = ()
) -> tuple[ForeignResults, int]:
    """Return (results of a file with the spec's tunable names, number of excluded failures).

    Failures of configs that the spec's constraints exclude are dropped, because no query can ask for them.

    Args:
        file: the results.
        ignored: names in the file's configs that do not belong to the config.

    Raises:
        UsageError: a tunable is unknown or missing, a value is not in the spec, or the spec excludes a config that ran.
            The message names the tunable and the expected values.
    """
    left_out = {name.casefold() for name in ignored}
    places = _places(file, kernel, left_out)
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
    return replace(file, results=fitting), int(np.count_nonzero(~inside))


def _places(file: ForeignResults, kernel: Kernel, left_out: set[str]) -> Mapping[str, str]:
    """Map names in the file to the spec's tunables. Macros of the spec are only checked."""
    tunables = {n.casefold(): t.name for t in kernel.tunables for n in (t.macro, t.name)}
    macros = {name.casefold(): value for name, value in kernel.macros.items()}
    places: dict[str, str] = {}
    strange = []
    for name in file.tunables:
        folded = name.casefold()
        if folded in tunables:
            if tunables[folded] in places.values():
                raise UsageError(f"tunable {tunables[folded]} of {kernel.name} is in the rows twice")
            places[name] = tunables[folded]
        elif folded in macros:
            _check_macro(file, name, macros[folded], kernel)
        elif folded not in left_out:
            strange.append(name)
    if strange:
        names = [tunable.name for tunable in kernel.tunables]
        wrong = str(unknown(f"tunable of {kernel.name}", strange[0], names))
        if len(strange) > 1:
            wrong = f"unknown tunables of {kernel.name} {', '.join(map(repr, strange))}; known: {', '.join(names)}"
        raise UsageError(
            f"{wrong}; if {'they change' if len(strange) > 1 else 'it changes'} nothing in the kernel,"
            f" --map ignore={','.join(strange)}"
        )
    for tunable in kernel.tunables:
        if tunable.name not in places.values() and len(tunable.values) > 1:
            accepted = ", ".join(map(str, tunable.values[:8]))
            raise UsageError(
                f"the rows do not say {tunable.name}, which {kernel.name} has with {accepted}; fix it in the spec if"
                " all ran with one value"
            )
    return places


def _check_macro(file: ForeignResults, name: str, value: str, kernel: Kernel) -> None:
    for number, result in enumerate(file.results, 1):
        recorded = result.config.get(name)
        if str(recorded) != value and str(_whole(recorded)) != value:
            raise UsageError(f"result {number} has {name}={recorded}, but {kernel.name} defines it as {value}")


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
