"""`python -m kernrec` is the `kernrec` command."""

from kernrec.cli import main

main()
