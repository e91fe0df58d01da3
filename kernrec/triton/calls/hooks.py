"""Record launches with hooks in Triton."""

import atexit
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kernrec.compile.gpu_stand_in import ASSUMED, has_driver, loaded_torch, stand_in_driver, torch_without_gpu
from kernrec.compile.triton_describe import layers_of
from kernrec.compile.triton_version import check_interfaces
from kernrec.errors import KernrecError, KernrecWarning, UsageError
from kernrec.gpu import GPU, find_gpu
from kernrec.triton.calls.call_writer import PER_FUNCTION, CallWriter
from kernrec.triton.calls.launch_record import record_of
from kernrec.util.patch import replaced
from kernrec.version import __version__

_active: list["Captured"] = []


class Captured:
    """Launches that a capture has recorded. `len` returns the number of call files."""

    def __init__(self, writer: CallWriter, simulated: GPU | None) -> None:
        self._writer = writer
        self.simulated = simulated
        """GPU that kernrec simulates for the program, or None if there is a real GPU."""
        self.refused: dict[str, str] = {}
        """Functions without a call file, each with the reason."""
        self._inside = False

    @property
    def files(self) -> list[Path]:
        """Return the call files, in the order of their first launch."""
        return self._writer.files

    @property
    def left_out(self) -> dict[str, int]:
        """Number of launches that were not written to files, keyed by function."""
        return dict(self._writer.left_out)

    def __len__(self) -> int:
        return len(self.files)

    def launched(
        self,
        function: Any,
        args: Sequence[Any],
        keywords: Mapping[str, Any],
        grid: Any,
        configs: Callable[[], Sequence[Any]] | None,
        run: Callable[[], Any],
    ) -> Any:
        """Record a launch, and run it if there is a GPU. A launch inside another launch is not recorded."""
        if self._inside:
            return run()
        self._inside = True
        try:
            self._keep(function, args, keywords, grid, configs)
            return run() if self.simulated is None else None
        finally:
            self._inside = False

    def _keep(self, function: Any, args: Sequence[Any], keywords: Mapping[str, Any], grid: Any, configs: Any) -> None:
        name = getattr(layers_of(function)[-1], "__name__", repr(function)[:60])
        try:
            listed = configs() if configs is not None else None
            self._writer.add(record_of(function, args, keywords, grid, listed))
        except UsageError:
            raise
        # The user's grid, heuristics and pruning functions may raise anything. The program must continue.
        except Exception as error:
            reason = (
                str(error)
                if isinstance(error, KernrecError)
                else f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
            )
            if name not in self.refused:
                self.refused[name] = reason
                warnings.warn(f"{name}: not captured: {reason}", KernrecWarning, stacklevel=2)


@contextmanager
def capture(folder: str | Path, gpu: str = ASSUMED, per_function: int = PER_FUNCTION) -> Iterator[Captured]:
    """Write every Triton launch of the `with` block to a call file. Launches run only if there is a GPU.

    Args:
        folder: Folder for the call files (.toml), and for arrays whose values affect addresses (.npy). It is created if
            it does not exist.
        gpu: GPU to simulate if this machine has none. Grids and configs of a program may depend on the GPU.
        per_function: Maximum number of call files per function.

    Raises:
        UsageError: The GPU is unknown, the folder cannot be written, or another capture is active.
        NoCompilerError: Triton is not installed, or lacks an interface that kernrec uses.
    """
    if _active:
        raise UsageError("a capture is already running; end it first")
    simulated, compiler = find_gpu(gpu), check_interfaces()
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    runs = has_driver()
    about = f"captured by kernrec {__version__} with {compiler}" + ("" if runs else f", as on {simulated.title}")
    captured = Captured(CallWriter(Path(folder), about, per_function), None if runs else simulated)
    _active.append(captured)
    try:
        with ExitStack() as stack:
            stack.enter_context(stand_in_driver(gpu))
            stack.enter_context(replaced(JITFunction, run=_jit_run(captured, JITFunction.run)))
            stack.enter_context(replaced(Autotuner, run=_tuner_run(captured, Autotuner.run)))
            if not runs:
                stack.enter_context(_compiled_functions(captured))
            yield captured
    finally:
        _active.remove(captured)


