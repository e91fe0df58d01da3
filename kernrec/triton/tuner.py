"""Select the configs that Triton measures for a new tuning key, and store the results."""

import functools
import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernrec.compile.triton_compile import compilation_message
from kernrec.compile.triton_describe import layers_of, stated_options
from kernrec.compile.triton_version import triton_compiler, untested_version
from kernrec.errors import KernrecError, KernrecWarning, UsageError, unknown
from kernrec.kernel import Kernel
from kernrec.kernel.expression import identifier
from kernrec.kernel.triton_function import OPTIONS
from kernrec.profile.triton_call import DEFAULTS, kernel_of_triton
from kernrec.profile.triton_call_file import TritonCall, function_place
from kernrec.recommender.analyze.triton import kept_values
from kernrec.recommender.request import Objective
from kernrec.store import content_hash
from kernrec.store.measurement import EnergyReport
from kernrec.triton.calls.launch_record import NoCallError, record_of
from kernrec.triton.machine import Machine, this_machine
from kernrec.triton.rank import LOADING, ranked
from kernrec.triton.records import Result, Trial, keep, middle, recorded_results

MODES = ("measure", "offline")
"""Valid values of the environment variable KERNREC_TRITON. The first is the default."""
_OF_THE_LAUNCH = ("grid", "warmup")


@dataclass(frozen=True, eq=False)
class AutotunedLaunch:
    """Launch of a Triton function that is being autotuned."""

    tuned: Any
    configs: Sequence[Any]
    named: Mapping[str, Any]
    """Arguments, constants, `grid` and compiler options of the launch, keyed by name."""

    @property
    def name(self) -> str:
        return str(self.tuned.base_fn.__name__)

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the launch, keyed by parameter. Parameters without an argument are missing."""
        return {name: value for name, value in self.named.items() if name in self.tuned.arg_names}

    def check(self) -> None:
        """Raise `UsageError` for a keyword that is neither a parameter nor a compiler option."""
        strange = self.named.keys() - set(self.tuned.arg_names) - set(_OF_THE_LAUNCH)
        options = _compiler_options() if strange else ()
        for name in sorted(strange - set(options)):
            raise UsageError(f"{self.name}: {unknown('parameter', name, self.tuned.arg_names)}")

    def tuning_hash(self, compiler: str) -> str:
        """Return a hash of the code, the compiler version, the arguments in `key`, and the data types."""
        arguments = self.arguments
        values = [str(arguments[name]) for name in self.tuned.keys if name in arguments]
        types = [str(value.dtype) for value in arguments.values() if hasattr(value, "dtype")]
        return content_hash([layers_of(self.tuned)[-1].cache_key, compiler, values, types])

    def kernel(self) -> tuple[Kernel, Path]:
        """Return the kernel of this launch, and the folder of its source file.

        Raises:
            UsageError: The arguments or configs do not match the function's parameters.
            KernrecError: The launch cannot be analyzed.
        """
        descriptors = any(hasattr(value, "block_shape") for value in self.arguments.values())
        if not descriptors and any(config.pre_hook is not None for config in self.configs):
            raise KernrecError(f"{self.name}: a config has a pre_hook, so its tunables do not determine what runs")
        options = {name: value for name, value in self.named.items() if name not in _OF_THE_LAUNCH}
        try:
            record = record_of(self.tuned, (), options, self.named.get("grid"), self.configs)
        except NoCallError as error:
            raise KernrecError(f"{self.name}: {error}") from None
        arguments = dict(record.arguments)
        for name, array in record.contents.items():
            arguments[name] = {**arguments[name], "values": str(kept_values(array))}
        path, module, _ = function_place(record.target)
        call = TritonCall(
            path, record.name, arguments, [], record.configs, place=path.name, decorated=self.tuned, module=module
        )
        return kernel_of_triton(call)[0], path.parent

    def place_of(self, stored: Mapping[str, Any]) -> int | None:
        """Return the index in `configs` of a stored config, or None."""
        return next((place for place, config in enumerate(self.configs) if same_config(config, stored)), None)


def same_config(config: Any, stored: Mapping[str, Any]) -> bool:
    """Return whether a `triton.Config` equals a stored config, which has kernrec's tunable names."""
    stated = {**config.kwargs, **stated_options(config)}
    wanted = {identifier(name).rstrip("_"): value for name, value in stated.items()}
    present = {name.rstrip("_"): value for name, value in stored.items()}
    for name, value in wanted.items():
        # A constant that is not a number is the same in all configs, so it is not a tunable.
        if isinstance(value, int) and present.get(name, DEFAULTS.get(name)) != int(value):
            return False
    return all(present.get(name, default) == wanted.get(name, default) for name, default in DEFAULTS.items())


def listed_configs(kernel: Kernel) -> list[dict[str, int]]:
    """Return the configs of a Triton launch's kernel, in the launch's order."""
    assert kernel.listed is not None
    rows = (dict(zip(kernel.listed.columns, row, strict=True)) for row in kernel.listed.rows)
    return [{tunable.name: row[tunable.name] for tunable in kernel.tunables} for row in rows]


