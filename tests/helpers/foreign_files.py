"""Results files in the formats of other tuners."""

import json
from typing import Any

Entry = dict[str, Any]


def cache(*entries: Entry, closed: bool = True, **header: Any) -> str:
    """Return a cache in Kernel Tuner's format: an unindented header, and one line per entry."""
    usual = {
        "device_name": "NVIDIA GeForce RTX 3090", "kernel_name": "vector_add", "problem_size": [1000, 1000],
        "tune_params_keys": ["bx", "tile"], "tune_params": {"bx": [32, 64, 128], "tile": [1, 2]}, "objective": "time",
    }  # fmt: skip
    begun = json.dumps(usual | header | {"cache": {}}, indent="")[:-3]
    lines = [json.dumps({f"{entry.get('bx')},{entry.get('tile')}": entry})[1:-1] for entry in entries]
    text = begun + "".join(f"\n{line}," for line in lines)
    return text.removesuffix(",") + "}\n}" if closed else text


def entry(**arguments: Any) -> Entry:
    usual = {"bx": 32, "tile": 1, "time": 0.5, "times": [0.4, 0.5, 0.6], "timestamp": "2024-05-01 12:00:00+00:00"}
    return usual | arguments


def result(**arguments: Any) -> Entry:
    usual = {
        "timestamp": "2024-05-01 12:00:00+00:00", "configuration": {"bx": 32, "tile": 1},
        "times": {"compilation": 900.0, "runtimes": [0.4, 0.5, 0.6]}, "invalidity": "correct", "correctness": 1,
        "measurements": [{"name": "time", "value": 0.5, "unit": ""}], "objectives": ["time"],
    }  # fmt: skip
    return usual | arguments


def document(*results: Entry, **arguments: Any) -> Entry:
    return {"metadata": {"timeunit": "milliseconds"}, "results": list(results), "schema_version": "1.0.0"} | arguments
