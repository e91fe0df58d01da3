"""Rows of strangers: read and checked by a process of its own with limits, then added.

    a stranger's file -> child: open, check the tables, check every row, write plain Parquet -> parent: add the rows

A file that makes DuckDB crash, hang or take all memory costs the child, and its user one line.
"""

from kernrec.store.intake.merge import merge

__all__ = ["merge"]
