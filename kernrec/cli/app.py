"""Build and run the Typer application."""

import errno
import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand
from typer.exceptions import TyperException

from kernrec import paths
from kernrec.cli.misuse import asked_twice, sentence
from kernrec.cli.output import one_line
from kernrec.errors import KernrecError, UsageError
from kernrec.version import __version__


class OnceCommand(TyperCommand):
    """Command that rejects repeated options. Typer would silently use the last value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments. Raise `UsageError` if an option that accepts one value is repeated."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        asked_twice(order)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Import NumPy first, because a deeper call stack slows down its import in Python 3.11."""
        import numpy  # noqa: F401

        return super().invoke(ctx)


class Commands(typer.Typer):
    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Register a function as a command. Its docstring becomes the help text."""

        def register(function: Callable[..., Any]) -> Any:
            text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(function.__doc__ or ""))
            if more := getattr(function, "epilogue", ""):
                text = f"{text}\n\n{more}"
            return typer.Typer.command(self, name, **{"cls": OnceCommand, "help": text, **settings})(function)

        return register


COMMANDS = {
    "recommend": "recommend.recommend",
    "explain": "explain.explain",
    "explore": "explore.explore",
    "analyze": "analyze.analyze",
    "check": "check.check",
    "capture": "capture.capture",
    "audit": "audit.audit",
    "collect": "collect.collect",
    "contribute": "contribute.contribute",
    "monitor": "monitor.monitor",
    "train": "train.train",
    "evaluate": "train.evaluate",
    "doctor": "doctor.doctor",
    "list": "catalog.list_known",
    "mcp": "mcp.mcp",
    "db": "db.app",
}
"""Function or Typer application of each command, as `module.function` in `kernrec.cli`."""

_DATABASE = "Database to use instead of your own, in commands that use one."


def application(names: Sequence[str] = tuple(COMMANDS)) -> typer.Typer:
    """Return a Typer application with the given commands. Other commands are not imported."""
    app = Commands(
        help="Offline recommender of GPU kernel configurations: latency and energy, no GPU needed.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(root)
    for name in names:
        module, attribute = COMMANDS[name].split(".")
        command = getattr(import_module(f"kernrec.cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def __getattr__(name: str) -> typer.Typer:
    """Create the attribute `app`, the application with all commands."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return application()


def root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    db: Annotated[list[str] | None, typer.Option("--db", help=_DATABASE, metavar="FILE")] = None,
) -> None:
    """Offline recommender of GPU kernel configurations: latency and energy, no GPU needed."""
    if version:
        print(__version__)
        raise typer.Exit


def run(arguments: Sequence[str]) -> int:
    """Run a command line without the program's name, and return the exit status."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # The user closed the stream (`>&-`): discard its output.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until the process ends
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # Show `?` for characters that the console lacks.
    try:
        return _run(arguments)
    except Exception as error:
        if os.environ.get("KERNREC_DEBUG", "") not in ("", "0"):
            raise
        return _fail(_crash_report(error, arguments), _INTERNAL_ERROR)


def _run(arguments: Sequence[str]) -> int:
    try:
        words, databases = _without_databases(arguments)
        # If the command comes first, load only its module. Help texts and suggestions need all commands.
        app = application(words[:1] if words and words[0] in COMMANDS else tuple(COMMANDS))
        # Rewrite nvcc's spelling `-std=c++20`, which the parser would read as the options -s, -t and -d.
        words = [f"-D{word}" if re.match(r"--?(?:std=|use_fast_math$)", word) else word for word in words]
        if words[:1] == ["check"] and "--" in words:
            words.insert(words.index("--"), "--program")
        status = app(words, prog_name="kernrec", standalone_mode=False, obj=databases)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except KernrecError as error:
        return _fail(str(error), error.exit_status)
    except TyperException as error:
        return _fail(sentence(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except (BrokenPipeError, SystemExit) as ending:
        if BrokenPipeError not in (type(ending), type(ending.__context__)):
            raise
        # The reader of the pipe has ended (`| head`). Typer would exit with status 1.
        _discard_output()
        return 0
    except OSError as error:
        if error.filename is not None and error.errno in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG):
            return _fail(f"{error.filename} cannot be reached: {os.strerror(error.errno).lower()}", 1)
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _discard_output()
        return _fail(f"standard output cannot be written: {error.strerror}", 1)


def _without_databases(words: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Return the command line without --db, and the values of --db."""
    options = list(words[: words.index("--")] if "--" in words else words)
    rest, databases = [], []
    for number, word in enumerate(options):
        if word.startswith("--db="):
            databases.append(Path(word.removeprefix("--db=")))
        elif number and options[number - 1] == "--db":
            databases.append(Path(word))
        elif word == "--db" and number == len(options) - 1:
            raise UsageError("--db has no value; expected the file of a database")
        elif word != "--db":
            rest.append(word)
    return [*rest, *words[len(options) :]], databases


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, status: int) -> int:
    if message:  # The message is empty if Typer has printed the help.
        print(f"kernrec: {one_line(message)}", file=sys.stderr)
    return status


_INTERNAL_ERROR = 70
"""Exit status of an internal error (EX_SOFTWARE in sysexits.h)."""


def _crash_report(error: Exception, arguments: Sequence[str]) -> str:
    """Write a report about an unexpected exception to the cache folder, and return a one-line message."""
    import platform
    import traceback
    from datetime import UTC, datetime

    from kernrec.util.files import write_whole

    now = datetime.now(UTC)
    folder = paths.cache() / "crashes"
    file = folder / f"{now:%Y%m%dT%H%M%S}-{os.getpid()}.txt"
    version = f"kernrec {__version__}, Python {platform.python_version()}, {platform.platform()}"
    report = f"{version}\n{now:%Y-%m-%d %H:%M:%S} UTC\narguments: {list(arguments)}\n\n"
    report += "".join(traceback.format_exception(error))
    message = " ".join(str(error).split())
    summary = f"internal error in kernrec {__version__}: {type(error).__name__}" + (message and f": {message[:200]}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, report.encode(errors="backslashreplace"))
    except OSError:
        return f"{summary}; KERNREC_DEBUG=1 shows where"
    return f"{summary}; details are in {file}, please report them"
