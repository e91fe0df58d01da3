"""Convert results of tools that kernrec does not read to a CSV table for `kernrec db import`.

    python examples/results_as_table.py results.json > table.csv    # nvbench --json
    python examples/results_as_table.py run.csv > table.csv         # HELION_AUTOTUNE_LOG=run
    python examples/results_as_table.py train.log > table.csv       # TORCHINDUCTOR_MAX_AUTOTUNE=1, standard error
    python examples/results_as_table.py moe.txt > table.csv         # benchmark_moe.py without --tune

Then `kernrec db import table.csv --kernel k.cu --spec kernel.toml --gpu h100`. Each reader is about ten lines long. You
can write a similar reader for your own tool.
"""

import ast
import csv
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

Row = dict[str, object]


def nvbench(text: str) -> Iterator[Row]:
    """Yield the axes and the mean GPU time of each state of a benchmark."""
    for benchmark in json.loads(text)["benchmarks"]:
        for state in benchmark["states"]:
            for summary in state["summaries"] or ():
                if summary["tag"] == "nv/cold/time/gpu/mean":
                    axes = {axis["name"]: axis["value"] for axis in state["axis_values"]}
                    yield axes | {"time_s": float(summary["data"][0]["value"])}


def helion(text: str) -> Iterator[Row]:
    """Yield the tunables and the time of each config that ran. A list becomes columns such as `block_sizes_0`."""
    for entry in csv.DictReader(text.splitlines()):
        if entry["status"] == "ok":
            call = ast.parse(entry["config"], mode="eval").body
            assert isinstance(call, ast.Call)
            config: Row = {}
            for keyword in call.keywords:
                value = ast.literal_eval(keyword.value)
                parts = {f"{keyword.arg}_{i}": part for i, part in enumerate(value)} if isinstance(value, list) else {}
                config |= parts or {str(keyword.arg): value}
            yield {name: value for name, value in config.items() if type(value) is int} | {"time_ms": entry["perf_ms"]}


def inductor(text: str) -> Iterator[Row]:
    """Yield the tunables and the time of each Triton template."""
    for time, tunables in re.findall(r"^\s*triton_mm_\d+ ([\d.]+) ms [\d.]+% (.+)$", text, re.MULTILINE):
        yield {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", tunables)} | {"time_ms": time}


def experts(text: str) -> Iterator[Row]:
    """Yield the config and the time of each batch size that benchmark_moe of vLLM or SGLang measured."""
    for tokens, config, time in re.findall(r"Batch size: (\d+), config: (\{.*\})\s+Kernel time: ([\d.]+) us", text):
        yield ast.literal_eval(config) | {"tokens": int(tokens), "time_us": time}


def main() -> None:
    """Write the table of the results in the file that the command line names."""
    path = Path(sys.argv[1])
    reader = {".json": nvbench, ".csv": helion, ".txt": experts}.get(path.suffix, inductor)
    rows = list(reader(path.read_text(encoding="utf-8")))
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(sys.stdout, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


if __name__ == "__main__":
    main()
