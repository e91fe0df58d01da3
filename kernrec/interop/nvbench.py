"""nvbench's JSON (`--json results.json`), schema 1.0 as of 2022 to 2026.

    {"meta": {"version": {"json": {"major": 1}}}, "devices": [{"id": 0, "name": "Quadro GV100"}], "benchmarks": [
     {"name": "copy", "states": [{"device": 0, "axis_values": [{"name": "BlockSize", "type": "int64", "value": "64"}],
      "summaries": [{"tag": "nv/cold/time/gpu/mean", "data": [{"name": "value", "value": "0.0064"}]}],
      "is_skipped": false}]}]}

A state is a config. Its axes are the tunables, but for those named like a dimension of the problem, which say what was
measured. The time is that of isolated launches with a cold L2 cache, in seconds.
"""

from collections.abc import Mapping
from typing import Any

from kernrec.errors import UsageError, fold
from kernrec.gpu import find_gpu
from kernrec.gpu.find import UnknownGPU
from kernrec.interop.json_document import TextFile, finite, numbered
from kernrec.interop.results import (
    ForeignResult,
    ForeignResults,
    ReadOptions,
    StatedProblem,
    config_of,
    latency_of,
    of_kernels,
    text_of,
)
from kernrec.store.measurement import Outcome

TOOL = "nvbench"
_MAJOR = 1
_TIME = "nv/cold/time/gpu/mean"


def read_nvbench(file: TextFile, options: ReadOptions) -> ForeignResults:
    """The results of one benchmark on one device; errors as of `read_results.Format`."""
    document = file.document()
    try:
        major = document["meta"]["version"]["json"]["major"]
    except (KeyError, TypeError):
        major = None
    if major != _MAJOR:
        raise ValueError(f"it has schema {major!r:.20} of nvbench's JSON; {_MAJOR} is supported")
    benchmarks = {text_of(each.get("name"), "name of a benchmark"): each for each in _objects(document, "benchmarks")}
    name = of_kernels(benchmarks, options, "benchmark")
    states = _objects(benchmarks[name], "states")
    devices = {each.get("id"): text_of(each.get("name"), "name of a device") for each in _objects(document, "devices")}
    number, device = _device(states, devices, options)
    mine = [state for state in states if state.get("device") == number]
    dims = {dim.casefold(): dim for dim in options.dims}
    read = numbered(mine, lambda state: _result(state, dims), "state")
    results = [result for result in read if result is not None]
    return ForeignResults(TOOL, device, name, results, not_run=len(read) - len(results))


def _objects(parent: Mapping[str, Any], member: str) -> list[dict[str, Any]]:
    values = parent.get(member)
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ValueError(f"{member} is not a list of objects")
    return values


def _device(states: list[dict[str, Any]], devices: Mapping[Any, str], options: ReadOptions) -> tuple[Any, str | None]:
    """(number, name) of the device whose states are read."""
    numbers = {n: devices.get(n) for state in states if isinstance(n := state.get("device"), int)}
    if len(set(numbers.values())) > 1:
        for number, name in numbers.items():
            if options.gpu and name and _same(name, options.gpu):
                return number, name
        listed = ", ".join(str(name) for name in numbers.values())
        raise UsageError(f"it has results of several devices ({listed:.200}); say which one with --gpu")
    return next(iter(numbers.items()), (None, None))


def _same(name: str, wanted: str) -> bool:
    try:
        return find_gpu(name) == find_gpu(wanted)
    except UnknownGPU:
        return fold(name) == fold(wanted)


def _result(state: Mapping[str, Any], dims: Mapping[str, str]) -> ForeignResult | None:
    """The result of a state; None for one that was skipped."""
    if state.get("is_skipped"):
        return None
    axes = {text_of(each.get("name"), "name of an axis"): _value(each) for each in _objects(state, "axis_values")}
    problem = StatedProblem(dims=tuple((dims[k.casefold()], v) for k, v in axes.items() if k.casefold() in dims))
    if wrong := next((name for name, value in problem.dims if not isinstance(value, int)), None):
        raise ValueError(f"axis {wrong} is no whole number, and is named like a dimension of the problem")
    config = config_of({name: value for name, value in axes.items() if name.casefold() not in dims})
    for each in _objects(state, "summaries"):
        if each.get("tag") == _TIME:
            values = {value.get("name"): value for value in _objects(each, "data")}
            latency_s = latency_of(finite(_value({"type": "float64"} | values.get("value", {})), _TIME), 1.0)
            return ForeignResult(config, Outcome.OK, None, latency_s, problem=problem)
    raise ValueError(f"it lacks {_TIME}, the time of isolated launches")


def _value(entry: Mapping[str, Any]) -> Any:
    """The value of an entry; numbers are written as text."""
    value, kind = entry.get("value"), entry.get("type")
    if not isinstance(value, str) or kind not in ("int64", "float64"):
        return value
    try:
        if len(value) > 40:
            raise ValueError
        return int(value) if kind == "int64" else float(value)
    except ValueError:
        raise ValueError(f"{value!r:.40} is not a number of type {kind}") from None