@functools.cache
def _compiler_options() -> tuple[str, ...]:
    from triton.backends.nvidia.compiler import CUDAOptions

    return (*CUDAOptions.__dataclass_fields__, "debug", *OPTIONS)


_warned: set[str] = set()


@dataclass(eq=False)
class _Running:
    """State of Triton's measurements for one tuning key."""

    launch: AutotunedLaunch
    places: Sequence[int]
    """Indices in `launch.configs` of the configs that Triton measures."""
    machine: Machine | None
    """Machine that measures, or None if the measurements cannot be stored."""
    proposed: int
    """Number of configs that kernrec wanted to measure."""
    results: dict[int, Result] = field(default_factory=dict)


class Tuner:
    """Pruning function for Triton's autotuner. For the arguments, see `autotune`."""

    def __init__(self, top_k: int, objective: Objective, gpu: str | None) -> None:
        self._top_k, self._objective, self._gpu = top_k, objective, gpu
        self._running: _Running | None = None
        self._energy = EnergyReport()
        self._attached: list[Any] = []
        self.earlier: Callable[..., Sequence[Any]] | None = None
        """The user's `early_config_prune`, which runs first, or None."""

    def __call__(self, configs: Sequence[Any], named_args: Mapping[str, Any], **keywords: Any) -> Sequence[Any]:
        """Return the configs that Triton should measure. Triton uses a single config without measuring."""
        if self.earlier is not None and not (configs := self.earlier(configs, named_args, **keywords)):
            return configs
        tuned, positional = _calling_autotuner()
        if positional > len(tuned.arg_names):
            raise UsageError(
                f"{tuned.base_fn.__name__}: {positional} arguments were given; it has {len(tuned.arg_names)}:"
                f" {', '.join(tuned.arg_names)}"
            )
        self.attach(tuned)
        mode = os.environ.get("KERNREC_TRITON") or MODES[0]
        if mode == LOADING:
            name = tuned.base_fn.__name__
            raise UsageError(f"{name}: launched while its file is loaded: launch it below `if __name__ == '__main__':`")
        if mode not in MODES:
            raise unknown("value of KERNREC_TRITON", mode, MODES)
        return self._chosen(tuned, list(configs), {**named_args, **keywords}, mode == "offline")

    def attach(self, tuned: Any) -> None:
        """Intercept the measurements of Triton's autotuner, and disable Triton's cache on disk.

        Raises:
            UsageError: The autotuner has a `perf_model`, which would rank configs, too.
        """
        if any(attached is tuned for attached in self._attached):
            return
        self._attached.append(tuned)
        if tuned.perf_model is not None:
            raise UsageError("perf_model and kernrec both rank configs: leave perf_model out, or use triton.autotune")
        tuned.cache_results = False
        bench, do_bench = tuned._bench, None

        def timed(launch: Callable[[], object], quantiles: Sequence[float]) -> list[float]:
            times = list(do_bench(launch, quantiles=quantiles))  # type: ignore[misc]
            running = self._running
            if running and running.machine and self._objective is not Objective.LATENCY and math.isfinite(times[0]):
                self._energy = running.machine.energy(launch, _synchronize, times[0] * 1e-3)
            return times

        def measured(*arguments: Any, config: Any, **options: Any) -> list[float]:
            nonlocal do_bench
            # Create the benchmark function only if Triton measures, because its creation needs a driver.
            if do_bench is None and self._running is not None:
                do_bench, tuned.do_bench = tuned.do_bench, timed
            return self._measured(config, lambda: bench(*arguments, config=config, **options))

        tuned._bench = measured

    def _chosen(self, tuned: Any, configs: list[Any], named: Mapping[str, Any], offline: bool) -> list[Any]:
        self._running = None
        if not hasattr(layers_of(tuned)[-1], "cache_key"):
            return configs[:1]  # Triton's CPU interpreter ignores configs, so return any.
        launch = AutotunedLaunch(tuned, configs, named)
        if note := untested_version():
            _warn(note)
        launch.check()
        try:
            machine = this_machine(self._gpu, _has_driver())
        except UsageError as error:
            if self._gpu is not None or "KERNREC_GPU" in os.environ:
                raise
            return self._unranked(launch, None, offline, error)  # The catalog lacks the GPU.
        except KernrecError as error:
            return self._unranked(launch, None, True, error)
        measures = machine.present and not offline
        if (best := self._best_recorded(launch, machine)) is not None:
            return [best]
        if measures and self._objective is not Objective.LATENCY and (why := machine.why_no_energy()):
            _warn(f"{launch.name}: energy cannot be measured ({why}): the predicted best config is used")
            measures = False
        recorder: Machine | None = None
        try:
            kernel, folder = launch.kernel()
            recorder = machine  # The kernel is known, so measurements can be stored.
            ranking = ranked(kernel, folder, machine.gpu, self._objective)
        except UsageError:
            raise
        except KernrecError as error:
            return self._unranked(launch, recorder, not measures, error)
        for failure in ranking.failures[:1]:
            _warn(f"{launch.name}: {len(ranking.failures)} of {len(configs)} configs are skipped, such as {failure}")
        places = [place for stored in ranking.configs if (place := launch.place_of(stored)) is not None]
        if not measures or len(places) == 1:
            return [configs[places[0]]]
        return self._run(_Running(launch, places[: self._top_k], machine, self._top_k))

    def _best_recorded(self, launch: AutotunedLaunch, machine: Machine) -> Any | None:
        """Return the config with the best measurements, or None if too few configs were measured."""
        try:
            rows = recorded_results(machine.gpu.name, identifier(launch.name), launch.tuning_hash(triton_compiler()))
        except KernrecError as error:
            _warn(f"{launch.name}: what was measured before cannot be read: {error}")
            return None
        results: dict[int, list[Result]] = {}
        for _, stored, result in rows:
            if (place := launch.place_of(stored)) is not None:
                results.setdefault(place, []).append(result)
        values = {place: middle(of_config, self._objective) for place, of_config in results.items()}
        values = {place: value for place, value in values.items() if not math.isnan(value)}
        enough = len(values) >= min(self._top_k, len(launch.configs)) or any(row[0] >= self._top_k for row in rows)
        if not enough or not any(map(math.isfinite, values.values())):
            return None
        return launch.configs[min(values, key=values.__getitem__)]

    def _unranked(
        self, launch: AutotunedLaunch, machine: Machine | None, offline: bool, why: KernrecError
    ) -> list[Any]:
        """Return the configs to use without a ranking: all, or only the first if `offline` is true."""
        if offline:
            _warn(f"{launch.name}: its configs are not ranked, the first of the list is taken: {why}")
            return list(launch.configs[:1])
        count = len(launch.configs)
        _warn(f"{launch.name}: its configs are not ranked, all {count} are measured: {why}")
        return self._run(_Running(launch, range(count), machine, count))

    def _run(self, running: _Running) -> list[Any]:
        self._running = running
        return [running.launch.configs[place] for place in running.places]

    def _measured(self, config: Any, measure: Callable[[], Any]) -> list[float]:
        """Measure a config, store the result, and return three numbers that Triton minimizes.

        For latency, they are Triton's times in milliseconds. Otherwise, all three are the value of the objective.
        """
        running = self._running
        if running is None:
            return [0.0] * 3  # Some releases of Triton measure even a single config.
        self._energy = EnergyReport()
        try:
            times = measure()
            failed = None if math.isfinite(times[0]) else Result(error="Triton could not launch it")
        except Exception as error:
            if (message := compile_error(error)) is None:
                raise
            _warn(f"{running.launch.name}: {config}: {message}")
            failed, times = Result(error=message, compiled=False), [math.inf] * 3
        result = failed or Result(times[0] * 1e-3, self._energy)
        place = next(place for place in running.places if running.launch.configs[place] is config)
        running.results[place] = result
        if len(running.results) == len(running.places):
            self._keep(running)
        if self._objective is Objective.LATENCY:
            return list(times)
        value = result.value(self._objective)
        return [math.inf if math.isnan(value) else value] * 3

    def _keep(self, running: _Running) -> None:
        self._running = None
        launch, machine = running.launch, running.machine
        if machine is None:
            return
        try:
            kernel, _ = launch.kernel()
            places = [(config, launch.place_of(config)) for config in listed_configs(kernel)]
            results = [(config, running.results[place]) for config, place in places if place in running.results]
            compiler = triton_compiler()
            keep(Trial(kernel, launch.tuning_hash(compiler), running.proposed, results), machine, compiler)
        except KernrecError as error:
            _warn(f"{launch.name}: the measurements cannot be stored: {error}")


