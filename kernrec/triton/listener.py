"""Define `record`, which stores in the user's database what a program's own `@triton.autotune` measures.

Triton calls its listener (`knobs.autotuning.listener`) with the times after measuring the configs of a tuning key.
kernrec reads the launch's arguments from the calling autotuner, and marks the rows as Triton's. Triton's benchmark
differs from kernrec's protocol, so these rows are used only if there are no rows by the protocol.
"""

import atexit
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from kernrec.compile.triton_version import triton_compiler
from kernrec.errors import KernrecError, KernrecWarning, UsageError
from kernrec.triton.machine import this_machine
from kernrec.triton.records import Result, Trial, keep
from kernrec.triton.tuner import AutotunedLaunch, listed_configs

_NO_LISTENER = "has no listener for its autotuner; Triton 3.8 or later has"
_KEYWORDS = {"fn", "key", "best_config", "configs_timings", "duration", "cache_hit"}
"""Arguments of a listener in all releases of Triton that support listeners."""
_active: list["Recorder"] = []


def record(gpu: str | None = None) -> "Recorder":
    """Store in the user's database what Triton's autotuner measures in this process from now on.

    >>> import kernrec.triton
    >>> kernrec.triton.record()  # to the end of the program
    >>> with kernrec.triton.record() as recorder:  # or of the block
    ...     layer(x)
    >>> recorder.rows, recorder.refused

    Args:
        gpu: Common name of the GPU; None for KERNREC_GPU, else the GPU of this process.

    Raises:
        UsageError: Triton's autotuner has no listener, or another recorder is running.
        NoCompilerError: Triton is not installed.
    """
    compiler = triton_compiler()
    if _active:
        raise UsageError("another recorder is already active")
    from triton import knobs

    if not hasattr(knobs.autotuning, "listener"):
        raise UsageError(f"{compiler.capitalize()} {_NO_LISTENER}")
    recorder = Recorder(compiler, gpu, knobs.autotuning)
    _active.append(recorder)
    return recorder


class Recorder:
    """Listener of Triton's autotuner, which also calls the previous listener. Errors become warnings, so the program
    continues.
    """

    def __init__(self, compiler: str, gpu: str | None, knobs: Any) -> None:
        self.rows = 0
        """Number of stored measurements, including failed configs."""
        self.refused: dict[str, str] = {}
        """For each function whose measurements were not stored, the reason."""
        self.from_cache = 0
        """Number of tuning keys whose times Triton read from its cache on disk; these are not stored."""
        self._compiler, self._gpu, self._knobs = compiler, gpu, knobs
        self._before: Callable[..., None] | None = knobs.listener
        self._pending: list[Callable[[], None]] = []
        self._listener = self._heard
        knobs.listener = self._listener
        atexit.register(self.stop)

    def stop(self) -> None:
        """Stop recording. Retry once to write rows that failed because a database was in use."""
        if self not in _active:
            return
        _active.remove(self)
        atexit.unregister(self.stop)
        if self._knobs.listener is self._listener:
            self._knobs.listener = self._before
        self._write()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _heard(self, **event: Any) -> None:
        """Handle a call from Triton with the arguments of an `AutotuneListener`."""
        try:
            if self in _active:
                self._take(event)
        except Exception as error:  # Errors must not stop the program.
            name = getattr(event.get("fn"), "__name__", "a function")
            self._refuse(name, error)
        if self._before is not None:
            self._before(**event)

    def _take(self, event: Mapping[str, Any]) -> None:
        if lacking := _KEYWORDS - event.keys():
            raise KernrecError(
                f"{self._compiler} does not pass {sorted(lacking)[0]} to a listener, unlike tested versions"
            )
        tuned, named = _calling_autotuner()
        if type(tuned.early_config_prune).__module__.startswith("kernrec.triton."):
            return  # The decorator of kernrec stores its measurements itself.
        if event["cache_hit"]:
            self.from_cache += 1
            return
        configs, times = list(event["configs_timings"]), list(event["configs_timings"].values())
        launch = AutotunedLaunch(tuned, configs, named)
        machine = this_machine(self._gpu, True)
        kernel, _ = launch.kernel()
        results = []
        for config in listed_configs(kernel):
            place = launch.place_of(config)
            if place is not None:
                results.append((config, _result(times[place])))
        trial = Trial(kernel, launch.tuning_hash(self._compiler), len(configs), results, hooked=_is_hooked(tuned))

        def write() -> None:
            keep(trial, machine, self._compiler)
            self.rows += len(results)

        self._pending.append(write)
        self._write()

    def _write(self) -> None:
        """Write pending rows, and keep those that the database does not accept yet."""
        while self._pending:
            try:
                self._pending[0]()
            except KernrecError as error:
                self._refuse("the database", error)
                return
            del self._pending[0]

    def _refuse(self, name: str, error: Exception) -> None:
        reason = str(error) if isinstance(error, KernrecError) else f"{type(error).__name__}: {error}"
        reason = " ".join(reason.split())[:200]
        if name not in self.refused:
            self.refused[name] = reason
            warnings.warn(f"{name}: what Triton measured is not kept: {reason}", KernrecWarning, stacklevel=2)


def _calling_autotuner() -> tuple[Any, dict[str, Any]]:
    """Return (Triton's autotuner that called its listener, arguments of the launch by name), read from stack frames."""
    frame = sys._getframe(2)
    while frame is not None:
        tuned: Any = frame.f_locals.get("self")
        if frame.f_code.co_name == "run" and hasattr(tuned, "base_fn") and hasattr(tuned, "configs"):
            args, keywords = frame.f_locals.get("args", ()), frame.f_locals.get("kwargs", {})
            return tuned, {**dict(zip(tuned.arg_names, args, strict=False)), **keywords}
        frame = frame.f_back  # type: ignore[assignment]
    raise KernrecError("the launch whose configs were measured is not visible")


def _result(times: Any) -> Result:
    """Return a config's result from its times in milliseconds: the median first, or infinite if it could not run."""
    median = times[0] if isinstance(times, Sequence) else times
    value_s = float(median) * 1e-3
    if math.isfinite(value_s) and value_s > 0:
        return Result(value_s)
    return Result(error="Triton could not compile or launch it")


def _is_hooked(tuned: Any) -> bool:
    hooks = (tuned.reset_to_zero, tuned.restore_value, tuned.user_defined_pre_hook, tuned.user_defined_post_hook)
    return any(hooks) or any(config.pre_hook is not None for config in tuned.configs)
