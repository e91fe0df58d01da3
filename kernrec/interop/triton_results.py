"""Read Triton's autotune cache on disk, and write Inductor's lookup table.

If `cache_results` or TRITON_CACHE_AUTOTUNING is set, `@triton.autotune` writes a file `<function>.autotune.json` to a
folder of Triton's cache. The file contains the tuning key and all configs that were tried. Each config has its
attributes and its times in milliseconds: [median, 20th percentile, 80th percentile]. The times are infinite if the
config could not run. The file names neither the GPU nor the shape. It has no version, so kernrec rejects files with
attributes that Triton 3.2 to 3.9 do not have.

Inductor's lookup table contains the configs that `torch.compile` compares for each shape:

    {"((torch.float16, [m, k], [k, 1]), (torch.float16, [k, n], [n, 1]))+mm": [{"template_id": "triton::mm", ...}]}

A key consists of an optional device, the data types, shapes and strides of the inputs, and the op. If a key has only
one config, PyTorch uses it without measuring.
"""

from collections.abc import Mapping
from typing import Any

from kernrec.errors import UsageError
from kernrec.interop.json_document import TextFile, numbered
from kernrec.interop.results import ForeignResult, ForeignResults, ReadOptions, config_of, latency_of, text_of
from kernrec.store.measurement import Outcome

TOOL = "Triton autotune"
MEMBER = "configs_timings"
"""Member of the JSON object that identifies an autotune cache."""
ENDING = ".autotune.json"

Config = dict[str, Any]
Times = tuple[float, float, float]
"""Times of a config in seconds: median, 20th and 80th percentile."""

_LAUNCH = {"num_warps": None, "num_stages": None, "num_ctas": 1, "maxnreg": None}
"""Default of each compiler option, or None if there is none."""
_ATTRIBUTES = {"kwargs", "pre_hook", *_LAUNCH}
_LATER = {"ir_override"}
"""Attributes of configs that only Triton 3.4 and later have."""
NOT_GIVEN = -1

FAILED = "Triton could not compile or launch it"
PREDICTED = "predicted_by"
"""Member that marks a cache with predicted times, which kernrec 0.1.0 wrote."""


def read_autotune(file: TextFile, options: ReadOptions) -> ForeignResults:
    """Read the results in an autotune cache."""
    document = file.document()
    if PREDICTED in document:
        raise ValueError("it contains predictions of kernrec, not measurements")
    kernel, configs = read_autotune_times(file)
    results = [
        ForeignResult(config, Outcome.OK, None, times[0])
        if times
        else ForeignResult(config, Outcome.CONSTRAINT, FAILED)
        for config, times in configs
    ]
    return ForeignResults(TOOL, None, kernel, results)


def read_autotune_times(file: TextFile) -> tuple[str | None, list[tuple[Config, Times | None]]]:
    """Read an autotune cache.

    Returns:
        (name of the Triton function or None, pairs of a config and its times). The times are None if the config could
        not be launched.
    """
    document = file.document()
    document.pop(PREDICTED, None)
    entries = document.get(MEMBER)
    if not isinstance(entries, list) or set(document) != {"key", MEMBER}:
        raise ValueError(f"it is not an autotune cache of Triton 3.2 to 3.9: expected key and {MEMBER}")
    configs = numbered(entries, _config_and_times, "config")
    for number, (config, _) in enumerate(configs, 1):
        if odd := sorted(config.keys() ^ configs[0][0].keys()):
            raise ValueError(f"config {number}: {odd[0]!r:.40} is not a parameter of every config")
    usual = {
        name for name, default in _LAUNCH.items() if {config.get(name) for config, _ in configs} <= {NOT_GIVEN, default}
    }
    names = [name for name in configs[0][0] if name not in usual] if configs else []
    name = file.path.name
    kernel = name.removesuffix(".gz").removesuffix(ENDING) if ENDING in name else None
    return kernel or None, [({name: config[name] for name in names}, times) for config, times in configs]


def _config_and_times(entry: object) -> tuple[Config, Times | None]:
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], dict):
        raise ValueError("expected a list of two items: the attributes of a config, and its times")
    attributes, times = entry
    names = set(attributes)
    if names not in (_ATTRIBUTES, _ATTRIBUTES | _LATER):
        other = sorted((names ^ _ATTRIBUTES) - _LATER)
        raise ValueError(f"it has other attributes than those of Triton 3.2 to 3.9: {', '.join(map(str, other))[:80]}")
    if attributes["pre_hook"] is not None or attributes.get("ir_override") is not None:
        raise ValueError("it has a hook or custom code, so its tunables do not determine what ran")
    if not isinstance(attributes["kwargs"], dict):
        raise ValueError("kwargs are not an object")
    values = {name: NOT_GIVEN if attributes[name] is None else attributes[name] for name in _LAUNCH}
    if twice := sorted(set(values) & set(attributes["kwargs"])):
        raise ValueError(f"{twice[0]} is stated twice")
    config = config_of({**{text_of(name, "a name"): value for name, value in attributes["kwargs"].items()}, **values})
    if not isinstance(times, list) or len(times) != 3:
        raise ValueError("expected three times: median, 20th and 80th percentile, in ms")
    if all(time == float("inf") for time in times):
        return config, None
    middle, low, high = (latency_of(time, 1e-3) for time in times)
    if not low <= middle <= high:
        raise ValueError(f"its times {times!r:.60} are not median, 20th and 80th percentile")
    return config, (middle, low, high)


TEMPLATE = "triton::mm"
"""Inductor's matmul template. kernrec's kernel `matmul_triton` has the same tunables."""

TUNABLES = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_stages", "num_warps")
_TYPES = {"f16": "torch.float16", "bf16": "torch.bfloat16", "f32": "torch.float32", "tf32": "torch.float32"}


def product_key(dims: Mapping[str, int], dtype: str, layout: str) -> str:
    """Return the key of a matmul in Inductor's lookup table. The key contains no device.

    Args:
        layout: `nn`, `nt`, `tn` or `tt`. A `t` means that the input is stored transposed.

    Raises:
        UsageError: The template does not support the data type.
    """
    if dtype not in _TYPES:
        raise UsageError(f"this template of PyTorch has no {dtype} matmuls; expected {', '.join(_TYPES)}")
    m, n, k = dims["m"], dims["n"], dims["k"]
    strides_a = [1, m] if layout[0] == "t" else [k, 1]
    strides_b = [1, k] if layout[1] == "t" else [n, 1]
    name = _TYPES[dtype]
    return f"(({name}, [{m}, {k}], {strides_a}), ({name}, [{k}, {n}], {strides_b}))+mm"


def entry(config: Mapping[str, int], k: int, dtype: str) -> dict[str, Any]:
    """Convert a config to an entry of the lookup table, for a matmul of inner dimension `k`."""
    return {
        "template_id": TEMPLATE,
        **{name: int(config[name]) for name in TUNABLES},
        "EVEN_K": k % config["BLOCK_K"] == 0,
        "ALLOW_TF32": dtype == "tf32",
        "USE_FAST_ACCUM": False,
        "ACC_TYPE": "tl.float32",
    }
