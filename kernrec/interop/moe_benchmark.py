"""Read the output of vLLM's and SGLang's benchmark of expert layers (`benchmark_moe.py`, `tuning_fused_moe_triton.py`).

    Batch size: 16, config: {'BLOCK_SIZE_M': 16, 'BLOCK_SIZE_N': 64, 'BLOCK_SIZE_K': 128, 'GROUP_SIZE_M': 1}
    Kernel time: 57.11 us

A batch is a number of tokens. The other dimensions and the GPU are missing. Times are means of whole layers, with both
matmuls and the activation between them. With `--tune`, both tools write configs without times (moe_configs.py).
"""

import re
from collections.abc import Iterator

from kernrec.interop.json_document import TextFile, numbered
from kernrec.interop.python_literals import printed_config
from kernrec.interop.repeated_rows import as_runs
from kernrec.interop.results import ForeignResult, ForeignResults, ReadOptions, StatedProblem, latency_of
from kernrec.store.measurement import Outcome

TOOL = "benchmark_moe"
KERNEL = "fused_moe"
TIMED_BATCH = re.compile(r"^.{0,200}?\bBatch size: (\d{1,8}), config: (\{.{1,4000}\})\s*$", re.MULTILINE)
_TIME = re.compile(r"\bKernel time: (\d{1,12}(?:\.\d{1,12})?) us\b")


def read_moe_benchmark(file: TextFile, options: ReadOptions) -> ForeignResults:
    """Return a result for each batch size; errors are those of `read_results.Format`."""
    return ForeignResults(TOOL, None, KERNEL, as_runs(numbered(_timed(file.text), _result, "batch")))


def _timed(text: str) -> Iterator[tuple[str, str, str | None]]:
    """Yield tokens, config, and microseconds or None for each batch; the time precedes the next batch."""
    batches = list(TIMED_BATCH.finditer(text))
    for match, after in zip(batches, [*batches[1:], None], strict=True):
        time = _TIME.search(text, match.end(), after.start() if after else len(text))
        yield match[1], match[2], None if time is None else time[1]


def _result(batch: tuple[str, str, str | None]) -> ForeignResult:
    tokens, config, time_us = batch
    if time_us is None:
        raise ValueError(f"batch size {tokens} has no line such as Kernel time: 57.11 us")
    problem = StatedProblem("moe", (("tokens", int(tokens)),))
    latency_s = latency_of(float(time_us), 1e-6)
    return ForeignResult(printed_config(config), Outcome.OK, None, latency_s, problem=problem)
