"""`kernrec explore` and `kernrec report`: answers on a page, served from this machine or written into one file."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernrec.cli import options
from kernrec.errors import UsageError

if TYPE_CHECKING:
    from kernrec.gpu import GPU
    from kernrec.op.workload import Workload
    from kernrec.page.subject import Subject
    from kernrec.recommender import Recommender

Gpus = Annotated[
    str,
    typer.Option("--gpu", callback=options.card, help="GPUs or .toml files of cards, such as h200,rtx4090."),
]
Kernel = Annotated[str | None, typer.Option("--kernel", help="One kernel instead of an op: yours or the library's.")]
Clocks = Annotated[bool, typer.Option("--clocks", help="Also try locked core clocks.")]


def explore(
    gpu: Gpus = "h200,rtx4090",
    op: Annotated[
        str | None,
        typer.Option("--op", help="Operator that is shown first (`kernrec ops` lists them). Default: matmul."),
    ] = None,
    kernel: Kernel = None,
    shape: Annotated[str | None, typer.Option(help="Its dimensions, such as m=4096,n=4096,k=4096.")] = None,
    workload: options.WorkloadName = None,
    fix: options.Fix = None,
    batch: options.OneBatch = None,
    tp: options.TensorParallel = 1,
    context: options.Context = None,
    phase: options.Phase = None,
    backend: options.Backends = None,
    dtype: options.Dtype = None,
    layout: options.Layout = None,
    clocks: Clocks = False,
    inputs: options.Inputs = "random",
    port: Annotated[int, typer.Option(help="Port of 127.0.0.1 to serve on; 0 for any that is free.")] = 8350,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    db: options.Databases = None,
) -> None:
    """Explore answers in a browser: fronts of latency and energy, explanations, whole networks, what databases hold.

    The page is served to this machine alone, and asks nothing of the network. Ctrl-C ends it. `kernrec report` writes
    the same page into one file.
    """
    from kernrec.gpu import find_gpus
    from kernrec.page.answers import Answers
    from kernrec.page.server import PageServer
    from kernrec.recommender import Recommender

    gpus = find_gpus(gpu)
    network = _workload(workload, fix, batch, tp, context, phase)
    if op and kernel:
        raise UsageError("--op and --kernel were both given; one of them is shown first")
    recommender = Recommender(databases=db)
    about = "" if kernel else op or "matmul"
    shown = _subjects(recommender, (about, kernel), [shape] if shape else [], None, (dtype, layout, clocks, inputs))[0]
    chosen: dict[str, Any] = {
        "gpus": [card.name for card in gpus],
        "clocks": clocks,
        "inputs": inputs,
        "problem": shown.parameters,
        "workload": network.name if network else None,
        "view": "network" if network else "front",
    }
    server = PageServer(Answers(recommender, network, kernel=shown.kernel, backend=backend), port, chosen)
    try:
        print(server.url, flush=True)
        print("note: served to this machine until Ctrl-C", file=sys.stderr)
        if browser:
            import webbrowser

            webbrowser.open(server.url)
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


def report(
    html: Annotated[Path, typer.Option("--html", help="File to write; it works without a network.")],
    gpu: Gpus,
    op: options.Op = "",
    kernel: Kernel = None,
    shape: options.Shapes = None,
    workload: options.WorkloadName = None,
    fix: options.Fix = None,
    batch: options.OneBatch = None,
    tp: options.TensorParallel = 1,
    context: options.Context = None,
    phase: options.Phase = None,
    backend: options.Backends = None,
    dtype: options.Dtype = None,
    layout: options.Layout = None,
    clocks: Clocks = False,
    inputs: options.Inputs = "random",
    db: options.Databases = None,
) -> None:
    """Write the page of `kernrec explore` into one HTML file, such as to attach to a ticket.

    It has the front of latency and energy of every --shape of an --op or a --kernel, explained; with a --workload the
    network over power limits, and of an --op the layers of the network.
    """
    from kernrec.cli.format import print_notes
    from kernrec.cli.steps import Steps
    from kernrec.gpu import find_gpus
    from kernrec.page.answers import Answers
    from kernrec.page.report import points_of_each
    from kernrec.page.report import report as make
    from kernrec.recommender import Recommender
    from kernrec.util.atomic_write import write_whole
    from kernrec.util.human import counted

    if html.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--html {str(html)!r:.80}: a name that ends in .html is expected")
    if not html.absolute().parent.is_dir():
        raise UsageError(f"--html {str(html)!r:.80}: there is no folder {html.absolute().parent}")
    if not op and not kernel and not workload:
        raise UsageError("--op is missing (`kernrec ops` lists what is known); or give a --kernel or a --workload")
    if kernel and (op or workload):
        raise UsageError("--kernel goes with --shape, --dtype, --layout and --clocks, without --op and --workload")
    if shape and not (op or kernel):
        raise UsageError("--shape needs an --op or a --kernel")
    if shape and workload:
        raise UsageError("--shape and --workload were both given; a shape is one problem, a workload many")
    gpus: Sequence[GPU] = find_gpus(gpu)
    network = _workload(workload, fix, batch, tp, context, phase)
    recommender = Recommender(databases=db)
    subjects = []
    if op or kernel:
        subjects = _subjects(recommender, (op, kernel), shape or [], network, (dtype, layout, clocks, inputs))
    with Steps("the report: answers"):
        answers = Answers(recommender, network, points_of_each(len(subjects) * len(gpus)), backend=backend)
        text, missing = make(answers, gpus, subjects, network.name if network else None, inputs)
    write_whole(html, text.encode(), shared=True)
    size = f"{len(text.encode()) / 1e6:.1f} MB"
    shown = [counted(len(subjects), "problem")] if subjects else []
    shown += [f"network {network.name}"] if network else []
    print(f"{html}: {size}, {' and '.join(shown)} on {counted(len(gpus), 'GPU')}")
    print_notes(missing)


def _workload(
    name: str | None, fix: str | None, batch: int | None, tp: int, context: int | None, phase: str | None
) -> "Workload | None":
    from kernrec.recommender.networks.network import NetworkRequest, layers_of

    if name is None:
        if fix:
            raise UsageError("--fix is for the open dimensions of an .onnx --workload")
        if (batch, tp, context, phase) != (None, 1, None, None):
            raise UsageError("--batch, --tp, --context and --phase are for a --workload")
        return None
    wanted = NetworkRequest(name, fixed=options.fixed(fix), batch=batch, tp=tp, context=context, phase=phase)
    return layers_of(wanted)[0]


def _subjects(
    recommender: "Recommender",
    about: tuple[str, str | None],
    shapes: Sequence[str],
    network: "Workload | None",
    how: tuple[str | None, str | None, bool, str],
) -> "list[Subject]":
    """The subjects of fronts: the shapes, or else the layers of the network or of the op's own; of a kernel the
    problem of its spec. `about`: op or else kernel; `how`: dtype, layout, whether clocks are tried, and inputs."""
    from kernrec.page.subject import Subject, subject_of
    from kernrec.recommender.networks.network import NetworkRequest, layers_of

    (op, kernel), (dtype, layout, clocks, inputs) = about, how
    if shapes or kernel:
        named = {"kernel": kernel or "", "op": op, "dtype": dtype or "", "layout": layout or "", "inputs": inputs}
        named |= {"clocks": "1"} if clocks else {}
        return [subject_of(recommender, named | {"shape": shape}) for shape in shapes or [""]]
    _, layers = layers_of(NetworkRequest(network, op, dtype, layout))
    free = {layer.problem: layer.layout_free for layer in layers}
    return [Subject(problem, None, clocks, inputs, layout_free) for problem, layout_free in free.items()]
