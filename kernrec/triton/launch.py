"""Convert a launch of an autotuned function: its arguments, its kernel, and how configs correspond."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernrec.compile.triton_describe import layers_of, stated_options
from kernrec.errors import KernrecError, UsageError, unknown
from kernrec.kernel import Kernel
from kernrec.kernel.expression import identifier
from kernrec.kernel.triton_function import OPTIONS
from kernrec.profile.triton_call import DEFAULTS, kernel_of_triton
from kernrec.profile.triton_call_file import TritonCall, function_place
from kernrec.recommender.analyze.triton import kept_values
from kernrec.store import content_hash
from kernrec.triton.calls.launch_record import NoCallError, record_of

_OF_THE_LAUNCH = ("grid", "warmup")


@dataclass(frozen=True, eq=False)
class AutotunedLaunch:
    """Launch of a function that Triton is tuning."""

    tuned: Any
    configs: Sequence[Any]
    named: Mapping[str, Any]
    """Arguments, constants, `grid`, and options of the compiler, by name."""

    @property
    def name(self) -> str:
        """Return the function's name."""
        return str(self.tuned.base_fn.__name__)

    @property
    def arguments(self) -> dict[str, Any]:
        """Return arguments by parameter, without defaults."""
        return {name: value for name, value in self.named.items() if name in self.tuned.arg_names}

    def check(self) -> None:
        """Raise `UsageError` for a keyword that neither the function nor Triton's compiler has."""
        strange = self.named.keys() - set(self.tuned.arg_names) - set(_OF_THE_LAUNCH)
        options = _compiler_options() if strange else ()
        for name in sorted(strange - set(options)):
            raise UsageError(f"{self.name}: {unknown('parameter', name, self.tuned.arg_names)}")

    def tuning_hash(self, compiler: str) -> str:
        """Return a hash that identifies a tuning key: code, compiler, values of the key's arguments, types of all
        tensors.

        As in Triton, arguments outside the key do not change it.
        """
        arguments = self.arguments
        values = [str(arguments[name]) for name in self.tuned.keys if name in arguments]
        types = [str(value.dtype) for value in arguments.values() if hasattr(value, "dtype")]
        return content_hash([layers_of(self.tuned)[-1].cache_key, compiler, values, types])

    def kernel(self) -> tuple[Kernel, Path]:
        """Return (kernel of this launch, as `kernrec analyze` creates it from a captured call; folder of its source).

        Raises:
            UsageError: Arguments or configs do not fit the function.
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
        """Return the index in `configs` of a config in kernrec's names; None if the launch lacks it."""
        return next((place for place, config in enumerate(self.configs) if same_config(config, stored)), None)


def same_config(config: Any, stored: Mapping[str, Any]) -> bool:
    """Return whether a `triton.Config` is the config that kernrec stores under its own names (`triton_call`)."""
    stated = {**config.kwargs, **stated_options(config)}
    wanted = {identifier(name).rstrip("_"): value for name, value in stated.items()}
    present = {name.rstrip("_"): value for name, value in stored.items()}
    for name, value in wanted.items():
        # A constant that is not a number is equal in all configs, so it is not a tunable.
        if isinstance(value, int) and present.get(name, DEFAULTS.get(name)) != int(value):
            return False
    return all(present.get(name, default) == wanted.get(name, default) for name, default in DEFAULTS.items())


def listed_configs(kernel: Kernel) -> list[dict[str, int]]:
    """Return the configs of a launch's kernel, in the order of its list."""
    assert kernel.listed is not None
    rows = (dict(zip(kernel.listed.columns, row, strict=True)) for row in kernel.listed.rows)
    return [{tunable.name: row[tunable.name] for tunable in kernel.tunables} for row in rows]


@functools.cache
def _compiler_options() -> tuple[str, ...]:
    from triton.backends.nvidia.compiler import CUDAOptions

    return (*CUDAOptions.__dataclass_fields__, "debug", *OPTIONS)