def _calling_autotuner() -> tuple[Any, int]:
    """Return the autotuner that called the pruning function, and the number of the launch's positional arguments."""
    frame = sys._getframe(2)
    while frame is not None:
        tuned = frame.f_locals.get("self")
        if frame.f_code.co_name == "prune_configs" and hasattr(tuned, "base_fn"):
            positional = frame.f_back.f_locals.get("args", ()) if frame.f_back is not None else ()
            return tuned, len(positional)
        frame = frame.f_back  # type: ignore[assignment]
    raise UsageError("kernrec.triton.prune() is for early_config_prune of triton.autotune, which calls it")


def compile_error(error: Exception) -> str | None:
    """Return a one-line message if Triton could not compile a config, or None for other errors."""
    from triton.compiler.errors import CompilationError

    if isinstance(error, CompilationError):
        return compilation_message(error)
    # If a pass of Triton's compiler fails, the error has no specific type.
    return str(error).splitlines()[-1][:200] if "PassManager::run failed" in str(error) else None


def _has_driver() -> bool:
    from triton.runtime.driver import driver

    try:
        return driver.active.get_current_target() is not None
    except Exception:  # Without an active driver, library or GPU, Triton raises various errors.
        return False


def _synchronize() -> None:
    from triton.runtime.driver import driver

    driver.active.get_device_interface().synchronize()


def _warn(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, KernrecWarning, stacklevel=2)
