"""Tests that give kernrec damaged files of every format it reads."""
