"""Extend Typer: refuse a repeated option with one value, of which Typer would silently use the last."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from kernrec.cli.misuse import asked_twice


class OnceCommand(TyperCommand):
    """Command that refuses a repeated option with one value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments as Typer does, but raise `UsageError` for a repeated option with one value."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        asked_twice(order)
        return super().parse_args(ctx, args)


class Commands(typer.Typer):
    """Group of `OnceCommand`s."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Register a function like Typer, with each paragraph of its docstring joined to one line."""

        def register(function: Callable[..., Any]) -> Any:
            text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(function.__doc__ or ""))
            if more := getattr(function, "epilogue", ""):
                text = f"{text}\n\n{more}"
            return typer.Typer.command(self, name, **{"cls": OnceCommand, "help": text, **settings})(function)

        return register
