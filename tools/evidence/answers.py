"""Do two versions of kernrec answer alike? Random queries over all ops and commands, asked of both.

    git worktree add ../before main && python tools/evidence answers ../before [--queries 1000] [--seed 0]

Both versions get the same databases, made by the version before: none, one with measured configs and analyzed kernels,
and one with a trained model beside it (where XGBoost is installed). A query is a command line with `--json`; it is
answered in one process for each version. Numbers have to be equal to the last bit. Texts (notes, error messages) may be
reworded: those that differ are counted, and a few are shown. Of choices whose costs are equal to the last bit either
may come first: such ties are counted too. `--renamed old=new` says that a key of the JSON has another name now. Exits 1
where a number, a choice or an exit status differs.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from front import ROOT
from json_differences import json_differences

OWN_SOURCE = """
extern "C" __global__ void NAME(const float* x, float* y, int width) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        for (int j = 0; j < UNROLL; j++) sum += x[(size_t) blockIdx.x * width * STRIDE + i * STRIDE] * j;
    extern __shared__ float part[];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int step = blockDim.x / 2; step; step /= 2) {
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}
"""
OWN_SPEC = """
name = "NAME"
source = "NAME.cu"
[problem]
dims = { rows = 65536, width = 512 }
[problem.tensors]
x = { shape = ["rows", "width", "8"] }
y = { shape = ["rows"], role = "output" }
[tunables]
threads = { values = [32, 64, 128, 256, 512] }
stride = { values = [1, 8] }
unroll = { values = [1, 4] }
[[launch]]
entry = "NAME"
grid = ["rows"]
block = ["threads"]
shared = "4 * threads"
arguments = ["x", "y", "i32 width"]
"""
OWN = ("rowsum", "rowdot")
FOLDER = "FOLDER"
"""Stands for the folder of the databases in a query's arguments."""

Query = dict[str, Any]
"""`arguments` of the command and the `database` that it is asked of, a file name."""

_SHOWN = 12
_TEXTS = ("notes", "calibration", "models", "analysis_s", "profiled", "cached", "database")
"""Keys whose values are texts, or depend on when a query is asked."""
_GPUS = ("rtx4090", "h200-sxm", "a100-sxm4-80gb", "t4", "rtx3090", "l40s", "v100-sxm2-16gb", "rtx5090", "rtx2080ti")
_SIZES = (1, 7, 64, 96, 128, 256, 384, 512, 768, 1000, 1024, 2048, 3072, 4096, 6144, 8192)

_ANSWER = """
import contextlib, io, json, sys
from kernrec.cli.app import run

for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = run(json.loads(line))
        except SystemExit as end:
            status = end.code
        except Exception as error:
            status = f"{type(error).__name__}: {error}"
    print(json.dumps([status, out.getvalue(), err.getvalue()]), flush=True)
"""

_MEASURE = """
import json, math, random, sys

import kernrec
from kernrec.op import find_op
from kernrec.store import Database
from kernrec.store.measurement import Measurement

path, wanted = sys.argv[1], json.load(sys.stdin)
draw = random.Random(7)
with Database.open(path, read_only=False, create=True) as database:
    for op, gpu, dtype, dims, limit_w in wanted:
        answer = kernrec.recommend(op, gpu, dtype=dtype, objective="latency", top=60, power_limit_w=limit_w, **dims)
        rows = []
        for choice in answer.choices:
            times = math.exp(0.2 * math.sin(sum(choice.config.values())) + draw.gauss(0.0, 0.02))
            row = {
                "gpu": answer.gpu.name, "protocol_version": 1, "tier": "final", "session": "s",
                "measured_at": "2026-01-01", "problem": find_op(op).problem(dtype, None, **dims),
                "power_limit_w": limit_w, "kernel": choice.kernel.name, "kernel_hash": choice.kernel.hash,
                "config": dict(choice.config), "outcome": "ok", "latency_s": choice.latency_s.value * times,
                "energy_j": choice.energy_j.value * times * 1.1,
            }
            if draw.random() < 0.1:
                row |= {"outcome": "incorrect", "latency_s": None, "energy_j": None}
            rows.append(row)
        database.add_measurements(map(Measurement.from_columns, rows))
"""


Answer = tuple[Any, str, str]
"""Exit status, standard output, standard error."""


