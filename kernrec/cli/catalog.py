"""`kernrec list`: list the GPUs, operators, kernels and networks that kernrec knows."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from kernrec.cli import options
from kernrec.cli.options import argument
from kernrec.cli.output import Form, print_csv, print_json, print_rows
from kernrec.errors import UsageError, unknown
from kernrec.util.human import human


class ListOptions(options.Options):
    databases_used = options.OWN
    kind: Annotated[str, argument("What to list.", "gpus|ops|kernels|workloads")]
    gpu: Annotated[str, argument("GPU to print as a .toml file, to edit for your own GPU.", "[GPU]")] = ""
    printed: options.Printed


@options.takes(ListOptions)
def list_known(wanted: ListOptions) -> None:
    """List the GPUs, operators, kernels or networks (for --workload) that kernrec knows.

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
    list_rows, shown = _KINDS[wanted.kind]
    rows = list_rows()
    if wanted.printed.form is Form.JSON:
        print_json(rows)
    elif wanted.printed.form is Form.CSV:
        print_csv(rows)
    else:
        if wanted.kind == "gpus":
            rows = [row | _gpu_texts(row) for row in rows]
        print_rows(None, rows, shown)


def _gpus() -> list[dict[str, Any]]:
    from kernrec.gpu import all_gpus

    figures = ("name", "title", "sm", "sms", "boost_clock_hz", "memory_bytes", "memory_bandwidth", "l2_bytes", "tdp_w")
    return [
        {name: getattr(gpu, name) for name in figures}
        | {"power_limits": f"{gpu.power_min_w:g} to {gpu.power_max_w:g} W{' assumed' * gpu.power_range_assumed}"}
        | {"predicted": "baselines" if gpu.baselines_only else "kernels, baselines", "aliases": list(gpu.aliases)}
        for gpu in all_gpus()
    ]


def _ops() -> list[dict[str, Any]]:
    from kernrec.kernel import kernels_for
    from kernrec.op import all_ops
    from kernrec.recommender.baseline_notes import recorded_dtypes
    from kernrec.recommender.estimate.model_store import ModelStore

    models = ModelStore.beside([])
    return [
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
    ]


def _kernels() -> list[dict[str, Any]]:
    from kernrec.kernel import all_kernels
    from kernrec.kernel.library import triton_kernels

    return [
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
    ]


def _workloads() -> list[dict[str, Any]]:
    from kernrec.op.workload import workload, workloads

    figures = ("name", "title", "source", "batch", "ops")
    return [{name: getattr(network, name) for name in figures} for network in map(workload, workloads())]


def _gpu_texts(row: dict[str, Any]) -> dict[str, str]:
    return {
        "boost": human(row["boost_clock_hz"], "Hz"),
        "memory": f"{row['memory_bytes'] / 2**30:.0f} GiB",
        "bandwidth": human(row["memory_bandwidth"], "B/s"),
        "power": f"{row['tdp_w']:g} W",
        "predicted": "all" if "," in row["predicted"] else row["predicted"],
    }


_KINDS: dict[str, tuple[Callable[[], list[dict[str, Any]]], Sequence[str]]] = {
    "gpus": (_gpus, ("name", "sm", "sms", "boost", "memory", "bandwidth", "power", "predicted")),
    "ops": (_ops, ("name", "dimensions", "dtypes", "baselines", "layouts")),
    "kernels": (_kernels, ("name", "dtypes", "layouts", "min_sm")),
    "workloads": (_workloads, ("name", "title")),
}
"""(function that returns the rows, columns of the table), keyed by the name of the list."""
