"""Represent PTX as data: parser, program, and inlining of calls."""