def run(
    before: Annotated[Path, typer.Argument(help="a checkout of the version to compare with")],
    queries: int = 1000,
    seed: int = 0,
    renamed: Annotated[list[str] | None, typer.Option(help="OLD=NEW: a key with a new name")] = None,
    databases: Annotated[Path | None, typer.Option(help="folder that keeps the databases for the next time")] = None,
) -> int:
    """Ask both versions and print what differs."""
    new_names = dict(pair.split("=", 1) for pair in renamed or ())
    with tempfile.TemporaryDirectory() as name:
        folder = databases or Path(name)
        names = prepare(before, folder)
        queried = random_queries(queries, random.Random(seed), names)
        old_answers, new_answers = (answers(tree, folder, queried) for tree in (before, ROOT))
    texts, faults, ties = [], [], 0
    for query, old, new in zip(queried, old_answers, new_answers, strict=True):
        if changes := differences(old, new, new_names):
            tied = all(_OF_CONFIG.search(line) for line in changes) and _costs(old) == _costs(new)
            ties += tied
            faults += [] if tied else [(query, changes)]
        elif old[2] != new[2]:
            texts.append((query, old[2], new[2]))
    for query, changes in faults[:_SHOWN]:
        print("DIFFERS", *query["arguments"], f"[{query['database']}]", *(f"\n    {line}" for line in changes[:5]))
    for query, *both in texts[:3]:
        print("REWORDED", *query["arguments"], *(f"\n    {text.strip()[:300]}" for text in both))
    kinds = Counter(query["arguments"][0] for query in queried)
    answered = sum(old[0] == 0 for old in old_answers)
    print(f"{len(queried)} queries ({dict(kinds)}), {answered} answered, the others refused by both or reported above")
    print(f"{len(faults)} differ; {ties} name other configs of equal cost; {len(texts)} differ in their wording alone")
    return 1 if faults else 0


def prepare(tree: Path, folder: Path) -> list[str]:
    """Makes the databases with the version in `tree`; their names."""
    made = folder / "made.json"
    if made.exists():
        return list(json.loads(made.read_text()))
    measured = folder / "measured" / "own.duckdb"
    measured.parent.mkdir(parents=True)
    wanted = [
        ["matmul", "rtx4090", "f32", {"m": 1024, "n": 1024, "k": 1024}, None],
        ["matmul", "rtx4090", "f32", {"m": 4096, "n": 512, "k": 768}, None],
        ["matmul", "rtx4090", "f32", {"m": 4096, "n": 512, "k": 768}, 250.0],
        ["matmul", "h200-sxm", "f16", {"m": 4096, "n": 4096, "k": 1024}, None],
        ["softmax", "a100-sxm4-80gb", "f32", {"rows": 4096, "columns": 1024}, None],
        ["matvec", "t4", "f32", {"m": 4096, "k": 1024}, None],
    ]
    _run(tree, folder, ["-c", _MEASURE, str(measured)], json.dumps(wanted))
    for name in OWN:
        source, spec = folder / f"{name}.cu", folder / f"{name}.toml"
        source.write_text(OWN_SOURCE.replace("NAME", name))
        spec.write_text(OWN_SPEC.replace("NAME", name))
        for gpu in ("rtx4090", "a100"):
            _run(tree, folder, ["-m", "kernrec", "analyze", source, "--spec", spec, "--gpu", gpu, "--db", measured])
    trained = folder / "trained" / "own.duckdb"
    trained.parent.mkdir()
    shutil.copy(measured, trained)
    names = ["", "measured", "trained"]
    try:
        _run(tree, folder, ["-m", "kernrec", "train", "--op", "matmul", "--db", trained])
    except subprocess.CalledProcessError as error:
        print("no model:", error.stderr.strip().splitlines()[-1])
        names.remove("trained")
    made.write_text(json.dumps(names))
    return names


def answers(tree: Path, folder: Path, queries: Sequence[Query]) -> list[Answer]:
    """(exit status, standard output, standard error) of each query, by the version in `tree`."""
    copy = Path(tempfile.mkdtemp(dir=folder))
    for name in ("measured", "trained"):
        if (folder / name).is_dir():
            shutil.copytree(folder / name, copy / name)
    (copy / "none").mkdir()

    def arguments(query: Query) -> list[str]:
        database = ["--db", str(copy / query["database"] / "own.duckdb")] if query["database"] else []
        return [argument.replace(FOLDER, str(folder)) for argument in query["arguments"]] + database

    lines = "\n".join(json.dumps(arguments(query)) for query in queries) + "\n"
    done = _run(tree, copy, ["-c", _ANSWER], lines)
    return [tuple(json.loads(line)) for line in done.splitlines()]


