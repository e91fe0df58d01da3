"""Read Triton's on-disk autotune cache: the times of every config that `@triton.autotune` tried.

Triton writes `<function>.autotune.json` into a folder of its cache if `cache_results` or TRITON_CACHE_AUTOTUNING is
set. The file contains the tuning key, and for each config its attributes and [median, 20th percentile, 80th percentile]
in milliseconds. Times are infinite if the config did not compile or launch. The file has no version, so kernrec rejects
files with attributes that Triton 3.2 to 3.9 do not have. The file names neither the GPU nor the shape. A cache of
predictions, which kernrec 0.1.0 wrote, is marked and is not a recording.
"""

from typing import Any

from kernrec.interop.json_document import TextFile, numbered
from kernrec.interop.results import ForeignResult, ForeignResults, ReadOptions, config_of, latency_of, text_of
from kernrec.store.measurement import Outcome

TOOL = "Triton autotune"
MEMBER = "configs_timings"
"""Member of the file that identifies the format."""
ENDING = ".autotune.json"

_LAUNCH = {"num_warps": None, "num_stages": None, "num_ctas": 1, "maxnreg": None}
"""Compiler options, with default values; an option that has its default in every config is dropped."""
_ATTRIBUTES = {"kwargs", "pre_hook", *_LAUNCH}
_LATER = {"ir_override"}
"""Attributes of Triton 3.4 and later."""
_NOT_GIVEN = -1
_FAILED = "Triton could not compile or launch it"

PREDICTED = "predicted_by"
"""Member that marks a cache of predictions, which kernrec 0.1.0 wrote."""


def read_autotune(file: TextFile, options: ReadOptions) -> ForeignResults:
    """Return the results in an autotune cache; errors are those of `read_results.Format`."""
    document = file.document()
    if PREDICTED in document:
        raise ValueError("it contains predictions of kernrec, not measurements")
    return _read(document, file)


def read_autotune_configs(file: TextFile) -> list[dict[str, Any]]:
    """Return the configs of a cache, measured or predicted, without failures; errors are those of `read_autotune`."""
    document = file.document()
    document.pop(PREDICTED, None)
    ran = [result.config for result in _read(document, file).results if result.outcome == Outcome.OK]
    return [{name: int(value) for name, value in config.items() if value != _NOT_GIVEN} for config in ran]


def _read(document: dict[str, Any], file: TextFile) -> ForeignResults:
    entries = document[MEMBER]
    if not isinstance(entries, list) or set(document) != {"key", MEMBER}:
        raise ValueError(f"it is not an autotune cache of Triton 3.2 to 3.9: expected key and {MEMBER}")
    results = numbered(entries, _result, "config")
    for number, result in enumerate(results, 1):
        if odd := sorted(result.config.keys() ^ results[0].config.keys()):
            raise ValueError(f"config {number}: {odd[0]!r:.40} is not a parameter of every config")
    name = file.path.name
    kernel = name.removesuffix(".gz").removesuffix(ENDING) if ENDING in name else None
    if not results:
        return ForeignResults(TOOL, None, kernel or None, results)
    names = [name for name in results[0].config if not _usual(name, results)]
    results = [
        ForeignResult({name: result.config[name] for name in names}, result.outcome, result.error, result.latency_s)
        for result in results
    ]
    return ForeignResults(TOOL, None, kernel or None, results)


def _result(entry: object) -> ForeignResult:
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], dict):
        raise ValueError("expected the attributes of a config and its times")
    attributes, times = entry
    names = set(attributes)
    if names not in (_ATTRIBUTES, _ATTRIBUTES | _LATER):
        other = sorted((names ^ _ATTRIBUTES) - _LATER)
        raise ValueError(f"it has other attributes than those of Triton 3.2 to 3.9: {', '.join(map(str, other))[:80]}")
    if attributes["pre_hook"] is not None or attributes.get("ir_override") is not None:
        raise ValueError("it has a hook or custom code, so its tunables do not determine what ran")
    if not isinstance(attributes["kwargs"], dict):
        raise ValueError("kwargs are not an object")
    values = {name: _NOT_GIVEN if attributes[name] is None else attributes[name] for name in _LAUNCH}
    if twice := sorted(set(values) & set(attributes["kwargs"])):
        raise ValueError(f"{twice[0]} is stated twice")
    config = config_of({**{text_of(name, "a name"): value for name, value in attributes["kwargs"].items()}, **values})
    if not isinstance(times, list) or len(times) != 3:
        raise ValueError("expected three times: median, 20th and 80th percentile, in ms")
    if all(time == float("inf") for time in times):
        return ForeignResult(config, Outcome.CONSTRAINT, _FAILED)
    middle, low, high = (latency_of(time, 1e-3) for time in times)
    if not low <= middle <= high:
        raise ValueError(f"its times {times!r:.60} are not median, 20th and 80th percentile")
    return ForeignResult(config, Outcome.OK, None, middle)


def _usual(name: str, results: list[ForeignResult]) -> bool:
    return name in _LAUNCH and {result.config[name] for result in results} <= {_NOT_GIVEN, _LAUNCH[name]}
