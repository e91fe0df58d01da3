"""`kernrec list`: list the GPUs, operators and kernels that kernrec knows."""

from collections.abc import Callable
from typing import Annotated, Any

from kernrec.cli import options
from kernrec.cli.options import argument
from kernrec.cli.output import (
    Form,
    in_terminal,
    plain_text,
    print_csv,
    print_json,
    print_notes,
    print_table_as,
    text_columns,
)
from kernrec.errors import UsageError, unknown
from kernrec.util.human import human

_UNITS = {
    "boost_clock_hz": "boost",
    "memory_bytes": "memory",
    "memory_bandwidth": "bandwidth",
    "l2_bytes": "l2",
    "tdp_w": "power",
}
"""Headings of columns whose cells contain the unit, keyed by the name of the figure."""


class ListOptions(options.Options):
    databases_used = options.OWN
    kind: Annotated[str, argument("What to list: gpus, ops or kernels.", "gpus|ops|kernels")]
    gpu: Annotated[str, argument("GPU to print as a .toml file, a start for your own.", "[GPU]")] = ""
    printed: options.Printed


@options.takes(ListOptions)
def list_known(wanted: ListOptions) -> None:
    """List the GPUs, operators or kernels that kernrec knows.

    In the list of GPUs, "baselines" in the column "predicted" marks GPUs older than sm_75, for which only baselines are
    predicted. In the list of operators, "codes" explains dimensions whose values are codes, such as the activation.
    "baselines" lists data types that only baselines support.
    """
    if wanted.kind not in _KINDS:
        raise unknown("list", wanted.kind, _KINDS)
    if wanted.gpu:
        from kernrec.gpu import find_gpu
        from kernrec.gpu.gpu_file import gpu_text

        if wanted.kind != "gpus":
            raise UsageError(f"unexpected argument {wanted.gpu!r:.60}; only `kernrec list gpus` takes a name")
        print(gpu_text(find_gpu(wanted.gpu), "my-gpu"), end="")
        return
    _KINDS[wanted.kind](wanted.printed.form)


def _list_gpus(form: Form) -> None:
    from kernrec.gpu import all_gpus

    figures = ("name", "title", "sm", "sms", "boost_clock_hz", "memory_bytes", "memory_bandwidth", "l2_bytes", "tdp_w")
    _list(
        [
            {name: getattr(gpu, name) for name in figures}
            | {"power_limits": f"{gpu.power_min_w:g} to {gpu.power_max_w:g} W{' assumed' * gpu.power_range_assumed}"}
            | {"predicted": "baselines" if gpu.baselines_only else "kernels, baselines", "aliases": list(gpu.aliases)}
            for gpu in all_gpus()
        ],
        {
            "boost_clock_hz": lambda v: human(v, "Hz"),
            "memory_bytes": lambda v: f"{v / 2**30:.0f} GiB",
            "memory_bandwidth": lambda v: human(v, "B/s"),
            "l2_bytes": lambda v: f"{v / 2**20:.3g} MiB",
            "tdp_w": lambda v: f"{v:g} W",
            "predicted": lambda v: "all" if "," in v else v,
        },
        ("name", "sm", "sms", "boost_clock_hz", "memory_bytes", "memory_bandwidth", "tdp_w", "predicted"),
        form,
    )


def _list_ops(form: Form) -> None:
    from kernrec.kernel import kernels_for
    from kernrec.op import all_ops
    from kernrec.recommender.baseline_notes import recorded_dtypes
    from kernrec.recommender.estimate.model_store import ModelStore

    models = ModelStore.beside([])
    _list(
        [
            {
                "name": op.name,
                "aliases": list(op.aliases),
                "dimensions": [d.name if d.default is None else f"{d.name}={d.default}" for d in op.dims],
                "codes": {d.name: d.meaning for d in op.dims if d.maximum < 10},
                "dtypes": [dtype for dtype in op.dtypes if kernels_for(op.name, dtype)],
                "baselines": recorded_dtypes(models, op),
                "layouts": list(op.layouts),
                "workload": op.workload,
                "title": op.title,
            }
            for op in all_ops()
        ],
        {"codes": lambda v: "; ".join(f"{name} {meaning}" for name, meaning in v.items())},
        ("name", "dimensions", "dtypes", "baselines", "layouts"),
        form,
    )


def _list_kernels(form: Form) -> None:
    from kernrec.kernel import all_kernels
    from kernrec.kernel.library import triton_kernels

    _list(
        [
            {
                "name": kernel.name,
                "op": kernel.op,
                "dtypes": list(kernel.dtypes),
                "layouts": list(kernel.layouts),
                "min_sm": kernel.min_sm,
                "dtype_min_sm": dict(kernel.dtype_min_sm),
                "hash": kernel.hash,
                "tunables": {t.name: list(t.values) for t in kernel.tunables},
                "description": kernel.description,
            }
            for kernel in (*all_kernels(), *triton_kernels())
        ],
        {
            "dtype_min_sm": lambda v: " ".join(f"{dtype}={sm}" for dtype, sm in v.items()),
            "tunables": lambda v: " ".join(f"{name}={','.join(map(str, values))}" for name, values in v.items()),
        },
        ("name", "dtypes", "layouts", "min_sm"),
        form,
    )


def _list(
    rows: list[dict[str, Any]], formats: dict[str, Callable[[Any], str]], shown: tuple[str, ...], form: Form
) -> None:
    """Print a list as a table with the columns in `shown`, or in another format with all columns."""
    if form is Form.JSON:
        print_json(rows)
        return
    if form is Form.CSV:
        print_csv(rows)
        return
    names = tuple(rows[0]) if form is not Form.TABLE else shown
    numbers = {name for name in names if isinstance(rows[0][name], int | float)}
    headings = [_UNITS.get(name, name).replace("_", " ") for name in names]
    cells = [[formats.get(name, plain_text)(row[name]) for name in names] for row in rows]
    aligned = ["right" if name in numbers else "left" for name in names]
    print_table_as(form, None, text_columns(list(zip(headings, aligned, strict=True)), cells))
    others = [_UNITS.get(name, name).replace("_", " ") for name in rows[0] if name not in names]
    if in_terminal() and others:
        print_notes([f"--format wide also prints {', '.join(others[:-1])} and {others[-1]}"])


_KINDS: dict[str, Callable[[Form], None]] = {"gpus": _list_gpus, "ops": _list_ops, "kernels": _list_kernels}
