"""Run the `kernrec` command for `python -m kernrec`."""

from kernrec.cli import command

command()
