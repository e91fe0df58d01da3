"""Typer as kernrec uses it: an option that takes one value may not be given twice, where the last would win unseen."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from kernrec.cli.misuse import asked_twice


class OnceCommand(TyperCommand):
    """A command that refuses an option of one value that is given twice."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Typer does, after a look at what is there twice. Raises `UsageError`."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        asked_twice(order)
        return super().parse_args(ctx, args)


class Commands(typer.Typer):
    """A group of such commands."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Register a function as Typer does, with each paragraph of its docstring on one line."""

        def register(function: Callable[..., Any]) -> Any:
            text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(function.__doc__ or ""))
            if more := getattr(function, "epilogue", ""):
                text = f"{text}\n\n{more}"
            return typer.Typer.command(self, name, **{"cls": OnceCommand, "help": text, **settings})(function)

        return register
