"""Inductor's autotune log: what `torch.compile(mode="max-autotune")` prints on standard error of each product.

    AUTOTUNE mm(128x4096, 4096x12288)
    strides: [4096, 1], [1, 4096]
    dtypes: torch.float16, torch.float16
      mm 0.0485 ms 100.0%
      triton_mm_18 0.0494 ms 98.2% ACC_TYPE='tl.float32', BLOCK_K=64, BLOCK_M=128, BLOCK_N=64, num_warps=8

It shows the ten fastest choices, or TORCHINDUCTOR_AUTOTUNE_NUM_CHOICES_DISPLAYED. Choices without tunables, such as
cuBLAS's, are left out, and so are ops without a counterpart here. The card is not in it. Other lines are ignored, and
what a program's logger puts before these.
"""

import re
from ast import literal_eval
from collections import Counter
from collections.abc import Iterator

from kernrec.errors import UsageError
from kernrec.interop.json_document import TextFile
from kernrec.interop.repeated_rows import as_runs
from kernrec.interop.results import ForeignResult, ForeignResults, ReadOptions, StatedProblem, config_of, latency_of
from kernrec.store.measurement import Outcome
from kernrec.util.human import counted

TOOL = "Inductor"
_SIZE = r"\d{1,12}(?:x\d{1,12}){0,7}"
AUTOTUNE = re.compile(rf"\bAUTOTUNE (\w{{1,80}})\(({_SIZE}(?:, {_SIZE}){{0,7}})\)")

_STRIDES = re.compile(r"\bstrides: ((?:\[[\d, ]{1,80}\](?:, )?){1,8})")
_DTYPES = re.compile(r"\bdtypes: ((?:torch\.\w{1,30}(?:, )?){1,8})")
_CHOICE = re.compile(
    r"\s(\w{1,120}) (\d{1,12}\.\d{1,8}|inf) ms (?:[\d.]{1,8}%|<DIVIDED BY ZERO ERROR>)(?: (.{1,4000}))?$"
)
_TUNABLE = re.compile(r"(\w{1,80})=('[^']{0,100}'|[\w.+-]{1,100})(?:, |\s*$)")
_NUMBER = re.compile(r"_\d+$")
_NAMES = {"torch.float16": "f16", "torch.bfloat16": "bf16", "torch.float32": "f32"}
_FAILED = "Inductor could not compile or launch it"
_Sizes = list[tuple[int, ...]]


def read_inductor(file: TextFile, options: ReadOptions) -> ForeignResults:
    """A result for each choice with tunables; errors as of `read_results.Format`."""
    results: list[ForeignResult] = []
    left: Counter[str] = Counter()
    blocks = list(AUTOTUNE.finditer(file.text))
    for match, after in zip(blocks, [*blocks[1:], None], strict=True):
        lines = file.text[match.end() : after.start() if after else None].splitlines()
        problem = _problem(match[1], match[2], lines)
        for name, time, tunables in _choices(lines):
            if problem is None:
                left[match[1]] += 1
            elif tunables is None:
                left[_NUMBER.sub("", name)] += 1
            else:
                results.append(_result(name, time, tunables, problem))
    if not results:
        listed = ", ".join(sorted(left)) or "none"
        raise ValueError(f"it has no choice with tunables of a product (choices: {listed:.200})")
    notes = []
    if left:
        listed = ", ".join(f"{count} {name}" for name, count in left.most_common(6))
        notes.append(f"left out: {counted(left.total(), 'choice')} without tunables, or of other ops ({listed})")
    return ForeignResults(TOOL, None, None, as_runs(results), notes=tuple(notes))


def _choices(lines: list[str]) -> Iterator[tuple[str, str, str | None]]:
    """(name, milliseconds, tunables) of the choices of a block."""
    for line in lines:
        if "AUTOTUNE benchmarking takes" in line or "AUTOTUNE takes" in line:
            return
        if match := _CHOICE.search(f" {line.rstrip()}"):
            yield match[1], match[2], match[3] if match[3] and "=" in match[3] else None


def _problem(name: str, sizes: str, lines: list[str]) -> StatedProblem | None:
    """The matrix product of a block; None for another op, and where its operands are no plain matrices."""
    head = "\n".join(lines[:4])
    shapes: _Sizes = [tuple(map(int, size.split("x"))) for size in sizes.split(", ") if size]
    match, types = _STRIDES.search(head), _DTYPES.search(head)
    strides: _Sizes = [
        tuple(int(number) for number in part.split(","))
        for part in re.findall(r"\[([\d, ]+)\]", match[1] if match else "")
    ]
    dtypes = re.findall(r"torch\.\w+", types[1]) if types else []
    bias = name == "addmm"
    if bias:
        if not strides or strides[0][:-1] != (0,) * (len(strides[0]) - 1):
            return None  # a matrix is added
        shapes, strides, dtypes = shapes[1:], strides[1:], dtypes[1:]
    if name not in ("mm", "bmm", "addmm") or [len(shape) for shape in shapes] != [3 if name == "bmm" else 2] * 2:
        return None
    if len(set(dtypes)) > 1 or any(dtype not in _NAMES for dtype in dtypes):
        return None
    (*batch, m, k), (*_, n) = shapes
    layout = _layout(strides, m, n, k)
    if layout is None and strides:
        return None
    dims = [("m", m), ("n", n), ("k", k), *(("batch", count) for count in batch if count > 1)]
    dtype = _NAMES[dtypes[0]] if dtypes else None
    return StatedProblem("matmul", tuple(dims + [("bias", 1)] * bias), dtype, layout)


def _layout(strides: _Sizes, m: int, n: int, k: int) -> str | None:
    """Which operands lie transposed, from their strides; None where one is neither, or nothing is stated."""
    letters = ""
    for stride, rows, columns in zip(strides, (m, k), (k, n), strict=False):
        if stride[-2:] == (columns, 1):
            letters += "n"
        elif stride[-2:] == (1, rows):
            letters += "t"
    return letters if len(letters) == 2 else None


def _result(name: str, time: str, tunables: str, problem: StatedProblem) -> ForeignResult:
    if _TUNABLE.sub("", tunables).strip():
        raise ValueError(f"choice {name} has tunables {tunables[:60]!r}; NAME=VALUE, ... is expected")
    values = {}
    for key, text in _TUNABLE.findall(tunables):
        try:
            values[key] = literal_eval(text)
        except (ValueError, SyntaxError):
            values[key] = text
        values[key] = str(values[key]) if values[key] is None else values[key]
    kernel = _NUMBER.sub("", name)
    if problem.dtype == "f32" and values.get("ALLOW_TF32") is True:
        problem = StatedProblem(problem.op, problem.dims, "tf32", problem.layout)
    try:
        config = config_of(values)
        if time == "inf":
            return ForeignResult(config, Outcome.CONSTRAINT, _FAILED, problem=problem, kernel=kernel)
        return ForeignResult(config, Outcome.OK, None, latency_of(float(time), 1e-3), problem=problem, kernel=kernel)
    except (ValueError, UsageError) as error:
        raise ValueError(f"choice {name}: {error}") from None
