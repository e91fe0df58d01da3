"""`kernrec explore`: show answers on a web page, which is served from this machine or written to a file."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from kernrec.cli import options
from kernrec.cli.options import PRINTED, option
from kernrec.errors import UsageError

if TYPE_CHECKING:
    from kernrec.op.workload import Workload
    from kernrec.page.front import Subject
    from kernrec.recommender import Recommender


class ExploreOptions(options.Options):
    databases_used = options.SEVERAL
    gpu: options.Gpus = "h200,rtx4090"
    op: options.Op = ""
    kernel: options.Kernel = None
    shape: options.Shapes = None
    dtype: options.Dtype = None
    workload: options.WorkloadName = None
    backend: options.Backends = None
    output: Annotated[Path | None, option("Write the page to this .html file.", "--output", "-o", panel=PRINTED)] = None
    port: Annotated[int, option("Port on 127.0.0.1; 0 picks a free one.", panel=PRINTED)] = 8350


@options.takes(ExploreOptions)
def explore(wanted: ExploreOptions) -> None:
    """Explore answers in a browser: Pareto fronts of latency and energy, explanations and whole networks.

    The page is served only to this machine, until you press Ctrl-C, and loads nothing from the network. With --output,
    kernrec writes the page to a single file instead. This file shows a front for each --shape (or each layer of an
    --op), and the costs of a --workload at each power limit.
    """
    if wanted.op and wanted.kernel:
        raise UsageError("--op and --kernel were both given; a kernel determines its op")
    if wanted.shape and wanted.workload and not wanted.workload.lower().endswith(".onnx"):
        raise UsageError("--shape and --workload were both given; give only one")
    if wanted.output is not None:
        _write(wanted, wanted.output)
    else:
        _serve(wanted)


def _serve(wanted: ExploreOptions) -> None:
    from kernrec.page.answers import Answers
    from kernrec.page.server import PageServer
    from kernrec.recommender import Recommender

    gpus, network = wanted.named_gpus, _workload(wanted)
    recommender = Recommender(wanted.databases)
    shown = _subjects(recommender, wanted, None, "" if wanted.kernel else wanted.op or "matmul")[0]
    chosen: dict[str, Any] = {
        "gpus": [gpu.name for gpu in gpus],
        "clocks": False,
        "inputs": wanted.inputs,
        "problem": shown.parameters,
        "workload": network.name if network else None,
        "view": "network" if network else "front",
    }
    answers = Answers(recommender, network, kernel=shown.kernel, backend=wanted.backend)
    server = PageServer(answers, wanted.port, chosen)
    try:
        print(server.url, flush=True)
        print("note: served to this machine until Ctrl-C", file=sys.stderr)
        if sys.stdout.isatty():
            import webbrowser

            webbrowser.open(server.url)
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


def _write(wanted: ExploreOptions, path: Path) -> None:
    from kernrec.cli.output import print_notes
    from kernrec.cli.progress import Steps
    from kernrec.page.answers import Answers
    from kernrec.page.document import points_of_each, report
    from kernrec.recommender import Recommender
    from kernrec.util.files import write_whole
    from kernrec.util.human import counted

    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--output {str(path)!r:.80}: expected a name that ends in .html")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--output {str(path)!r:.80}: there is no folder {path.absolute().parent}")
    if not (wanted.op or wanted.kernel or wanted.workload):
        raise UsageError("--op is missing (`kernrec list ops` lists them); or give a --kernel or a --workload")
    if wanted.kernel and wanted.workload:
        raise UsageError("use --kernel with --shape and --dtype, not with --workload")
    gpus, network = wanted.named_gpus, _workload(wanted)
    recommender = Recommender(wanted.databases)
    subjects = _subjects(recommender, wanted, network, wanted.op) if wanted.op or wanted.kernel else []
    with Steps("the report: answers"):
        most = points_of_each(len(subjects) * len(gpus))
        answers = Answers(recommender, network, most, backend=wanted.backend)
        text, missing = report(answers, gpus, subjects, network.name if network else None, wanted.inputs)
    write_whole(path, text.encode(), shared=True)
    shown = [counted(len(subjects), "problem")] if subjects else []
    shown += [f"network {network.name}"] if network else []
    print(f"{path}: {len(text.encode()) / 1e6:.1f} MB, {' and '.join(shown)} on {counted(len(gpus), 'GPU')}")
    print_notes(missing)


def _workload(wanted: ExploreOptions) -> "Workload | None":
    from dataclasses import replace

    from kernrec.recommender.networks.layers import layers_of

    if wanted.workload is None:
        return None
    request = replace(wanted.network, op=None, dtype=None, layout=None)
    return layers_of(request)[0]


def _subjects(
    recommender: "Recommender", wanted: ExploreOptions, network: "Workload | None", op: str
) -> "list[Subject]":
    """Return the problems for Pareto fronts: the user's shapes, or else the layers of the network or workload.

    Raise `UsageError` if options contradict each other, or the kernel cannot be read.
    """
    from kernrec.page.front import Subject, subject_of
    from kernrec.recommender.networks.layers import NetworkRequest, layers_of

    shapes = [] if wanted.workload else wanted.shape or []
    if shapes or wanted.kernel:
        named = {"kernel": wanted.kernel or "", "op": op, "dtype": wanted.dtype or ""}
        return [subject_of(recommender, named | {"shape": shape}) for shape in shapes or [""]]
    _, layers = layers_of(NetworkRequest(network, op, wanted.dtype))
    free = {layer.problem: layer.layout_free for layer in layers}
    return [Subject(problem, None, False, wanted.inputs, layout_free) for problem, layout_free in free.items()]