def _jit_run(captured: Captured, run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def hooked(self: Any, *args: Any, grid: Any, warmup: bool = False, **keywords: Any) -> Any:
        if warmup:
            return _warmed(run, self, args, grid, keywords)
        return captured.launched(
            self, args, keywords, grid, None, lambda: run(self, *args, grid=grid, warmup=False, **keywords)
        )

    return hooked


def _warmed(run: Callable[..., Any], function: Any, args: Any, grid: Any, keywords: dict[str, Any]) -> Any:
    """Run `warmup`. Store the function in the compiled kernel, so that launches of the compiled kernel are recorded."""
    kernel = run(function, *args, grid=grid, warmup=True, **keywords)
    if kernel is not None:
        kernel.kernrec_launch = function, keywords
    return kernel


def _tuner_run(captured: Captured, run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def hooked(self: Any, *args: Any, **keywords: Any) -> Any:
        named = {name: value for name, value in keywords.items() if name not in ("grid", "warmup")}

        def configs() -> Sequence[Any]:
            if type(self.early_config_prune).__module__.startswith("kernrec.triton."):
                return list(self.configs)  # Do not prune, because `kernrec analyze` will rank all configs.
            self.nargs = dict(zip(self.arg_names, args, strict=False))
            try:
                return list(self.prune_configs(named))
            finally:
                self.nargs = None

        return captured.launched(self, args, named, keywords.get("grid"), configs, lambda: run(self, *args, **keywords))

    return hooked


@contextmanager
def _compiled_functions(captured: Captured) -> Iterator[None]:
    """Within a `with` block, record launches `compiled[grid](*args)` of kernels that `warmup` compiled."""
    from triton.compiler.compiler import CompiledKernel

    def launcher(self: Any, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **keywords: Any) -> Any:
            function, stated = getattr(self, "kernrec_launch", (None, {}))
            if function is None:
                return None
            names = [parameter.name for parameter in function.params]
            constants = {name: value for name, value in stated.items() if name not in names[: len(args)]}
            return captured.launched(function, args, constants, grid, None, lambda: None)

        return launch

    with replaced(CompiledKernel, __getitem__=launcher):
        yield


FOLDER_VARIABLE = "KERNREC_CAPTURE"
GPU_VARIABLE = "KERNREC_CAPTURE_GPU"
COUNT_VARIABLE = "KERNREC_CAPTURE_PER_FUNCTION"
REFUSED_VARIABLE = "KERNREC_CAPTURE_REFUSED"
SITE = Path(__file__).resolve().parent / "site"
"""Folder that `kernrec capture` puts first on a program's module path."""

_stack = ExitStack()
_running: list[Captured] = []
_torch_shows_gpu = False
_starting = False


def library_loaded() -> None:
    """Start a capture that lasts until the process ends. Without a GPU, make torch report the simulated GPU."""
    global _torch_shows_gpu
    if _starting or (not _running and not _started()):
        return
    (captured,) = _running
    if captured.simulated is not None and not _torch_shows_gpu and loaded_torch() is not None:
        _torch_shows_gpu = True
        try:
            _stack.enter_context(torch_without_gpu(captured.simulated))
        except KernrecError as error:
            print(f"kernrec capture: {error}", file=sys.stderr)


def _started() -> bool:
    global _starting, _torch_shows_gpu
    count = os.environ.get(COUNT_VARIABLE, "")
    _torch_shows_gpu = loaded_torch() is not None  # If torch is loaded, `capture` patches it.
    _starting = True
    try:
        captured = _stack.enter_context(
            capture(
                os.environ[FOLDER_VARIABLE],
                os.environ.get(GPU_VARIABLE) or "a100",
                int(count) if count.isdecimal() else PER_FUNCTION,
            )
        )
    except KernrecError as error:
        print(f"kernrec capture: {error}", file=sys.stderr)
        return False
    finally:
        _starting = False
    _running.append(captured)
    atexit.register(_end, captured)
    return True


def _end(captured: Any) -> None:
    for name, count in captured.left_out.items():
        print(f"kernrec: {name}: {count} further launches were not written", file=sys.stderr)
    if captured.refused and (file := os.environ.get(REFUSED_VARIABLE)):
        with Path(file).open("a", encoding="utf-8") as refused:
            refused.writelines(f"{name}: {reason}\n" for name, reason in captured.refused.items())
