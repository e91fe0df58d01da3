"""Damaged files of every format that kernrec reads."""
