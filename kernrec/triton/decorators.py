"""Define `autotune`, which replaces `triton.autotune`, and `prune`, which plugs into `triton.autotune`."""

from collections.abc import Callable, Sequence
from typing import Any

from kernrec.compile.triton_describe import layers_of
from kernrec.errors import UsageError, unknown
from kernrec.recommender.request import SCALAR_OBJECTIVES, Objective
from kernrec.triton.tuner import Tuner


def autotune(
    configs: Sequence[Any],
    key: Sequence[str],
    *positional: Any,
    top_k: int = 3,
    objective: str = "latency",
    gpu: str | None = None,
    **options: Any,
) -> Callable[[Any], Any]:
    """Tune a function like `triton.autotune`, but rank all configs first and measure only the best ones.

    The measurements are stored in the user's database, and later processes reuse them.

    Args:
        key: Names of the arguments whose values require separate tuning, as in `triton.autotune`.
        top_k: Number of configs to measure.
        objective: `latency`, `energy`, or `edp` (energy times latency).
        gpu: Common name of the GPU. The default is KERNREC_GPU, or this process's GPU if KERNREC_GPU is not set.
        **options: Further keyword arguments of `triton.autotune`, except `perf_model`. A function `early_config_prune`
            in `prune_configs_by` is called before kernrec ranks the configs. `cache_results` has no effect.

    Returns:
        A decorator for `@triton.jit` functions. The decorated function is Triton's autotuner.

    Raises:
        UsageError: A parameter is invalid, the decorated function lacks `@triton.jit`, or a config has a meta-parameter
            that is not a parameter of the function.
    """
    pruner = prune(top_k, objective, gpu)

    def decorate(function: Any) -> Any:
        import triton

        _check_function(function)
        _check_configs(function, configs)
        by = dict(options.get("prune_configs_by") or {})
        if positional:  # The third parameter of `triton.autotune` is `prune_configs_by`.
            by = dict(positional[0] or {})
        if by.get("perf_model") is not None:
            raise UsageError("perf_model and kernrec both rank configs: leave perf_model out, or use triton.autotune")
        pruner.earlier, by["early_config_prune"] = by.get("early_config_prune"), pruner
        if positional:
            tuned = triton.autotune(configs, key, by, *positional[1:], **options)(function)
        else:
            tuned = triton.autotune(configs, key, **options | {"prune_configs_by": by})(function)
        pruner.attach(tuned)
        return tuned

    return decorate


def prune(top_k: int = 3, objective: str = "latency", gpu: str | None = None) -> Tuner:
    """Return a pruning function for `triton.autotune(prune_configs_by={"early_config_prune": ...})`.

    The function ranks the configs and keeps the best configs, like the decorator `autotune`.

    Args:
        top_k: Number of configs to keep for measurement. Keep only one config if the database has measurements of this
            launch, or if KERNREC_TRITON=offline forbids measuring.
        objective: `latency`, `energy` or `edp`.
        gpu: As in `autotune`.

    Raises:
        UsageError: A parameter is invalid.
    """
    if type(top_k) is not int or top_k < 1:
        raise UsageError(f"top_k is {top_k!r:.40}; expected a whole number of at least 1")
    if objective not in SCALAR_OBJECTIVES:
        raise unknown("objective", objective, SCALAR_OBJECTIVES)
    return Tuner(top_k, Objective(objective), gpu)


def _check_function(function: Any) -> None:
    if not hasattr(layers_of(function)[-1], "params") or not hasattr(function, "arg_names"):
        name = getattr(function, "__name__", repr(function))
        raise UsageError(f"{name:.60} is not a function with @triton.jit, which goes below @kernrec.triton.autotune")


def _check_configs(function: Any, configs: Sequence[Any]) -> None:
    for number, config in enumerate(configs):
        if not isinstance(getattr(config, "kwargs", None), dict):
            raise UsageError(f"configs[{number}] is {config!r:.60}; a triton.Config is expected")
        for name in config.kwargs:
            if name not in function.arg_names:
                inner = getattr(function, "__name__", "the function")
                raise UsageError(f"{inner}: configs[{number}]: {unknown('meta-parameter', name, function.arg_names)}")