def differences(old: Answer, new: Answer, renamed: Mapping[str, str]) -> list[str]:
    """The differences between two answers, in words; wording aside."""
    if old[0] != new[0]:
        return [f"exit status {old[0]!r}, now {new[0]!r}: {new[2].strip()[-300:]}"]
    if not old[1].strip() or not new[1].strip():
        return [] if old[1].strip() == new[1].strip() else ["one of them printed nothing"]
    both = json.loads(old[1]), json.loads(new[1])
    return list(json_differences(*both, renamed=renamed, skipped=_TEXTS, added=False))


_OF_CONFIG = re.compile(r"choices\[\d+\]\.(config|launches|kernel_hash|occupancy|bottleneck)\b")
"""Fields in which two configs of equal cost may differ."""


def _costs(answer: Answer) -> list[tuple[float, float]]:
    layers = json.loads(answer[1])
    choices = [choice for layer in layers.get("layers", [layers]) for choice in layer.get("choices", [])]
    return [(choice["latency_s"], choice["energy_j"]) for choice in choices]


def _run(tree: Path, folder: Path, arguments: Sequence[object], typed: str = "") -> str:
    """Standard output of a Python process that imports the version in `tree`; no database or cache of the user's."""
    own = {"PYTHONPATH": str(tree.resolve()), "XDG_DATA_HOME": str(folder / "data"), "COLUMNS": "120"}
    environment = {name: value for name, value in os.environ.items() if name != "KERNREC_DB"} | own
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, input=typed, capture_output=True, text=True, check=False, env=environment, cwd=tree)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        done.check_returncode()
    return done.stdout


_KERNELS = (
    ("matmul_simt", "m=1024,n=1024,k=1024"), ("matmul_simt", "m=4096,n=512,k=768"),
    ("softmax_rows", "rows=4096,columns=1024"), ("matvec_rows", "m=4096,k=1024"),
    ("transpose_tiled", "rows=1000,columns=513"),
)  # fmt: skip
_MEASURED = (
    ("matmul", "rtx4090", "m=1024,n=1024,k=1024", "f32"), ("matmul", "rtx4090", "m=4096,n=512,k=768", "f32"),
    ("matmul", "h200", "m=4096,n=4096,k=1024", "f16"), ("softmax", "a100", "rows=4096,columns=1024", "f32"),
    ("matvec", "t4", "m=4096,k=1024", "f32"),
)  # fmt: skip
"""Problems of which the databases hold measurements."""


def random_queries(count: int, draw: random.Random, databases: Sequence[str]) -> list[Query]:
    """So many queries over all ops and commands; the same for the same seed."""
    makers = [(_recommend, 60), (_workload, 3), (_kernel, 10), (_explain, 20), (_analyze, 2)]
    chosen = draw.choices([maker for maker, _ in makers], [weight for _, weight in makers], k=count)
    return [make(draw, draw.choice(databases)) for make in chosen]


def _recommend(draw: random.Random, database: str) -> Query:
    arguments = ["recommend", "--json", *_problem(draw, bool(database)), *_goal(draw)]
    if draw.random() < 0.3:
        arguments += ["--power-limit", f"{draw.choice([100, 150, 200, 250, 300, 400])}W"]
    if draw.random() < 0.15:
        arguments += ["--clock", f"{draw.choice([900, 1200, 1410, 1700])}MHz"]
    if draw.random() < 0.2:
        arguments += ["--max-slowdown", f"{draw.choice([0, 3, 10])}%"]
    if draw.random() < 0.1:
        arguments += ["--max-power", f"{draw.choice([80, 150, 300])}W"]
    return {"arguments": arguments, "database": database}


def _workload(draw: random.Random, database: str) -> Query:
    op, workload = draw.choice([("conv", "resnet50"), ("matmul", "bert-base"), ("conv", "vgg16"), ("softmax", "gpt2")])
    arguments = ["recommend", "--json", "--op", op, "--workload", workload, "--gpu", draw.choice(_GPUS), *_goal(draw)]
    return {"arguments": arguments, "database": database}


def _own(draw: random.Random) -> list[str]:
    return ["--kernel", draw.choice(OWN), "--gpu", draw.choice(["rtx4090", "l40s", "a100"])]


def _of_library(draw: random.Random) -> list[str]:
    kernel, shape = draw.choice(_KERNELS)
    return ["--kernel", kernel, "--shape", shape, "--gpu", draw.choice(["rtx4090", "a100", "t4"])]


def _kernel(draw: random.Random, database: str) -> Query:
    which = _own(draw) if database and draw.random() < 0.6 else _of_library(draw)
    arguments = ["recommend", "--json", *which, *_goal(draw)]
    if draw.random() < 0.3:
        arguments += ["--power-limit", f"{draw.choice([100, 250, 300])}W"]
    return {"arguments": arguments, "database": database}


