"""`kernrec gpus`, `ops` and `kernels`: lists of the GPUs, operators and kernels that kernrec knows."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from kernrec.cli.answer_table import Column, markdown_lines
from kernrec.cli.format import print_notes
from kernrec.cli.output import AsCsv, AsJson, AsMarkdown, AsWide, Form, form_of, print_csv, print_json
from kernrec.cli.table import in_terminal, print_table
from kernrec.util.human import human

_UNITS = {
    "boost_clock_hz": "boost",
    "memory_bytes": "memory",
    "memory_bandwidth": "bandwidth",
    "l2_bytes": "l2",
    "tdp_w": "power",
}
"""Headings of figures whose unit stands in the cells."""


def gpus(
    show: Annotated[
        str | None, typer.Option(help="Print one GPU as a .toml file that --gpu takes, to describe another card.")
    ] = None,
    wide: AsWide = False,
    as_csv: AsCsv = False,
    as_json: AsJson = False,
    markdown: AsMarkdown = False,
) -> None:
    """List the GPUs of the catalog with their main figures and aliases.

    A card with "lines" under "predicted" is too old for the compiler (before sm_75): what a stack takes on it is
    predicted, a kernel is not.
    """
    from kernrec.gpu import all_gpus, find_gpu

    if show is not None:
        from kernrec.gpu.card_file import card_text

        print(card_text(find_gpu(show), "my-card"), end="")
        return
    figures = ("name", "title", "sm", "sms", "boost_clock_hz", "memory_bytes", "memory_bandwidth", "l2_bytes", "tdp_w")
    _list(
        [
            {name: getattr(gpu, name) for name in figures}
            | {"power_limits": f"{gpu.power_min_w:g} to {gpu.power_max_w:g} W{' assumed' * gpu.power_range_assumed}"}
            | {"predicted": "lines" if gpu.lines_only else "kernels, lines", "aliases": list(gpu.aliases)}
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
        form_of(wide, as_csv, as_json, markdown),
    )


def ops(wide: AsWide = False, as_csv: AsCsv = False, as_json: AsJson = False, markdown: AsMarkdown = False) -> None:
    """List the operators with their dimensions, data types and layouts.

    The column "codes" explains dimensions whose values stand for choices, such as an activation. Of "dtypes" at least
    one kernel supports each (`kernrec kernels` lists the layouts); "lines" are those in which stacks were recorded.
    """
    from kernrec.kernel import kernels_for
    from kernrec.op import all_ops
    from kernrec.recommender.estimate.model_store import ModelStore
    from kernrec.recommender.lines import recorded_dtypes

    models = ModelStore.beside([])

    _list(
        [
            {
                "name": op.name,
                "aliases": list(op.aliases),
                "dimensions": [d.name if d.default is None else f"{d.name}={d.default}" for d in op.dims],
                "codes": {d.name: d.meaning for d in op.dims if d.maximum < 10},
                "dtypes": [dtype for dtype in op.dtypes if kernels_for(op.name, dtype)],
                "lines": recorded_dtypes(models, op),
                "layouts": list(op.layouts),
                "workload": op.workload,
                "title": op.title,
            }
            for op in all_ops()
        ],
        {"codes": lambda v: "; ".join(f"{name} {meaning}" for name, meaning in v.items())},
        ("name", "dimensions", "dtypes", "lines", "layouts"),
        form_of(wide, as_csv, as_json, markdown),
    )


def kernels(wide: AsWide = False, as_csv: AsCsv = False, as_json: AsJson = False, markdown: AsMarkdown = False) -> None:
    """List the kernels with the operators, data types and layouts they implement and their tunables."""
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
        form_of(wide, as_csv, as_json, markdown),
    )


def _list(
    rows: list[dict[str, Any]], formats: dict[str, Callable[[Any], str]], shown: tuple[str, ...], form: Form
) -> None:
    """Prints rows; a table has the columns `shown`, other forms all."""
    if form is Form.JSON:
        print_json(rows)
        return
    if form is Form.CSV:
        print_csv(rows)
        return
    names = tuple(rows[0]) if form is not Form.TABLE else shown
    numbers = {name for name in names if isinstance(rows[0][name], int | float)}
    headings = [_UNITS.get(name, name).replace("_", " ") for name in names]
    cells = [[formats.get(name, _plain)(row[name]) for name in names] for row in rows]
    if form is Form.MARKDOWN:
        columns = zip(headings, zip(*cells, strict=True), strict=True)
        print("\n".join(markdown_lines([Column(name, "left", column) for name, column in columns])))
        return
    aligned = ["right" if name in numbers else "left" for name in names]
    print_table(None, list(zip(headings, aligned, strict=True)), cells, form is Form.WIDE)
    others = [_UNITS.get(name, name).replace("_", " ") for name in rows[0] if name not in names]
    if in_terminal() and others:
        print_notes([f"--wide also prints {', '.join(others[:-1])} and {others[-1]}"])


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
