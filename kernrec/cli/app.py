"""The Typer application: every command by name, and errors as one line with the right exit status."""

import errno
import io
import os
import sys
from collections.abc import Sequence

import typer
from typer.exceptions import TyperException

from kernrec.cli import (
    analyze,
    catalog,
    collect,
    db,
    doctor,
    emulate,
    evaluate,
    explain,
    monitor,
    recommend,
    train,
)
from kernrec.errors import KernrecError
from kernrec.version import __version__

app = typer.Typer(
    help="Offline recommender of GPU kernel configurations: latency and energy, no GPU needed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("recommend")(recommend.recommend)
app.command("collect")(collect.collect)
app.command("doctor")(doctor.doctor)
app.command("analyze")(analyze.analyze)
app.command("explain")(explain.explain)
app.command("monitor")(monitor.monitor)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("emulate")(emulate.emulate)
app.command("gpus")(catalog.gpus)
app.command("ops")(catalog.ops)
app.command("kernels")(catalog.kernels)
app.add_typer(db.app, name="db")


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Offline recommender of GPU kernel configurations: latency and energy, no GPU needed."""
    if version:
        print(__version__)
        raise typer.Exit


def run(arguments: Sequence[str]) -> int:
    """Runs one command line; the exit status."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed, as by `>&-`: what is printed there goes nowhere
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until the process ends
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # a console without Unicode shows `?` for what it cannot show
    try:
        return _run(arguments)
    except Exception as error:
        from kernrec.cli.crash_report import EXIT_STATUS, crash_report, debugging

        if debugging():
            raise
        return _fail(crash_report(error, arguments), EXIT_STATUS)


def _run(arguments: Sequence[str]) -> int:
    try:
        status = app(list(arguments), prog_name="kernrec", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except KernrecError as error:
        return _fail(str(error), error.exit_status)
    except TyperException as error:
        return _fail(error.format_message().replace("\n", " "), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:
        _discard_output()  # the reader has what it wanted (`| head`)
        return 0
    except OSError as error:
        if error.filename is not None and error.errno in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG):
            return _fail(f"{error.filename} cannot be reached: {os.strerror(error.errno).lower()}", 1)
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _discard_output()
        return _fail(f"standard output cannot be written: {error.strerror}", 1)


def _discard_output() -> None:
    """Send the rest of standard output nowhere: writing it would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, status: int) -> int:
    if message:  # without a command the help was the answer
        print(f"kernrec: {message}", file=sys.stderr)
    return status