def _explain(draw: random.Random, database: str) -> Query:
    if draw.random() < 0.5:
        which = _problem(draw, bool(database))
    else:
        which = _own(draw) if database and draw.random() < 0.5 else _of_library(draw)
    objective = draw.choice(["latency", "energy", "edp"])
    arguments = ["explain", "--json", *which, "--objective", objective]
    if draw.random() < 0.3:
        arguments += ["--power-limit", f"{draw.choice([150, 250, 300])}W"]
    if "matmul_simt" in which and draw.random() < 0.5:
        arguments += ["--against", "block_m=64"]
    return {"arguments": arguments, "database": database}


def _analyze(draw: random.Random, database: str) -> Query:
    name = draw.choice(OWN)
    arguments = ["analyze", "--json", f"{FOLDER}/{name}.cu", "--spec", f"{FOLDER}/{name}.toml", "--gpu", "rtx4090"]
    arguments += _goal(draw)
    return {"arguments": arguments, "database": database or "measured"}


def _goal(draw: random.Random) -> list[str]:
    objective = draw.choice(["pareto", "latency", "energy", "edp"])
    return ["--objective", objective, "--top", str(draw.choice([1, 3, 5, 40]))]


def _problem(draw: random.Random, measured: bool) -> list[str]:
    """An op, a shape, a GPU, and mostly a dtype and a layout; some are such that nothing can run them."""
    if measured and draw.random() < 0.4:
        op, gpu, shape, dtype = draw.choice(_MEASURED)
        return ["--op", op, "--gpu", gpu, "--shape", shape, "--dtype", dtype]
    op = draw.choice(list(_SHAPES))
    dims, dtypes, layouts = _SHAPES[op](draw)
    shape = ",".join(f"{name}={value}" for name, value in dims.items())
    arguments = ["--op", op, "--gpu", draw.choice(_GPUS), "--shape", shape]
    arguments += ["--dtype", draw.choice(dtypes)]
    if layouts and draw.random() < 0.5:
        arguments += ["--layout", draw.choice(layouts)]
    return arguments


_FLOATS = ("f32", "f16", "bf16")
_Made = tuple[dict[str, int], Sequence[str], Sequence[str]]
"""Dimensions, and the dtypes and layouts to draw from."""


def _matmul(draw: random.Random) -> _Made:
    dims = {name: draw.choice(_SIZES) + draw.choice([0, 0, 8]) for name in "mnk"}
    if draw.random() < 0.3:
        dims |= {"bias": 1, "activation": draw.choice([0, 1, 2, 3])}
    return dims, (*_FLOATS, "tf32"), ("nn", "nt", "tn", "tt")


def _matvec(draw: random.Random) -> _Made:
    return {"m": draw.choice(_SIZES), "k": draw.choice(_SIZES)}, _FLOATS, ()


def _rows(draw: random.Random) -> _Made:
    return {"rows": draw.choice(_SIZES), "columns": draw.choice(_SIZES)}, _FLOATS, ()


def _elementwise(draw: random.Random) -> _Made:
    return {"n": draw.choice(_SIZES) * 1000}, _FLOATS, ()


def _conv2d(draw: random.Random) -> _Made:
    side, kernel = draw.choice([7, 14, 28, 56, 112]), draw.choice([1, 3, 5])
    channels = draw.choice([3, 32, 64, 128, 256])
    dims = {"n": draw.randint(1, 32), "c": channels, "h": side, "w": side, "k": draw.choice([32, 64, 256])}
    dims |= {"r": kernel, "s": kernel, "stride": draw.choice([1, 2]), "padding": kernel // 2}
    if channels > 3 and draw.random() < 0.2:
        dims |= {"k": channels, "groups": channels}
    return dims, _FLOATS, ("nchw", "nhwc")


def _attention(draw: random.Random) -> _Made:
    heads, keys = draw.choice([8, 12, 32]), draw.randint(64, 4096)
    dims = {"batch": draw.randint(1, 4), "heads": heads, "kv_heads": draw.choice([heads, heads // 4])}
    dims |= {"queries": draw.choice([1, keys]), "keys": keys, "head_dim": draw.choice([64, 80, 128])}
    return dims | {"causal": draw.choice([0, 1])}, _FLOATS, ()


_SHAPES: Mapping[str, Callable[[random.Random], _Made]] = {
    "matmul": _matmul, "matvec": _matvec, "conv2d": _conv2d, "attention": _attention, "softmax": _rows,
    "layernorm": _rows, "rmsnorm": _rows, "reduce": _rows, "transpose": _rows, "elementwise": _elementwise,
}  # fmt: skip
