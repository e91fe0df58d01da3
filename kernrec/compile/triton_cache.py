"""Triton's on-disk autotune cache with predicted times, as the installed Triton itself writes it.

`predicted_cache` starts a process that loads the source; there Triton's own autotuner makes the key and the file, which
then gets a member that says who predicted.
"""

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kernrec.compile.triton_process import answer_of, answer_request
from kernrec.compile.triton_version import untested_version
from kernrec.errors import UsageError

PREDICTED = "predicted_by"
"""The member of a cache that holds predictions; Triton reads past it."""
_LIMIT_S = 60.0
_TORCH = {
    "f64": "torch.float64", "f32": "torch.float32", "tf32": "torch.float32", "f16": "torch.float16",
    "bf16": "torch.bfloat16", "f8e4m3": "torch.float8_e4m3fn", "f8e5m2": "torch.float8_e5m2", "i8": "torch.int8",
    "u8": "torch.uint8", "i16": "torch.int16", "u16": "torch.uint16", "i32": "torch.int32", "u32": "torch.uint32",
    "i64": "torch.int64", "u64": "torch.uint64",
}  # fmt: skip


def predicted_cache(request: Mapping[str, Any]) -> dict[str, str]:
    """The files of the cache, by their name in Triton's cache folder.

    Args:
        request: `source`, `name` and `folder` of the file, `function`, `sm`, `by` (who predicted), `arguments` by
            parameter (a value, or a table with the `dtype` of a tensor), and `times`: a list of a config by Triton's
            names and its time, least and most in milliseconds.

    Raises:
        UsageError: the function has no autotuner, or its configs are pruned; a Triton whose cache is not known.
        KernrecError: the source cannot be loaded.
    """
    if note := untested_version():
        raise UsageError(f"{note}: what its autotune cache looks like is not known")
    answer = answer_of("kernrec.compile.triton_cache", json.dumps(request), request["name"], limit_s=_LIMIT_S)
    if "refused" in answer:
        raise UsageError(answer["refused"])
    return dict(answer)


def _write_cache(request: Mapping[str, Any]) -> dict[str, str]:
    """The result of `predicted_cache`, in the process that loads the source."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import autotuner

    from kernrec.compile.triton_load import load_module

    name, function = request["name"], request["function"]
    module = load_module(request["source"], name, Path(request["folder"]) if request["folder"] else None)
    tuned = getattr(module, function, None)
    while tuned is not None and not isinstance(tuned, autotuner.Autotuner):
        tuned = getattr(tuned, "fn", None)
    if tuned is None:
        raise UsageError(f"{name}: {function} has no @triton.autotune, whose cache this would be")
    ours = type(tuned.early_config_prune).__module__.startswith("kernrec.")
    if tuned.perf_model is not None or (tuned.early_config_prune is not None and not ours):
        raise UsageError(f"{name}: {function} prunes its configs, and which are left only a launch can say")
    if any(config.pre_hook is not None for config in tuned.configs):
        raise UsageError(f"{name}: a config of {function} has a pre_hook, and Triton keeps no such configs")
    timings = {}
    for values, time_ms in request["times"]:
        config = next((config for config in tuned.configs if _has(config, values)), None)
        if config is None:
            raise UsageError(f"{name}: {function} has no config {values}: its list was changed since the analysis")
        timings[config] = time_ms
    key = _tuning_key(tuned, request["arguments"])

    def bench() -> None:
        tuned.configs_timings = timings

    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        target = GPUTarget("cuda", request["sm"], 32)
        autotuner.driver = SimpleNamespace(active=SimpleNamespace(get_current_target=lambda: target))
        tuned.check_disk_cache(key, tuned.configs, bench)
        files = {}
        for path in sorted(Path(folder).rglob("*.autotune.json")):
            document = {PREDICTED: request["by"]} | json.loads(path.read_text(encoding="utf-8"))
            files[path.relative_to(folder).as_posix()] = json.dumps(document)
    return files


def _tuning_key(tuned: Any, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """The tuning key of a launch with all arguments in their order, as Triton makes it."""
    missing = [name for name in tuned.keys if name not in arguments]
    if missing:
        raise UsageError(f"the tuning key has {missing[0]}, whose value the analysis does not have")
    values = [arguments[name] for name in tuned.keys]
    types = [_TORCH[arguments[name]["dtype"]] for name in tuned.arg_names if isinstance(arguments.get(name), Mapping)]
    return (*values, *types)


def _has(config: Any, values: Mapping[str, int]) -> bool:
    """Whether a `triton.Config` has these values, as far as it states them."""
    stated = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
    stated |= {"num_ctas": config.num_ctas, "maxnreg": config.maxnreg or 0}
    return all(int(stated[name]) == value for name, value in values.items() if isinstance(stated.get(name), int))


if __name__ == "__main__":
    sys.exit(answer_request(_write_cache))
